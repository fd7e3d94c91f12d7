"""The user's clipboard: macOS's `pbcopy`, else the terminal's OSC 52."""

import base64
import os
import shutil
import subprocess
import sys
from typing import TextIO

from mlxchat.terminal import is_dumb


def copy_to_clipboard(text: str, terminal: TextIO | None = None) -> str:
    """Copy, if need be by writing to `terminal` or stdout; return a short report."""
    screen = terminal or sys.stdout
    copied = text.encode("utf-8", "replace")
    size = f"{len(text):,} characters"
    # Over ssh, pbcopy would fill the clipboard of the wrong machine.
    if "SSH_CONNECTION" not in os.environ and shutil.which("pbcopy"):
        # Without a locale pbcopy assumes Mac Roman.
        locale = os.environ | {"LC_CTYPE": "UTF-8"}
        if subprocess.run(["pbcopy"], input=copied, env=locale, check=False).returncode == 0:
            return f"copied {size}"
    if is_dumb() or not screen.isatty():
        return "no clipboard here: /export writes a file"
    screen.write(f"\x1b]52;c;{base64.b64encode(copied).decode()}\x07")
    screen.flush()
    # No terminal confirms it.
    return f"sent {size} to the terminal (OSC 52), which may not support it"
