"""A chat in a pseudo-terminal of any kind."""

import os
import re
import sys

from tests.smoke.pseudo_terminal import PseudoTerminal
from tests.terminal import CTRL_C, PROMPT


class Chat(PseudoTerminal):
    """`mlxchat` with a scripted model, waiting at its first prompt."""

    def __init__(self, model: str, *arguments: str) -> None:
        program = ["-m", "tests.scripted_program", "-m", model]
        super().__init__([sys.executable, *program, *arguments], columns=90, lines=40)
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
