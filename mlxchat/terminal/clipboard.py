"""The clipboard: the desktop's own command where there is one, else the terminal's."""

import base64
import os
import shutil
import subprocess
import sys

from mlxchat.terminal.screen import is_dumb

COMMANDS = (["pbcopy"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "-ib"])

# A desktop that does not answer by then is not going to.
PATIENCE_S = 3


def copy_to_clipboard(text: str) -> str:
    """Copy, and say in a few words how it went."""
    copied = text.encode("utf-8", "replace")
    for command in COMMANDS:
        if shutil.which(command[0]) and _has_display(command[0]) and _run(command, copied):
            return f"copied, {len(text):,} characters"
    if is_dumb() or not sys.stdout.isatty():
        return "there is no clipboard here: /export writes a file"
    # OSC 52, which many terminals obey, over ssh too; none of them answers.
    payload = base64.b64encode(copied).decode()
    sys.stdout.write(f"\x1b]52;c;{payload}\x07")
    sys.stdout.flush()
    return f"given to the terminal, {len(text):,} characters"


def _run(command: list[str], copied: bytes) -> bool:
    # Some of them stay behind to hand the text out: they must not be waited for, which a pipe of
    # theirs would do, nor be ended by the next Ctrl-C, which is meant for a reply.
    try:
        done = subprocess.run(
            command,
            input=copied,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _has_display(command: str) -> bool:
    if command == "pbcopy":
        return True
    return bool(os.environ.get("WAYLAND_DISPLAY" if command == "wl-copy" else "DISPLAY"))
