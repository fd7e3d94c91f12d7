"""The line editor: which keys give which message, what Tab completes, and the user's own editor."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat.errors import InputError
from mlxchat.terminal.editor import LEAVING_HINT, Editor, EndOfInput, edit
from tests.terminal import CTRL_C, CTRL_D, LEFT, PROMPT, Step, Terminal

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

CTRL_R, ALT_ENTER = "\x12", "\x1b\r"
LONG = '"""' + "word " * 400
START, END = "\x1b[200~", "\x1b[201~"
PASTED = f"{START}{LONG}\r\n{END}"
HINTED = f"^> {LEAVING_HINT}$"

Read = Callable[..., str]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a message, typed at the prompt or in steps, or typed `ahead` of a draft."""

    def read_typed(
        typed: str, *steps: Step, history: str = "history", draft: str = "", ahead: str = ""
    ) -> str:
        redraws = iter(range(1, 1_000))
        terminal = Terminal([(PROMPT, typed)] * bool(typed) + [*steps])
        with terminal.opened():
            terminal.type(ahead)
            editor = Editor(
                history_file=tmp_path / history,
                commands={"/help": "all", "/hello": "greets", "/file PATH": "adds a file"},
                # Escape sequences in it are made visible.
                toolbar=lambda: f"redraw {next(redraws)}\x1b[5m",
                suggest=lambda name, typed: ["two words"] * ((name, typed) == ("/hello", "t")),
            )
            message = editor.read(draft)
        terminal.check_all_steps_are_taken()
        assert "redraw" not in terminal.text()
        return message

    return read_typed


def test_what_is_typed_ahead_of_a_draft_that_comes_back_is_apart(read: Read) -> None:
    added = ("^> one\n  two\n  three\n$", "\r")
    assert read("", added, draft="one", ahead="\ntwo\nthree\n") == "one\ntwo\nthree"
    assert read("", draft="one", ahead="/help\n") == "/help"
    assert read("", draft="one", ahead="\x15/help\n") == "/help"
    assert read("", ("^> one$", "/\x7f\r!\r"), draft="one") == "one!"
    assert read("", ("^> one$", "/edit\r"), draft="one") == "/edit one"
    tall = "line\n" * 60 + "end"
    assert read("", (r"^> \[pasted 303 characters\]$", "!\r"), draft=tall) == f"{tall}!"
    assert read(f"{CTRL_R}line\r\r") == f"{tall}!"
    assert read("\x10", (r"^> \[pasted 304 characters\]$", "\r")) == f"{tall}!"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        *(("hello\r", "hello"), ("\r \r\rhello\r", "hello"), (f"one{ALT_ENTER}two\r", "one\ntwo")),
        *(('"""\rone\r\rtwo\r"""\r', "one\n\ntwo"), ('""""""\r\x15x\r', "x")),
        *(
            (f'{START}"""A."""\nb{END}\r', '"""A."""\nb'),
            ('"""\r"""A."""\rb\r"""\r', '"""A."""\nb'),
            ('"""\rf:\r  """Doc.\r  """\r  1\r"""\r', 'f:\n  """Doc.\n  """\n  1'),
            ('"""\rWhat is """ here?\r"""\r', 'What is """ here?'),
            *(('"""\r/forget 1\r"""\r', " /forget 1"), ('"""\r/x/y\rz\r"""\r', "/x/y\nz")),
        ),
        (f"{START}one\r\ntwo\rthree\n{END}\r", "one\ntwo\nthree"),
        (f"{START}\x1b[31mred\x1b]0;title\x07{END}\r", "\x1b[31mred\x1b]0;title\x07"),
        *((f"cd{LEFT}{LEFT}ab\r", "abcd"), (f"a{PASTED}\x7f\x7fb\r", "ab")),
        *((f"{PASTED}b\r", f"{LONG}\nb"), (f"ab{LEFT}{CTRL_D}\r", "a")),
        *((f"{CTRL_C}x\x7f{CTRL_C}again\r", "again"), (f"text{CTRL_C}{CTRL_C}again\r", "again")),
        *(("\x0fhello\x0f", "hello"), ("größe 😀\r", "größe 😀")),
        # A color is read as a mouse, which is not used.
        ("a\x1b[31mb\r", "ab"),
        # Invalid bytes do not reach the tokenizer.
        ("a\udcffb\r", "a?b"),
    ],
)
def test_the_keys_typed_give_one_message(read: Read, typed: str, message: str) -> None:
    assert read(typed) == message


def test_esc_during_a_reply_is_not_the_alt_of_the_next_letter_and_ctrl_c_is_a_signal() -> None:
    terminal = Terminal()
    with terminal.opened():
        editor = Editor(history_file=None, commands={}, toolbar=lambda: "")
        for typed in ("\x1b", "", "two\r"):
            terminal.type(typed)
            editor.take_typed()
        assert editor.read() == "two"
        terminal.type("not lost\x03, kept\r")
        with pytest.raises(KeyboardInterrupt):
            editor.take_typed()
        assert editor.read() == "not lost, kept"


def test_keys_that_leave_the_chat_and_the_hint_about_them(read: Read) -> None:
    hints = [(HINTED, LEFT), (PROMPT, CTRL_C), (HINTED, CTRL_C)]
    for typed, steps in ((CTRL_D, []), (f"text{CTRL_C * 3}", []), (CTRL_C, hints)):
        with pytest.raises(EndOfInput):
            read(typed, *steps)


def test_tab_completes_commands_arguments_and_file_names(read: Read, temp_home: Path) -> None:
    (temp_home / "a_long_name.txt").write_text("")
    steps = [("^> /file ~/a_l$", "\t"), (r"^> /file ~/a_long_name\.txt$", "\r")]
    assert read("/file ~/a_l", *steps) == "/file ~/a_long_name.txt"
    steps = [("^> /hello t$", "\t"), ("^> /hello two words$", "\r")]
    assert read("/hello t", *steps) == "/hello two words"
    assert read("/hel", ("/help +all\n */hello +greets", "\t\t\r")) == "/hello"
    assert read("/fi", ("/file +adds", "\t\t\r")) == "/file "


def test_what_is_drawn_is_as_wide_as_the_library_takes_it_for(read: Read) -> None:
    assert read("\x1b[200~\tx\x07\x1b[201~", (r"^>     x\^G$", "\r")) == "\tx\x07"


def test_a_message_survives_in_a_private_history_with_a_long_paste_that_the_prompt_collapses(
    read: Read, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "directory" / "history"
    up = (r"^> b\[pasted 2,003 characters\]\n  c\n+redraw \d+␛\[5m$", "\x1b[Aa\r")
    whole = f"ba{LONG}\nc"
    assert read(f"b{PASTED}c", up, history=str(file)) == whole
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(each.stat().st_mode) for each in file.parents[:2]} == {0o700}
    assert read(f"{CTRL_R}WO\r\r", history=str(file)) == whole
    assert read(f"my{CTRL_R}o{CTRL_R}{CTRL_C}own\r", history=str(file)) == "myown"
    tall = f"{PASTED}{ALT_ENTER * 60}end\x1b9\x1b9\x10\x10\x0e\r"
    assert read(tall, history=str(file)) == f"{LONG}\n{60 * chr(10)}end"


def test_an_unusable_editor_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for editor, complaint in {
        "no-such": "exited with status 127: nothing was changed; set $VISUAL or $EDITOR",
        "rm": "saved no file of UTF-8 text",
        "false": "exited with status 1: nothing was changed",
    }.items():
        monkeypatch.setenv("EDITOR", editor)
        with pytest.raises(InputError) as refused:
            edit("text")
        assert str(refused.value) == f"{editor} {complaint}"
