"""`mlxchat chat` with a pipe: one turn per line in, replies or events out."""

import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.conftest import RunMlxchat
from tests.in_process import run_in_process
from tests.json_events import events_of

MLXCHAT = [sys.executable, "-m", "mlxchat"]


def test_each_line_is_answered_and_nothing_else_is_on_stdout(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    done = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "5", "--temp", "1", "--seed", "1"],
        stdin="hello\n\nhow are you?\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    again = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "5", "--temp", "1", "--seed", "1", "--json"],
        stdin="hello\nhow are you?\n",
    )
    replies = [event["text"] for event in events_of(again.stdout) if event["event"] == "done"]
    assert len(replies) == 2
    assert done.stdout == "".join(r if r.endswith("\n") else f"{r}\n" for r in replies)


def test_events_have_the_turns_number_and_follow_the_schema(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    done = run_mlxchat(
        *("chat", "-m", str(tiny_model), "-n", "20", "--temp", "0"),
        *("--max-kv-size", "240", "--json"),
        stdin="".join(f"question {number} {'x' * 30}\n" for number in range(6)),
    )
    assert done.returncode == 0
    assert done.stderr == ""
    start, *events = events_of(done.stdout)
    assert (start["event"], start["max_kv_size"]) == ("start", 240)
    turns = {turn: list(each) for turn, each in groupby(events, lambda event: event["turn"])}
    assert list(turns) == [1, 2, 3, 4, 5, 6]
    assert all(each[-1]["event"] == "done" for each in turns.values())
    forgot = [event for event in events if event["event"] == "forgot"]
    assert forgot
    ends = [each[-1] for each in turns.values()]
    new = [end["prompt_tokens"] - end["cached_tokens"] for end in ends]
    # A turn costs its own tokens, of one byte each, and the end of the reply before it.
    own = len(f"<user\nquestion 0 {'x' * 30}>\n<assistant\n")
    assert own <= min(new) <= max(new) <= own + len("x>\n")
    assert max(end["kv_tokens"] for end in ends) <= 240


def test_a_recalled_turn_is_an_event_and_a_line(tiny_model: Path) -> None:
    asked = ["My cat is Ada.", *(letter * 130 for letter in "bcdefgh"), "Who is my cat?"]
    options = ("chat", "-m", str(tiny_model), "--max-kv-size", "960", "-n", "8")
    given = "\n".join(asked) + "\n"
    done = run_in_process(*options, "--json", stdin=given)
    recalled = [event for event in events_of(done.stdout) if event["event"] == "recalled"][-1]
    assert (recalled["turn"], recalled["turns"]) == (9, [1])
    off = run_in_process(*options, "--recall", "0", stdin=given)
    assert ("recalled turn 1" in done.stderr, "recalled turn 1" in off.stderr) == (False, False)
    assert 'recalled turn 1 "My cat is Ada."' in run_in_process(*options, stdin=given).stderr


def test_a_resumed_session_continues_its_turn_numbers(tiny_model: Path) -> None:
    """Each process started from turn 1, in its events and in its figures."""
    options = ("chat", "-m", str(tiny_model), "-n", "2", "--session", "mine", "--stats", "--json")
    run_in_process(*options, stdin="one\ntwo\n")
    done = run_in_process(*options, stdin="three\nfour\n")
    _, *events = events_of(done.stdout)
    assert {event["turn"] for event in events} == {3, 4}
    assert [line.split(" · ")[0] for line in done.stderr.splitlines()] == ["turn 3", "turn 4"]


def test_messages_may_be_json_and_the_system_prompt_may_change(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    done = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "1", "--json"],
        stdin='{"role": "system", "content": "Be brief."}\n{"role": "user", "content": "a"}\na\n',
    )
    ends = [event for event in events_of(done.stdout) if event["event"] == "done"]
    rendered = "<system\nBe brief.>\n<user\na>\n<assistant\n"
    assert ends[0]["prompt_tokens"] == len(rendered)
    assert len(ends) == 2


def test_a_line_that_is_no_message_is_refused_with_its_number(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    """The messages after it were not answered."""
    done = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "1", "--json"],
        stdin='hello\n{"role": "assistant", "content": "a"}\n\0\nagain\n',
    )
    assert done.returncode == 1
    assert done.stderr == (
        "mlxchat: error: line 2 of standard input: role must be user or system, and content a "
        "string\n"
        "mlxchat: error: line 3 of standard input is binary: it contains a NUL at byte 0\n"
    )
    ends = [event for event in events_of(done.stdout) if event["event"] == "done"]
    assert ["error" in end for end in ends] == [False, True, True, False]


def test_forgotten_turns_are_reported_in_pipes_too(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    done = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "3", "--max-kv-size", "160"],
        stdin="x" * 60 + "\n" + "y" * 60 + "\n",
    )
    assert f'forgot turn 1 "{"x" * 30}…" (' in done.stderr
    larger = run_mlxchat(
        *["chat", "-m", str(tiny_model), "-n", "3", "--max-kv-size", "160"], stdin="x" * 300 + "\n"
    )
    assert "turn 1 is larger than the window" in larger.stderr
    assert larger.returncode == 0


# This model's likeliest reply to "never stop" has no end.
@pytest.mark.parametrize(
    ("line", "seen", "number", "status"),
    [
        ("hello", "done", signal.SIGINT, 130),
        ("hello", "done", signal.SIGTERM, 143),
        ("never stop", "token", signal.SIGINT, 130),
    ],
    ids=["INT while waiting", "TERM while waiting", "INT during a reply"],
)
def test_a_signal_ends_it_and_keeps_the_text_so_far(
    line: str, seen: str, number: signal.Signals, status: int, tiny_model: Path
) -> None:
    tokens = "3" if seen == "done" else "-1"
    with subprocess.Popen(
        [*MLXCHAT, "-m", str(tiny_model), "--json", "--temp", "0", "-n", tokens],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        while f'"{seen}"' not in process.stdout.readline():
            pass
        process.send_signal(number)
        assert process.wait(60) == status
        assert process.stderr.read() == ""
        rest = events_of(process.stdout.read())
    if seen == "done":
        assert rest == []
    else:
        assert (rest[-1]["event"], rest[-1]["finish_reason"]) == ("done", "interrupted")
