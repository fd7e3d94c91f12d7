"""A reply on the screen: however it is split into pieces, the final text is the same."""

import io
import re
from collections.abc import Callable
from itertools import count

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import BPE

from mlxchat.terminal import visible
from mlxchat.terminal.output import TerminalLine
from mlxchat.terminal.reply import MarkdownView, PlainView, markdown_rows
from mlxchat.text.reply_format import FORMATS, Markers, Place
from mlxchat.text.reply_reader import Decoder, Reader, StopTexts, StreamDecoder, joined
from tests.conftest import examples

WIDTH, HEIGHT = 60, 15
TAGS = ("<think>", "</think>")

PARAGRAPH = "A *long* paragraph with `code`, **bold** and [a link](http://x.y/z). " * 9
LIST = "".join(f"{n}. item **{n}** has some text\n   - below\n" for n in range(1, 25))
BULLETS = "- a\n- b\n  continued\n\n- c\n\n      code\n* another list\n\n  paragraph\n- d\n"
CODE = "```python\n" + "".join(f"def f{n}(x):\n\n\treturn x * {n}\n\n" for n in range(20)) + "```\n"
TABLE = "| a | b |\n|---|--:|\n" + "".join(f"| row {n} | {n**n} |\n" for n in range(12))
REPLIES = [
    PARAGRAPH,
    f"# Title\nText\n{LIST}\nlazy end\n\nThe end",
    f"Here:\n{CODE}Text right behind.\n\n- one\n\n{TABLE}\n> quoted\n> more\nlazy\n\n---\nx",
    f"{BULLETS}\n{PARAGRAPH}\n***\n***\n# \n#\n\n{CODE[:-4]}",
    "```\n```\ntext\n```text\n\n\n\n``` \n~~~~ what is=this\n```\n" + "word " * 50,
    "<b>bold</b> <script>\n\n<div>\nx\n</div>\n\n![alt](http://src) <http://auto> [1]\n\n[1]: http://d",
    "\x1b[31mred\x07 &#27;[2J &#13;x &#x9b;1m `\x1b]0;t\x07`\n\n```\n\x1b[2J\n```\n"
    "[bold]x[/bold] :smile:",
    "> - a\n>   ```\n>   code\n\n5) five\n6) six\n\n7. seven\n8. eight\n"
    + "text\n---\nmore\n===\n",
    "\n\n    indented\n\n    code\n日本語のテキスト " + "漢字" * 70 + "\n\n| a |\nb\n|-|\n\n-\n- x",
]
ATOMS = [
    *("a", "word ", "\n", "\n", "\n\n", "- ", "* ", "1. ", "10) ", "> ", "```", "```py\n", "~~~"),
    *("  ", "    ", "|", "| a | b |\n|--|--|\n", "# ", "---", "**", "_", "`", "[x](y)", "[", "]"),
    *("&lt;", "&#10;", "\\", "\t", "漢", "<b>", "===", "~~", "<!--", "x" * 70, "text " * 20),
]


def display(text: str, height: int = HEIGHT) -> list[str]:
    """Everything the terminal has shown, including what has scrolled off."""
    screen = pyte.HistoryScreen(WIDTH, height, history=10_000, ratio=0.5)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    assert screen.cursor.hidden is False
    assert screen.cursor.x == 0
    scrolled = ["".join(row[x].data for x in range(WIDTH)) for row in screen.history.top]
    lines = [line.rstrip() for line in [*scrolled, *screen.display]]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def terminal(height: int = HEIGHT) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=WIDTH, height=height)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def stream(pieces: list[str], height: int = HEIGHT) -> str:
    """What is written of a reply in these pieces."""
    console = terminal(height)
    with MarkdownView(console, clock=every_drawing()) as view:
        for piece in pieces:
            view.add(piece)
    return written(console)


def letters(text: str, height: int) -> list[str]:
    return [c for line in display(text, height) for c in line if c.isalnum()]


def in_one_piece(reply: str) -> list[str]:
    return letters(stream([reply], 200), 200)


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({place % (len(text) + 1) for place in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


cuts = st.lists(st.integers(0, 10_000), max_size=60)


def every_drawing() -> Callable[[], float]:
    """A clock by which every drawing is due and takes no time."""
    return (reading // 2 for reading in count(2)).__next__


@settings(max_examples=examples(40))
@given(
    st.one_of(st.sampled_from(REPLIES), st.lists(st.sampled_from(ATOMS), max_size=40).map("".join)),
    cuts,
    st.sampled_from([4, 15, 60]),
)
def test_a_reply_in_pieces_ends_like_a_whole(reply: str, places: list[int], height: int) -> None:
    assert letters(stream(cut(reply, places), height), height) == in_one_piece(reply)


def test_lines_of_an_open_code_block_are_printed_only_once() -> None:
    names = re.findall(r"f\d+\b", stream(CODE.splitlines(keepends=True), height=6))
    assert names == [f"f{n}" for n in range(20)]


@pytest.mark.parametrize("reply", REPLIES)
def test_no_control_character_of_the_model_reaches_the_terminal(reply: str) -> None:
    ours = r"\x1b\[(\?25[lh]|\d+A|J|[\d;]*m)|\r"
    text = re.sub(ours, "", stream(cut(reply, [*range(0, len(reply), 5)])))
    assert text == visible(text)


@pytest.mark.parametrize("reply", [PARAGRAPH, *REPLIES[1:3], REPLIES[-1]])
def test_a_reply_during_which_the_terminal_is_resized_is_written_once(reply: str) -> None:
    """Rows wrapped again by some terminals were miscounted, or printed again once scrolled away."""
    console = terminal(height=40)
    with MarkdownView(console, clock=every_drawing()) as view:
        for number, start in enumerate(range(0, len(reply), 20)):
            view.add(reply[start : start + 20])
            console.width = WIDTH - number % 3 * 10
            view.add("")
    assert letters(written(console), 40) == in_one_piece(reply)


@pytest.mark.parametrize("reply", [PARAGRAPH, REPLIES[2].replace(TABLE, ""), REPLIES[-1][:170]])
def test_a_shell_may_write_while_a_reply_is_rendered(reply: str, monkeypatch: pytest.MonkeyPatch):
    """Its line was erased, and rows were written twice."""
    console, calls = terminal(height=80), count(1)

    def rows(console: Console, source: str) -> list[str]:
        if next(calls) % 5 == 0:
            TerminalLine.moves += 1
            console.file.write("$ 5\n")
        return markdown_rows(console, source)

    monkeypatch.setattr("mlxchat.terminal.reply.markdown_rows", rows)
    with MarkdownView(console, clock=every_drawing()) as view:
        for start in range(0, len(reply), 20):
            view.add(reply[start : start + 20])
    lines = display(written(console), 80)
    assert lines.count("$ 5") == (next(calls) - 1) // 5
    expected = [c for c in in_one_piece(reply) if c != "5"]
    assert [c for c in "".join(lines) if c.isalnum() and c != "5"] == expected
    monkeypatch.setattr(TerminalLine, "look", lambda: setattr(TerminalLine, "moves", next(calls)))
    stream([reply], 80)  # This recursed until it failed, in the background.


def test_a_list_that_is_written_while_the_terminal_is_resized_stays_one() -> None:
    """Items became a paragraph, or lost their numbers to the one before."""
    reply = "Two:\n1. Rome is\n2. Oslo\n\n# Six\n9. Bern\n10. Kiel\n\n- **Ulm** `x`\n- 5"
    for place in range(len(reply)):
        console = terminal(height=40)
        with MarkdownView(console, clock=every_drawing()) as view:
            view.add(reply[:place])
            console.width = WIDTH - 10
            for text in ("", reply[place : place + 2], reply[place + 2 :]):
                view.add(text)
        rows = [line.strip() for line in display(written(console), 40)]
        text = re.sub("[ *`]", "", "".join(rows))
        assert text == "Two:1Romeis2OsloSix9Bern10Kiel•Ulmx•5", rows
        assert sum(row[:1] in "129•" for row in rows if row) == 6, rows


def test_a_marker_without_text_is_shown() -> None:
    """An item is empty in Markdown: "4.", an answer, was shown as nothing. Nor are lines joined."""
    for reply, row in (("4.", "4"), ("-", "•"), ("1. a\n2.", "2"), (">", "▌"), ("a\n b", "b")):
        assert display(stream([*reply]))[-1].strip() == row


def test_a_reply_is_continued_within_its_code() -> None:
    for after, more, rows in (
        ("Hi:\n```\nx = [1", ", 2]\n    # z\n```\nBye.", ["  , 2]", "      # z", "", "Bye."]),
        ("```\nif x:\n    ", "y\n```", ["      y"]),
        ("2 ** 3 `a**`.\n\nOr **use 2 ** 3 `ke", "y` and** `b`.", ["y and b."]),
        ("2 * 3, `**` and **a", " b** `c`.", ["b c."]),
        ("**a", "** `b`", ["b"]),
        ("It's 5` and `", " more", ["more"]),
        ("- **a\n", "- b**", [" • b**"]),
        ("1" + " " * 90 + "x", "y", ["y"]),  # This took for ever.
    ):
        with MarkdownView(console := terminal(), clock=every_drawing(), after=after) as view:
            for char in more:
                view.add(char)
        assert [row.rstrip() for row in display(written(console))] == rows


def test_a_table_during_which_the_terminal_is_resized_stays_one() -> None:
    reply = "Here:\n\n" + "".join(TABLE.splitlines(keepends=True)[:4])
    for place in range(7, len(reply) - 1):
        with MarkdownView(console := terminal(height=40), clock=every_drawing()) as view:
            view.add(reply[:place])
            console.width = WIDTH - 10
            view.add("")
            view.add(reply[place:])
        assert display(written(console), 40)[-1].split() == ["row", "1", "1"]
    assert display(stream([f"a\n\n{TABLE}\nb"], 40), 40).count("") == 2


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("thoughts", "shown"),
    [
        (["Hm,\nduck?\n", "\nNo: goose."], ["Hm,", "duck?", "", "No: goose.", "", "Yes!"]),
        (["\n\n"], ["Yes!"]),
    ],
)
def test_thoughts_are_shown_apart_and_empty_ones_are_not(
    thoughts: list[str], shown: list[str], hides: bool, plain: bool
) -> None:
    """gpt-oss's second thought started in the middle of the first one's last line."""
    console = terminal()
    view = (
        PlainView(console.file.write, hides)
        if plain
        else MarkdownView(console, hides, clock=every_drawing())
    )
    for thought in thoughts:
        view.add(thought, True, True)
    view.add("Yes!")
    view.finish()
    assert display(written(console)) == (["Yes!"] if hides else shown)


tagged = st.lists(st.sampled_from([*TAGS, "<", "think", "</th", ">", "\n", " ", "a"])).map("".join)


@given(tagged, cuts, st.booleans())
def test_thoughts_are_split_off_in_any_pieces(text: str, places: list[int], inside: bool) -> None:
    """And a second thought, or the closing tag once more, if it follows the first."""
    thought, rest, blanks = "", "<think>" * inside + text, r"\s*"
    while part := re.match(rf"(?s){blanks}(?:<think>(.*?)(?:</think>\n*|\Z)|</think>\n*)", rest):
        thought, rest, blanks = thought + (part[1] or ""), rest[part.end() :], ""
    (format_,) = (each for each in FORMATS if (each.opens, each.closes) == TAGS)
    decoder = StreamDecoder(Decoder(Tokenizer(BPE())))
    reader = Reader(decoder, Markers(format_, {}), Place.THOUGHT if inside else Place.START)
    pieces = [piece for each in cut(text, places) for piece in reader.read(each)]
    assert joined([*pieces, *reader.finish()]) == (thought, rest)


@example("abc", ["c", "b"], [])
@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4)), cuts)
def test_text_is_shown_up_to_a_stop_text(text: str, stops: list[str], places: list[int]) -> None:
    """And what is held back is never more than could still begin one."""
    reader, shown = StopTexts(stops), ""
    for piece in cut(text, places):
        shown += reader.add(piece)
        if reader.found:
            break
        assert len(reader.held) < max(map(len, stops), default=1)
    shown += reader.finish()
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    if reader.found:
        assert text[len(shown) :].startswith(tuple(stops))
    else:
        assert shown == text
