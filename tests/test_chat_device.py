"""A device that fails during a chat, in a terminal or a pipe: nothing shown is lost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.chat import Chat
from mlxchat.chat.conversation import Conversation
from mlxchat.errors import ExitStatus
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.commands import ChatShown
from mlxchat.sessions.records import Saved
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.terminal import chat_loop, visible
from mlxchat.terminal.editor import EndOfInput
from mlxchat.terminal.worker import Worker
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process
from tests.json_events import events_of

FAILED = "out of memory: "
FOR_GOOD = 1_000_000


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FailingDevice:
    return FailingDevice(monkeypatch)


@pytest.fixture
def at_turn(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Calls a function when the turn of that number first begins."""
    say = Conversation.say

    def at(number: int, act: Callable[[], None]) -> None:
        done: list[bool] = []

        def call(self: Conversation, *given: Any, **how: Any) -> Any:
            if len(self.turns) == number - 1 and not done:
                done.append(True)
                act()
            return say(self, *given, **how)

        monkeypatch.setattr(Conversation, "say", call)

    return at


def saved(name: str) -> Saved:
    with Session.open(name) as session:
        return session.contents


# In a pipe


def piped(model: Path, name: str, lines: str) -> Any:
    options = ("--session", name, "-n", "2", "--temp", "1", "--seed", "1")
    return run_in_process("chat", "-m", str(model), *options, stdin=lines)


@pytest.mark.parametrize(
    "times",
    [pytest.param(1, id="once", marks=pytest.mark.slow), pytest.param(FOR_GOOD, id="for good")],
)
def test_a_piped_chat_keeps_its_output_and_says_how_to_continue(
    times: int, tiny_model: Path, device: FailingDevice, at_turn: Any
) -> None:
    for number in failing_evaluations():
        name = f"mine{number}"
        at_turn(2, partial(device.breaks_at, number, times))
        done = piped(tiny_model, name, "one\ntwo\nthree\n")
        failed = device.has_failed
        device.repair()
        if not failed:
            assert number > 8
            break
        turns = saved(name).turns
        assert done.stdout.startswith("".join(f"{turn.reply}\n" for turn in turns[:-1]))
        assert done.stdout.removesuffix("\n").endswith(turns[-1].reply)
        assert "Traceback" not in done.stderr
        if done.returncode == 0:
            # All turns were answered: only the cache could not be saved.
            assert [turn.user for turn in turns] == ["one", "two", "three"]
            assert f"cannot save the cache: {FAILED}" in done.stderr
        else:
            assert done.returncode == 1
            assert done.stderr.startswith(f"mlxchat: error: {FAILED}")
            assert done.stderr.endswith(f"; --session {name} continues the chat\n")
            assert done.stderr.count("\n") == 1
        again = piped(tiny_model, name, "four\n")
        assert (again.returncode, again.stderr) == (0, "")
        assert [turn.user for turn in saved(name).turns] == [*(t.user for t in turns), "four"]


def test_the_last_event_of_a_piped_chat_reports_the_device_failure(
    tiny_model: Path, device: FailingDevice, at_turn: Any
) -> None:
    """A program reading the events could not distinguish this from a kill."""
    options = ("-m", str(tiny_model), "--no-save", "--json", "--max-kv-size", "320", "-n", "4")
    for number in (1, 4):
        at_turn(2, partial(device.breaks_at, number))
        done = run_in_process("chat", *options, stdin=f"{'one ' * 20}\n{'two ' * 30}\n")
        device.repair()
        *_, last = events_of(done.stdout)
        assert (last["event"], last["turn"], last["finish_reason"]) == ("done", 2, "error")
        error = f"mlxchat: error: {last['error']}; the chat was not saved (--no-save)\n"
        assert (done.returncode, done.stderr) == (1, error)


# In a terminal


class Typed:
    """Replaces the line editor."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    def read(self, draft: str = "") -> str:
        if not self._lines:
            raise EndOfInput
        return self._lines.pop(0)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Callable[..., int]:
    """Runs a chat in this process, saved in a session, with these lines as input."""
    monkeypatch.setenv("TERM", "dumb")
    setup = Setup(
        str(tiny_model),
        offline=True,
        device="cpu",
        dtype="float32",
        window=320,
        keep=0,
        prefill_step_size=64,
        seed=1,
    )
    options = ChatOptions(setup, generation=GenerationSettings(max_tokens=3))

    def have(session: Session, *lines: str) -> int:
        monkeypatch.setattr(chat_loop, "PlainInput", lambda *_: Typed(*lines))
        with Worker() as worker:
            chat = Chat(options, session)
            return chat_loop.ChatLoop(chat, worker, ChatShown(plain=True)).run()

    return have


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_chat_reports_the_failure_in_a_line_and_continues(
    times: int,
    device: FailingDevice,
    at_turn: Any,
    chat: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If keys were being moved or saved, the failure ended the chat."""
    for number in failing_evaluations():
        at_turn(2, partial(device.breaks_at, number, times))
        with Session.open(f"mine{number}", create=True) as session:
            status = chat(session, "one " * 20, "two " * 30, "/retry", "three")
        failed = device.has_failed
        device.repair()
        shown = capsys.readouterr()
        if not failed:
            assert number > 8
            break
        assert (status, shown.err) == (ExitStatus.OK, "")
        assert "Traceback" not in shown.out
        assert FAILED in shown.out
        turns = saved(session.name).turns
        assert [turn.user[:5] for turn in turns] == ["one o", "two t", "three"]
        for turn in turns:
            assert visible(turn.reply) in shown.out
        assert sum(bool(turn.reply) for turn in turns) >= len(turns) - times
