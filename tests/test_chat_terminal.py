"""A chat on a terminal: what is shown, what Ctrl-C stops, and what comes back to the prompt."""

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from mlx_lm.models import llama

from mlxchat import paths
from mlxchat.app import opening
from mlxchat.errors import UsageError
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.commands import ChatShown
from mlxchat.sessions.listing import read_session
from mlxchat.terminal import progress
from mlxchat.terminal.chat_loop import ChatLoop
from mlxchat.terminal.commands import as_command, run_command
from mlxchat.terminal.editor import EndOfInput
from mlxchat.terminal.run_chat import run
from mlxchat.terminal.worker import Stop
from scripts.tiny_model import CHAT_TEMPLATE
from tests.in_process import run_in_process
from tests.scripted_model import Scripted
from tests.scripted_program import say_scripts
from tests.terminal import CTRL_C, CTRL_D, CTRL_G, CTRL_U, PROMPT, Terminal, interrupt, on_terminal

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m")
CODE = "Of course:\n\n```python\nprint(1)\n```\n"
LONG = " ".join(f"w{number}" for number in range(300))


@pytest.fixture
def saying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns the name of a model that always says the text."""
    say_scripts(monkeypatch)
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Scripted(CHAT_TEMPLATE, (), f"{text}<|im_end|>").write(tmp_path / "model")
        return "./model"

    return write


@pytest.fixture
def signals_in_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals sent one by one, each in the middle of a step of a prompt, which then ends."""
    left: list[int] = []
    taken = threading.Semaphore(0)

    def take(stop: Stop, number: int, came_s: float | None = None) -> None:
        take_it(stop, number, came_s)
        taken.release()

    def step(model: Any, tokens: Any, *rest: Any, **how: Any) -> Any:
        if tokens.shape[1] > 1 and left:
            os.kill(os.getpid(), left.pop())
            assert taken.acquire(timeout=60)
        return call(model, tokens, *rest, **how)

    take_it, call = Stop.take, llama.Model.__call__
    monkeypatch.setattr(Stop, "take", take)
    monkeypatch.setattr(llama.Model, "__call__", step)
    return left


def chat(model: Path | str, *arguments: str, steps: list[Any]) -> Terminal:
    """A chat that ends well."""
    status, terminal = on_terminal("-m", str(model), "--temp", "0", *arguments, steps=steps)
    assert status == 0
    assert "Traceback" not in terminal.written
    return terminal


# What is shown


@pytest.mark.parametrize(
    ("options", "reply"), [((), "Of course:\n\n  print(1)"), (("--plain",), CODE.rstrip())]
)
def test_a_reply_is_rendered_unless_it_is_to_be_plain(
    options: tuple[str, ...], reply: str, saying: Callable[[str], str]
) -> None:
    steps = [
        (PROMPT, "Add two numbers\r"),
        (r"> Add two numbers\n(.*\n)+>$", "/undo\r/pin 9\r"),
        (r"> /pin 9\nno messages yet\n> Add two numbers$", "."),
        (r"^> Add two numbers\.$", CTRL_C + CTRL_D),
    ]
    terminal = chat(saying(CODE), "--no-save", *options, steps=steps)
    assert terminal.text().partition("Ctrl-D to leave\n")[2].splitlines() == [
        "> Add two numbers",
        *reply.splitlines(),
        "> /undo",
        'removed "Add two numbers": edit the message below, or send it again',
        "> /pin 9",
        "no messages yet",
        ">",
    ]


def test_without_colour_all_is_plain(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(PROMPT, "hello\r/nonsense\r" + CTRL_D)]
    assert COLOUR.search(chat(tiny_model, "-n", "8", steps=steps).written)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(chat(tiny_model, "-n", "8", steps=steps).written)


def test_files_are_attached_and_only_a_chat_that_is_saved_has_a_history(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("Ada.")
    monkeypatch.chdir(tmp_path)
    steps = [
        (r"^a\.md \(4 characters\)\n1 attachment[^>]*\n>", f"Who?\r/undo\r{CTRL_U}A/B"),
        ("send it again with 1 attachment\n> A/B$[^$]*1 attached", CTRL_C + "/undo\r"),
        ("^no messages yet$", "/reset\r"),
        ("^no messages yet\n> /reset\nno messages yet\n", "exit\r"),
    ]
    chat(tiny_model, "-n", "8", "-f", "a.md", "--no-save", steps=steps)
    assert not paths.history_file().exists()
    chat(tiny_model, "-n", "8", steps=[(PROMPT, "/reset\rexit\r")])
    history = paths.history_file().read_text()
    assert [line for line in history.split("\n") if "+" in line] == ["+/reset", "+exit"]


def test_every_usual_word_ends_the_chat() -> None:
    shown: Any = None
    for line in ("/exit", "/bye", "/quit", "exit", "quit", " Quit "):
        with pytest.raises(EndOfInput):
            run_command(shown, as_command(line) or "")


def test_a_chat_that_cannot_begin_ends_with_one_line_before_anything_is_typed(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for model, options, status, error in (
        (tmp_path, [], 1, ""),
        (tiny_model, ["--max-kv-size", "16"], 2, "--max-kv-size 16 is too small for"),
    ):
        ended, terminal = on_terminal("-m", str(model), *options, steps=[])
        assert (ended, "Traceback" in terminal.text()) == (status, False)
        assert re.search(f"^mlxchat: error: {error}", terminal.text(), re.MULTILINE)


def test_a_chat_whose_stdout_is_not_the_terminal_is_refused(tiny_model: Path) -> None:
    with Terminal().opened() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        with pytest.raises(UsageError, match=r"^stdout is not a terminal: "):
            run(ChatOptions(Setup(str(tiny_model))), ChatShown())


# Ctrl-C, signals, and what is not lost by them


def test_a_message_that_is_stopped_before_its_reply_comes_back_with_its_files(
    tiny_model: Path, tmp_path: Path, signals_in_steps: list[int]
) -> None:
    """Ctrl-C during the prefill lost the message and the files attached to it."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"contents of {name}\n")
    again = "stopped: edit the message below, or send it again with 2 attachments"
    steps = [
        ("· 0 turns", f"/file {tmp_path / 'two'}\r"),
        ("^2 attachments: ", lambda: signals_in_steps.extend([signal.SIGINT] * 2)),
        (PROMPT, "Compare them\r"),
        *[(f"({again}\n> Compare them\n[^$]*){{{n}}}2 attached", "\r") for n in (1, 2)],
        ("stopped at 1 token[^$]*^>$", CTRL_D),
    ]
    options = ("-n", "1", "--prefill-step-size", "16", "-f", str(tmp_path / "one"))
    chat(tiny_model, "--session", "mine", *options, steps=steps)
    (turn,) = read_session("mine").turns
    assert turn.finish_reason == "length"
    assert [f"contents of {name}" in turn.user for name in ("one", "two")] == [True, True]
    assert turn.user.endswith("\n\nCompare them")


def test_a_file_that_never_comes_holds_up_no_other(tiny_model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one").write_text("contents\n")
    wait = f"/file {tmp_path / 'pipe'}"
    steps = [
        (PROMPT, f"{wait}\r"),
        ("reading ", interrupt),
        (f"^stopped\n> {wait}$", f"{CTRL_U}/file {tmp_path / 'one'}\r"),
        ("^1 attachment: ", CTRL_D),
    ]
    chat(tiny_model, steps=steps)
    # The thread that waits for it ends.
    os.close(os.open(tmp_path / "pipe", os.O_WRONLY))


def test_what_is_stopped_while_the_model_loads_comes_back_and_a_message_is_kept(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: released.wait(100))
    steps = [
        (PROMPT, "Summarize it\r"),
        ("^. loading ", interrupt),
        ("send it again\n> Summarize it$", CTRL_U + "/undo\r"),
        ("^> /undo\n. loading ", interrupt),
        ("^stopped\n> /undo$", CTRL_U + "Hello there\r"),
        ("^> Hello there\n. loading ", lambda: os.kill(os.getpid(), signal.SIGTERM)),
    ]
    assert on_terminal("-m", str(tiny_model), "--session", "mine", steps=steps)[0] == 143
    assert [turn.user for turn in read_session("mine").turns] == ["Hello there"]


def test_a_chat_that_is_ended_before_its_reply_keeps_the_message(
    tiny_model: Path, signals_in_steps: list[int]
) -> None:
    """When the terminal was closed, the message was taken back, and nobody was there to see it."""
    steps = [
        ("· 0 turns", lambda: signals_in_steps.append(signal.SIGHUP)),
        (PROMPT, "Hello there, it is late\r"),
    ]
    options = ("--session", "mine", "--prefill-step-size", "16")
    assert on_terminal("-m", str(tiny_model), *options, steps=steps)[0] == 129
    (turn,) = read_session("mine").turns
    assert (turn.user, turn.reply) == ("Hello there, it is late", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_prompt_keeps_what_was_typed(number: int, tiny_model: Path) -> None:
    """A SIGHUP while the prompt was drawn was lost, and the user was asked to press Enter."""
    steps = [(PROMPT, "half a mess"), ("^> half", lambda: os.kill(os.getpid(), number))]
    assert on_terminal("-m", str(tiny_model), steps=steps)[0] == 128 + number
    steps = [(PROMPT, "and more"), ("^> and", lambda: cast(Terminal, sys.stdin).hang_up())]
    on_terminal("-m", str(tiny_model), steps=steps)
    history = paths.history_file().read_text()
    assert [line for line in history.split("\n") if "+" in line] == ["+half a mess", "+and more"]


def test_ctrl_c_just_before_the_prompt_stops_neither_the_chat_nor_the_next_message(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the chat; later, it came after the ends of jobs, and stopped a message."""
    turn = ChatLoop._turn

    def interrupted(loop: ChatLoop, draft: str) -> str:
        monkeypatch.setattr(ChatLoop, "_turn", turn)
        for _ in range(100):
            loop.worker.start(lambda: None).result()
        interrupt()
        return turn(loop, draft)

    monkeypatch.setattr(ChatLoop, "_turn", interrupted)
    steps = [(PROMPT, '"""\r/clear it\r"""\r'), ("^stopped at 1 token[^$]*^>$", CTRL_D)]
    chat(tiny_model, "-n", "1", "--session", "mine", steps=steps)
    assert read_session("mine").turns[0].user == "/clear it", "no space marks it"


def test_clear_does_not_wait_for_the_model(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    run_in_process("-m", str(tiny_model), "-n", "1", "--session", "mine", "one two")
    load = opening.load_model
    monkeypatch.setattr(opening, "load_model", lambda *a, **b: released.wait(100) and load(*a, **b))
    steps = [
        ("^> one two[^$]*^>$", "/clear\r"),
        ("^new conversation, once the model is loaded ─[^$]*^>$", released.set),
        ("1 turn · 1 forgotten", CTRL_D),
    ]
    chat(tiny_model, "--session", "mine", steps=steps)
    assert [turn.forgotten for turn in read_session("mine").turns] == [True]


def test_the_status_has_no_more_tokens_than_a_smaller_window(tiny_model: Path) -> None:
    how = ("-m", str(tiny_model), "-n", "1", "--session", "mine")
    run_in_process(*how, "word " * 100)
    # A resumed chat's are counted as soon as it begins.
    on_terminal(*how, steps=[(r"\d\d/\S+ · 1 turn", CTRL_D)])
    on_terminal(*how, "--max-kv-size", "200", steps=[(PROMPT, "/unpin\r"), ("200/200 ·", CTRL_D)])


# The user's editor


def test_an_editor_that_fails_keeps_the_text_and_ctrl_c_and_what_is_typed_meanwhile(
    saying: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "false")
    steps = [
        (PROMPT, f"draft{CTRL_G}"),
        ("^false exited with status 1: nothing was changed.*\n> draft$", "\rtyped meanwhile"),
        ("w20 ", interrupt),
        ("^stopped\n> typed meanwhile$", CTRL_U + CTRL_D),
    ]
    chat(saying(LONG), "--session", "mine", steps=steps)
    (turn,) = read_session("mine").turns
    assert turn.finish_reason == "interrupted"
    assert LONG.startswith(turn.reply)
