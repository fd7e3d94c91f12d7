"""Makes the README's picture of the terminal, a real session with the embedded model, as SVG.

    python -m scripts.picture

Runs `mlxchat` in a pseudo-terminal, types, waits for each reply, and draws the final screen. The
window is small, so that the picture shows how a turn leaves it and is recalled: `make demo`'s chat.
"""

import copy
import io
import itertools
import re
import tempfile
from pathlib import Path

import pyte
from pyte.screens import Char
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from scripts.demo import CHAT, WINDOW, Shown, demo_environment, say

PICTURE = Path(__file__).parent / "pictures" / "chat.svg"
COLUMNS, LINES = 88, 24


def session(model: str) -> pyte.Screen:
    """The screen after the last reply."""
    with tempfile.TemporaryDirectory() as home:
        environment = demo_environment(home) | {"MLXCHAT_MODEL": model}
        # Convert the model first: the notice would be in the picture, with a path of this machine.
        Shown(["mlxchat", "models", "info", model], environment, is_shown=False).ends()
        del environment["PROMPT_TOOLKIT_NO_CPR"]
        chat = Shown(CHAT, environment, is_shown=False, size=(COLUMNS, LINES))
        say(chat)
        screen = pyte.Screen(COLUMNS, LINES)
        screen.buffer = copy.deepcopy(chat.screen.buffer)
        chat.types("\x04")
        chat.ends()
    return screen


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
    PICTURE.write_text(drawn(session("smollm2")), encoding="utf-8")
