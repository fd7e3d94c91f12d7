"""The user's clipboard: the desktop's own command if it reaches the user, else tmux's, else the
terminal's OSC 52."""

import base64
import os
import shutil
import subprocess
import sys
from typing import TextIO

from mlxchat.terminal import is_dumb

COMMANDS = (["pbcopy"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "-ib"])

# tmux ignores OSC 52 from programs by default, but passes on a text loaded like this.
TMUX = ["tmux", "load-buffer", "-w", "-"]

# A desktop that has not answered by then never will.
PATIENCE_S = 3

# Terminals drop longer sequences entirely. Source: 100,000 bytes are hterm's limit,
# https://hterm.org, the smallest that is documented.
MAX_OSC52_BYTES = 74_994


def copy_to_clipboard(text: str, terminal: TextIO | None = None) -> str:
    """Copy, if need be by writing to `terminal` or stdout; return a short report."""
    screen = terminal or sys.stdout
    copied = text.encode("utf-8", "replace")
    size = f"{len(text):,} characters"
    for command in COMMANDS:
        if shutil.which(command[0]) and _reaches_the_user(command[0]) and _run(command, copied):
            return f"copied {size}"
    if is_dumb() or not screen.isatty():
        return "no clipboard here: /export writes a file"
    if os.environ.get("TMUX") and shutil.which("tmux") and _run(TMUX, copied):
        return f"copied {size} to tmux, which passes them on if the terminal supports it"
    if len(copied) > MAX_OSC52_BYTES:
        return f"{size} do not fit in a terminal's clipboard: /export writes a file"
    payload = base64.b64encode(copied).decode()
    screen.write(f"\x1b]52;c;{payload}\x07")
    screen.flush()
    # No terminal confirms it.
    return f"sent {size} to the terminal (OSC 52), which may not support it"


def _run(command: list[str], copied: bytes) -> bool:
    # Some commands keep running to serve the text. They must not be waited for, as reading their
    # output would, nor end with the next Ctrl-C, which is meant for a reply.
    try:
        done = subprocess.run(
            command,
            input=copied,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Without a locale pbcopy assumes Mac Roman.
            env=os.environ | {"LC_CTYPE": "UTF-8"} if command[0] == "pbcopy" else None,
            start_new_session=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _reaches_the_user(command: str) -> bool:
    """Whether the command fills the clipboard of the machine that the user sits at."""
    over_ssh = bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))
    if command == "pbcopy":
        return not over_ssh
    if command == "wl-copy":
        return bool(os.environ.get("WAYLAND_DISPLAY")) and not over_ssh
    display = os.environ.get("DISPLAY", "")
    # `ssh -X` forwards the local display as localhost:10; a remote one is :0, or a path on a Mac.
    return bool(display) and not (over_ssh and display.startswith((":", "/")))
