"""The clipboard: the desktop's own command where there is one, else the terminal's."""

import base64
import os
import shutil
import subprocess
import sys

COMMANDS = (["pbcopy"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "-ib"])


def copy_to_clipboard(text: str) -> str:
    """Copy, and say in a few words how it went."""
    for command in COMMANDS:
        if shutil.which(command[0]) is None or not _has_display(command[0]):
            continue
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
        if done.returncode == 0:
            return f"copied, {len(text):,} characters"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "there is no clipboard here: /export writes a file"
    # OSC 52, which many terminals obey, over ssh too; none of them answers.
    payload = base64.b64encode(text.encode()).decode()
    sys.stdout.write(f"\x1b]52;c;{payload}\x07")
    sys.stdout.flush()
    return f"given to the terminal, {len(text):,} characters"


def _has_display(command: str) -> bool:
    if command == "pbcopy":
        return True
    return bool(os.environ.get("WAYLAND_DISPLAY" if command == "wl-copy" else "DISPLAY"))
