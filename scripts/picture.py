"""Makes the README's picture of the terminal, a real session with the embedded model, as SVG.

    python -m scripts.picture [-m MODEL] [FILE]

Runs `mlxchat` in a pseudo-terminal, types, waits for each reply, and draws the final screen. The
window is small, so that the picture shows how a turn leaves it and is recalled: `make demo`'s chat.
"""

import argparse
import io
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from scripts.demo import SAID, SYSTEM, WINDOW, asks

PICTURE = Path(__file__).parent / "pictures" / "chat.svg"
COLUMNS, LINES = 88, 24
QUIET_S = 6.0  # the screen has to stay unchanged for this long after a reply
PATIENCE_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=PICTURE)
    parser.add_argument("-m", "--model", default="smollm2")
    options = parser.parse_args()
    # Convert the model first: the notice would be in the picture, with a path of this machine.
    info = [sys.executable, "-m", "mlxchat", "models", "info", options.model]
    subprocess.run(info, stdout=subprocess.DEVNULL, check=True)
    screen = session(options.model)
    options.file.parent.mkdir(exist_ok=True)
    options.file.write_text(drawn(screen), encoding="utf-8")


def session(model: str) -> pyte.Screen:
    """The screen after the last reply."""
    screen = pyte.Screen(COLUMNS, LINES)
    arguments = ["-m", "mlxchat", "-m", model, "--max-kv-size", str(WINDOW), "-s", SYSTEM]
    with tempfile.TemporaryDirectory() as home:
        child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            [*arguments, "--temp", "0", "--no-save"],
            env={**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": home},
            encoding="utf-8",
            dimensions=(LINES, COLUMNS),
        )
        # Answer the terminal's queries, such as for the cursor position.
        vars(screen)["write_process_input"] = child.send
        stream = pyte.Stream(screen)
        settle(child, stream, screen)
        for text in SAID:
            child.send(f"{text}\r")
            settle(child, stream, screen)
        shown = pyte.Screen(COLUMNS, LINES)
        shown.buffer, shown.cursor = screen.buffer, screen.cursor
        child.send("\x04")
        child.expect(pexpect.EOF)
        child.close()
    return shown


def settle(child: "pexpect.spawn[str]", stream: pyte.Stream, screen: pyte.Screen) -> None:
    """Read until nothing has changed for a while and it is the user's turn."""
    ends_s = time.monotonic() + PATIENCE_S
    changed_s = time.monotonic()
    before = screen.display
    while time.monotonic() < ends_s:
        with suppress(pexpect.TIMEOUT):
            stream.feed(child.read_nonblocking(1 << 16, timeout=0.2))
        if screen.display != before:
            before, changed_s = screen.display, time.monotonic()
        if asks(screen) and time.monotonic() - changed_s > QUIET_S:
            return
    raise SystemExit("the session does not settle:\n" + "\n".join(screen.display))


def drawn(screen: pyte.Screen) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for y in range(LINES):
        row = [screen.buffer[y][x] for x in range(COLUMNS)]
        line = Text()
        for like, alike in itertools.groupby(row, style):
            line.append("".join(char.data for char in alike), like)
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title=f"mlxchat --max-kv-size {WINDOW}")
    # Remove fonts that would be fetched from the network.
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)


def style(char: Char) -> Style:
    return Style(
        color=color(char.fg),
        bgcolor=color(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def color(name: str) -> Color | None:
    """pyte's colour, a name or six hexadecimal digits, for Rich."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return Color.parse(f"#{name}")
    name = {"brown": "yellow"}.get(name, name)
    return Color.parse(re.sub(r"^bright(?=[a-z])", "bright_", name))


if __name__ == "__main__":
    main()
