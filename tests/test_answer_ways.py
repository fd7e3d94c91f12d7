"""Constrained answers through each way in, past the window; refused by name in the others.

`test_product` tries every family and form, `test_commands` the terminal's `/schema`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mlxchat
from mlxchat.app.ranks import check_ranks
from mlxchat.errors import UsageError
from mlxchat.request import Answer
from tests.in_process import run_in_process
from tests.product_answers import SCHEMA

# A chat needs as much for its template.
WINDOW = 140
GIVEN = json.dumps(SCHEMA)
HOW = ("--max-kv-size", str(WINDOW), "--temp", "1", "--seed", "5", "--json", "--lookup")

Run = Callable[..., dict[str, Any]]


def done(run: Any) -> dict[str, Any]:
    """The last event of a complete answer by the schema."""
    assert run.returncode == 0, run.stderr
    event = json.loads(run.stdout.splitlines()[-1])
    assert event["complete"] is True
    jsonschema.validate(event["value"], SCHEMA)
    return event


@pytest.fixture
def generate(unthinking_model: Path) -> Run:
    def run(*arguments: str, **how: Any) -> dict[str, Any]:
        command = ("generate", "-m", str(unthinking_model), "--schema", GIVEN, *HOW)
        return done(run_in_process(*command, *arguments, **how))

    return run


@pytest.fixture
def ask(unthinking_model: Path) -> Run:
    def run(*arguments: str, **how: Any) -> dict[str, Any]:
        command = ("chat", "-m", str(unthinking_model), *HOW)
        return done(run_in_process(*command, *arguments, **how))

    return run


def test_generate_past_the_window(generate: Run) -> None:
    event = generate("--max-kv-size", "64", "Which?")
    assert event["generated_tokens"] > 64
    assert event["evicted_tokens"] > 0


def test_a_pipe_that_continues_a_session(ask: Run) -> None:
    ask("--session", "pipe", "--schema", GIVEN, "Which?")
    line = {"role": "user", "content": "And now?", "schema": SCHEMA}
    assert ask("--session", "pipe", stdin=json.dumps(line))["turn"] == 2


def test_a_known_prefix(generate: Run) -> None:
    document = "All about boats and the sea. " * 60
    first = generate("--max-kv-size", "2400", "-f", "-", "Which?", stdin=document)
    again = generate("--max-kv-size", "2400", "-f", "-", "Which?", stdin=document)
    assert (first["cached_tokens"], again["cached_tokens"] > 0) == (0, True)
    assert again["text"] == first["text"]


def test_a_block(generate: Run, tmp_path: Path) -> None:
    (tmp_path / "boats.txt").write_text("All about boats. " * 9)
    block = ("--max-kv-size", "400", "--block", str(tmp_path / "boats.txt"), "Which?")
    first, again = generate(*block), generate(*block)
    assert again["cached_tokens"] > 100
    assert again["text"] == first["text"]


def test_a_batch(unthinking_model: Path, generate: Run, tmp_path: Path) -> None:
    """Each row is answered as it would be alone."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": {n}, "prompt": "Which {n}?"}}\n' for n in range(5)))
    how = ("-m", str(unthinking_model), "--schema", GIVEN, "--temp", "1")
    run = run_in_process("batch", *how, str(rows))
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert {each["id"] for each in results} == set(range(5))
    for each in results:
        assert each["complete"] is True
        jsonschema.validate(each["value"], SCHEMA)
    one = results[-1]
    alone = generate("--max-kv-size", "auto", "--seed", str(one["seed"]), f"Which {one['id']}?")
    assert alone["value"] == one["value"]


def test_python(unthinking_model: Path) -> None:
    request = mlxchat.Request(
        setup=mlxchat.Setup(model=str(unthinking_model), seed=5, window=WINDOW),
        prompt="Which?",
        answer=Answer(schema=GIVEN),
    )
    with mlxchat.begin(request) as run:
        text = "".join(token.text for token in run)
        assert run.is_complete
        assert run.value == json.loads(text)
    constraint = mlxchat.Constraint.from_choices(["left", "right"])
    setup = replace(request.setup, window=256, keep=0)
    with mlxchat.Chat.open(mlxchat.ChatOptions(setup=setup), save=False) as chat:
        for _ in chat.say("Which?", constraint=constraint):
            pass
        assert chat.conversation.turns[-1].reply in ("left", "right")
        assert chat.conversation.is_complete


def test_several_machines_refuse_it_by_name() -> None:
    """As a checkpoint does: see test_answer_command."""
    ranks: Any = object()
    with pytest.raises(UsageError, match=r"--schema cannot be used under mlx\.launch"):
        check_ranks(ranks, constraint="schema")
    check_ranks(None, constraint="schema")
