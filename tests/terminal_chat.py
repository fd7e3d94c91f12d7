"""A chat in a pseudo-terminal of any kind."""

import os
import re
import sys

from tests.pseudo_terminal import PseudoTerminal

CTRL_C, CTRL_D, CTRL_G, UP = "\x03", "\x04", "\x07", "\x1b[A"
PROMPT = "^>$"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m")


class Chat(PseudoTerminal):
    """`mlxchat` with a model that decodes greedily, waiting at its first prompt."""

    def __init__(
        self, model: str, *arguments: str, lines: int = 40, program: str = "mlxchat"
    ) -> None:
        command = [sys.executable, "-m", program, "-m", model, "--temp", "0", *arguments]
        super().__init__(command, columns=90, lines=lines)
        self._is_dumb = os.environ["TERM"] == "dumb"
        self.shows(PROMPT)

    def says(self, text: str) -> None:
        """Send a line and wait for the next prompt."""
        self.send(f"{text}\r")
        self.shows(f"^> {re.escape(text[:40])}")
        self.shows(PROMPT)

    def shows_draft(self, text: str) -> None:
        """Wait until `text` is in the input line, unsent."""
        if self._is_dumb:
            self.shows(f"^{re.escape(text)}\n\\(Enter sends this, anything else replaces it\\)\n>$")
        else:
            lines = "\n  ".join(map(re.escape, text.split("\n")))
            # Only the toolbar is below it: it was not sent.
            self.shows(f"^> {lines}\n+.*\n*\\Z")

    def drops_draft(self) -> None:
        self.send(CTRL_C)
        self.shows("^Ctrl-C again or Ctrl-D to leave\n>$" if self._is_dumb else PROMPT)

    def shows_rule(self, words: str) -> None:
        """Wait for a rule across the screen, one line high, with these words."""
        self.shows(f"^-- {words} --$" if self._is_dumb else f"^{words} ─+\n[^─]")
