"""`mlxchat chat` with a pipe: a turn per line in, replies or events out; and failing devices."""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mlxchat.app.chat import Chat
from mlxchat.chat.conversation import Conversation
from mlxchat.errors import ExitStatus
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.commands import ChatShown
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.terminal import chat_loop, visible
from mlxchat.terminal.editor import EndOfInput
from mlxchat.terminal.worker import Worker
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process, run_quietly
from tests.json_events import events_of


def test_each_line_is_answered_and_nothing_else_is_on_stdout(tiny_model: Path) -> None:
    how = ("chat", "-m", str(tiny_model), "-n", "5", "--temp", "1", "--seed", "1")
    written = run_quietly(*how, stdin="hello\n\nhow are you?\n")
    again = run_in_process(*how, "--json", stdin="hello\nhow are you?\n")
    replies = [event["text"] for event in events_of(again.stdout) if event["event"] == "done"]
    assert len(replies) == 2
    assert written == "".join(r if r.endswith("\n") else f"{r}\n" for r in replies)


def test_events_have_the_turns_number_and_follow_the_schema(tiny_model: Path) -> None:
    how = ("chat", "-m", str(tiny_model), "-n", "20", "--temp", "0", "--max-kv-size", "240")
    asked = "".join(f"question {number} {'x' * 30}\n" for number in range(6))
    start, *events = events_of(run_quietly(*how, "--json", stdin=asked))
    assert (start["event"], start["max_kv_size"]) == ("start", 240)
    turns = {turn: list(each) for turn, each in groupby(events, lambda event: event["turn"])}
    assert list(turns) == [1, 2, 3, 4, 5, 6]
    assert all(each[-1]["event"] == "done" for each in turns.values())
    assert any(event["event"] == "forgot" for event in events)
    ends = [each[-1] for each in turns.values()]
    new = [end["prompt_tokens"] - end["cached_tokens"] for end in ends]
    # A turn costs its own tokens, of one byte each, and the end of the reply before it.
    own = len(f"<user\nquestion 0 {'x' * 30}>\n<assistant\n")
    assert own <= min(new) <= max(new) <= own + len("x>\n")
    assert max(end["kv_tokens"] for end in ends) <= 240


def test_a_recalled_turn_is_an_event_and_a_line(tiny_model: Path) -> None:
    asked = ["My cat is Ada.", *(letter * 110 for letter in "bcde"), "Who is my cat?"]
    options = ("chat", "-m", str(tiny_model), "--max-kv-size", "560", "-n", "8")
    given = "\n".join(asked) + "\n"
    done = run_in_process(*options, "--json", stdin=given)
    recalled = [event for event in events_of(done.stdout) if event["event"] == "recalled"][-1]
    assert (recalled["turn"], recalled["turns"]) == (6, [1])
    off = run_in_process(*options, "--recall", "0", stdin=given)
    assert ("recalled turn 1" in done.stderr, "recalled turn 1" in off.stderr) == (False, False)
    assert 'recalled turn 1 "My cat is Ada."' in run_in_process(*options, stdin=given).stderr


def test_messages_may_be_json_and_the_system_prompt_may_change(tiny_model: Path) -> None:
    lines = '{"role": "system", "content": "Be brief."}\n{"role": "user", "content": "a"}\na\n'
    done = run_in_process("chat", "-m", str(tiny_model), "-n", "1", "--json", stdin=lines)
    first, _ = (event for event in events_of(done.stdout) if event["event"] == "done")
    assert first["prompt_tokens"] == len("<system\nBe brief.>\n<user\na>\n<assistant\n")


def test_a_line_that_is_no_message_is_refused_with_its_number(tiny_model: Path) -> None:
    """The messages after it were not answered."""
    refused = ['{"role": "assistant", "content": "a"}', "\0", '{"role": "user", "content": " "}']
    lines = "\n".join(["hello", *refused, '{"role": "cook", "name": "Ada"}', ""])
    done = run_in_process("chat", "-m", str(tiny_model), "-n", "1", "--json", stdin=lines)
    assert done.returncode == 1
    assert done.stderr == (
        "mlxchat: error: line 2 of standard input: role must be user or system, and content "
        "text, not blank\n"
        "mlxchat: error: line 3 of standard input is binary: it contains a NUL at byte 0\n"
        "mlxchat: error: line 4 of standard input: role must be user or system, and content "
        "text, not blank\n"
    )
    ends = [event for event in events_of(done.stdout) if event["event"] == "done"]
    assert ["error" in end for end in ends] == [False, True, True, True, False]


def test_forgotten_turns_are_reported_in_pipes_too(tiny_model: Path) -> None:
    options = ("chat", "-m", str(tiny_model), "-n", "3", "--max-kv-size", "160")
    done = run_in_process(*options, stdin=f"{'x' * 60}\n{'y' * 60}\n")
    assert f'forgot turn 1 "{"x" * 30}…" (' in done.stderr
    assert "turn 1: with the reply" in run_in_process(*options, "-n", "160", stdin="x" * 99).stderr
    larger = run_in_process(*options, stdin=f"{'x' * 300}\n")
    assert (larger.returncode, larger.stderr.count("turn 1 is larger than the window")) == (0, 1)
    assert "turn 1: with the reply, its oldest " in larger.stderr
    larger = run_in_process(*options, "--json", stdin=f"{'x' * 300}\n" * 2)
    assert [each["event"] for each in events_of(larger.stdout)][:2] == ["start", "forgot"]
    (left,) = (e["tokens"] for e in events_of(larger.stdout) if e.get("turns") == 1)
    one, two = (e["evicted_tokens"] for e in events_of(larger.stdout) if e["event"] == "done")
    assert two == one + left > left > 0


FAILED = "out of memory: "


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FailingDevice:
    return FailingDevice(monkeypatch)


@pytest.fixture
def at_turn(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Calls a function when the turn of that number begins."""
    say = Conversation.say

    def at(number: int, act: Callable[[], None]) -> None:
        def call(self: Conversation, *given: Any, **how: Any) -> Any:
            if len(self.turns) == number - 1:
                act()
            return say(self, *given, **how)

        monkeypatch.setattr(Conversation, "say", call)

    return at


# In a pipe


def test_a_piped_chat_ends_with_what_failed_and_how_to_continue(
    tiny_model: Path, device: FailingDevice, at_turn: Any
) -> None:
    """A program reading the events could not distinguish this from a kill."""
    how = ("-m", str(tiny_model), "--session", "mine", "--json", "--max-kv-size", "320", "-n", "4")
    at_turn(2, partial(device.breaks_at, 4, 1_000_000))
    done = run_in_process("chat", *how, stdin=f"{'one ' * 20}\n{'two ' * 30}\nthree\n")
    *_, last = events_of(done.stdout)
    assert (last["event"], last["turn"], last["finish_reason"]) == ("done", 2, "error")
    assert last["error"].startswith(FAILED)
    error = f"mlxchat: error: {last['error']}; saved; resume with: mlxchat --session mine\n"
    assert (done.returncode, done.stderr) == (1, error)
    device.repair()
    run_quietly("chat", *how, stdin="four\n")
    assert [turn.user[:4] for turn in read_session("mine").turns] == ["one ", "two ", "four"]


# In a terminal


def test_a_chat_reports_the_failure_in_a_line_and_continues(
    device: FailingDevice,
    at_turn: Any,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If keys were being moved or saved, the failure ended the chat."""
    monkeypatch.setenv("TERM", "dumb")
    setup = Setup(str(tiny_model), window=320, keep=0, prefill_step_size=64, seed=1)
    options = ChatOptions(setup, generation=GenerationSettings(max_tokens=3))
    for number in failing_evaluations():
        at_turn(2, partial(device.breaks_at, number))
        typed = Mock(side_effect=["one " * 20, "two " * 30, "/retry", "three", EndOfInput])
        monkeypatch.setattr(chat_loop, "PlainInput", lambda *_, typed=typed: Mock(read=typed))
        with Session.open(f"mine{number}", create=True) as session, Worker() as worker:
            status = chat_loop.ChatLoop(Chat(options, session), worker, ChatShown(plain=True)).run()
        failed = device.has_failed
        device.repair()
        shown = capsys.readouterr()
        if not failed:
            assert number > 8
            break
        assert (status, shown.err) == (ExitStatus.OK, "")
        assert "Traceback" not in shown.out
        assert FAILED in shown.out
        turns = read_session(session.name).turns
        assert [turn.user[:5] for turn in turns] == ["one o", "two t", "three"]
        for turn in turns:
            assert visible(turn.reply) in shown.out
        assert sum(bool(turn.reply) for turn in turns) >= len(turns) - 1
