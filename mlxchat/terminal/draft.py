"""A file's text while it is being edited."""

import tempfile

from mlxchat.terminal.plain_input import edit


class Draft:
    """The text being edited; `changed` if it differs from the original."""

    def __init__(self, text: str) -> None:
        self.text = self._begun = text

    @property
    def changed(self) -> bool:
        return self.text != self._begun

    def edit(self) -> bool:
        """Run the editor; return whether there is anything to write. Raises InputError."""
        edited = edit(self.text, "config.toml")
        if edited != self.text.removesuffix("\n"):
            self.text = f"{edited}\n" if edited else ""
        return self.changed

    def keep(self) -> str:
        """Write the draft to a temporary file; return its path."""
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="mlxchat-", suffix=".toml", delete=False
        ) as file:
            file.write(self.text)
        return file.name
