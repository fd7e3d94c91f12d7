"""The rows of a batch: each text is what it would be alone, whatever runs beside it."""

import io
import json
import os
import queue
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlxchat import platform
from mlxchat.app import batch_run
from mlxchat.app.batch_row import row_seed
from mlxchat.app.batch_run import open_batch
from mlxchat.app.begin import begin
from mlxchat.cache import side_by_side as trials
from mlxchat.cache.side_by_side import RowsCache
from mlxchat.engine.budget import GRACE
from mlxchat.request import BatchRequest, Request, Setup
from mlxchat.rows.row import Row
from mlxchat.units import Observer
from scripts.tiny_model import CHAT_TEMPLATE, write_tiny_model
from tests.conftest import examples

Record = dict[str, Any]

WINDOW = 160

# Every sampler, with and without a penalty.
SAMPLERS: tuple[Record, ...] = (
    {},
    {"temp": 1.2, "top_p": 0.9},
    {"temp": 1.0, "top_k": 20, "repetition_penalty": 1.2},
    {"temp": 0.9, "min_p": 0.05},
    {"temp": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temp": 1.5, "min_p": 0.1, "logit_bias": ["101=5", "102=-100"]},
    {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.02},
)


def prompts(n: int) -> list[Record]:
    """Rows of different lengths, samplers and limits."""
    return [
        {
            "id": f"row {index}",
            "prompt": "word " * (index % 7) + f"number {index}",
            "max_tokens": 3 + 4 * (index % 5),
            **SAMPLERS[index % len(SAMPLERS)],
        }
        for index in range(n)
    ]


def run_batch(
    model: Path,
    records: list[Record],
    *,
    notices: list[str] | None = None,
    window: int | None = WINDOW,
    **options: Any,
) -> dict[Any, Record]:
    """The results by id."""
    lines: list[str] = []
    request = BatchRequest(setup=Setup(model=str(model), window=window, seed=7), **options)
    data = io.BytesIO("".join(json.dumps(row) + "\n" for row in records).encode())
    warned = [] if notices is None else notices
    observer = Observer(warn=lambda notice: warned.append(str(notice)))
    with open_batch(request, observer, write=lines.append, piped=data) as batch:
        list(batch.results())
    results = [json.loads(line) for line in lines]
    assert len({each["id"] for each in results}) == len(results)
    return {each["id"]: each for each in results}


@cache
def alone(model: Path, line: str, seed: int, window: int | None) -> str:
    """The text that `generate` writes for a row with this seed."""
    row = json.loads(line)
    sampling = {k: v for k, v in row.items() if k not in ("id", "prompt", "max_tokens")}
    if "logit_bias" in sampling:
        sampling["logit_bias"] = tuple(sampling["logit_bias"])
    setup = Setup(model=str(model), window=window, seed=seed, sampling=sampling)
    most = row.get("max_tokens", 2_048)
    with begin(Request(setup=setup, prompt=row["prompt"], max_tokens=most, lookup=False)) as run:
        # The last piece may be the end of the line.
        return "".join(piece.text for piece in run if piece.id is not None or piece.text != "\n")


def check_alone(
    model: Path, rows: list[Record], results: Mapping[Any, Record], window: int | None = WINDOW
) -> None:
    assert len(results) == len(rows)
    for row in rows:
        result = results[row["id"]]
        assert result["text"] == alone(model, json.dumps(row), result["seed"], window), row


def test_a_row_is_what_it_would_be_alone(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts are read together, and none sees the padding of its own or of another."""
    groups: list[list[int]] = []
    together = batch_run.prefill_together

    def seen(network: Any, cache: Any, texts: list[np.ndarray], **options: Any) -> Any:
        groups.append([len(each) for each in texts])
        return together(network, cache, texts, **options)

    monkeypatch.setattr(batch_run, "prefill_together", seen)
    rows = prompts(examples(14))
    check_alone(tiny_model, rows, run_batch(tiny_model, rows, rows=8))
    assert max(map(len, groups)) > 4
    assert max(len(set(each)) for each in groups) > 2
    assert sum(map(len, groups)) > 9
    assert all(len(each) * max(each) <= batch_run.TOKENS_TOGETHER for each in groups)


def test_a_row_that_fills_its_window_leaves_the_others_before_it_would_evict(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others, the oldest tokens would go, the kept ones among them."""
    window = 64
    begin_step = RowsCache.begin_step

    def checked(rows: RowsCache) -> None:
        begin_step(rows)
        assert all(row is None or row.total <= window for row in rows._rows)

    monkeypatch.setattr(RowsCache, "begin_step", checked)
    rows: list[Record] = [
        {"id": "grows", "prompt": "grow", "max_tokens": 90, "temp": 1.0},
        {"id": "is long", "prompt": "long " * 20, "max_tokens": 9},
        {"id": "fits", "prompt": "fit", "max_tokens": 9},
    ]
    # And those that end right before, at and after the point at which their windows are full.
    (one,) = run_batch(tiny_model, [{"id": 0, "prompt": "x", "max_tokens": 1}], rows=1).values()
    room = window - one["prompt_tokens"]
    rows += [{"id": n, "prompt": "x", "max_tokens": room + n} for n in range(-1, 4)]
    results = run_batch(tiny_model, rows, rows=len(rows), window=window, ignore_eos=True)
    for row in rows:
        own = run_batch(tiny_model, [row], rows=1, window=window, ignore_eos=True)[row["id"]]
        for name in ("text", "evicted_tokens", "generated_tokens"):
            assert results[row["id"]][name] == own[name]
        assert own["generated_tokens"] == row["max_tokens"]
    evicted = {id_ for id_, result in results.items() if result["evicted_tokens"]}
    assert evicted == {"grows", "is long", 2, 3}


def test_what_a_row_asks_for_is_for_that_row_only(tmp_path: Path) -> None:
    """Constraints, ends, log-probabilities, how long it thinks; the last row asks for no more."""
    template = CHAT_TEMPLATE.replace("assistant\\n", "assistant\\n<think>")
    model = write_tiny_model(tmp_path / "thinks", chat_template=template)
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    rows: list[Record] = [
        {"id": "choice", "messages": said, "choice": ["yes", "no"], "temp": 1.0},
        {"id": "schema", "prompt": "b", "schema": {"enum": [1, 22, 333]}, "temp": 1.0},
        {"id": "regex", "prompt": "c", "regex": "[a-f]{30}", "temp": 1.0, "logprobs": 2},
        {"id": "logprobs", "prompt": "d", "max_tokens": 99, "temp": 1.0, "logprobs": 3},
        {"id": "cut", "prompt": "e", "regex": "[a-f]{30}", "max_tokens": 90},
        {"id": "stopped", "prompt": "f", "stop": list("aeiou"), "max_tokens": 90, "system": "s"},
        {"id": "free", "prompt": "g", "top_p": 0.5, "min_tokens": 151},
    ]
    rows = [{**row, "think_budget": 3 * n} for n, row in enumerate(rows)]
    results = run_batch(model, rows, rows=7, max_tokens=150)
    assert results["choice"]["text"] in ("yes", "no")
    assert results["schema"]["value"] in (1, 22, 333)
    assert (len(results["regex"]["text"]), results["regex"]["complete"]) == (30, True)
    assert (results["cut"]["complete"], results["cut"]["finish_reason"]) == (False, "length")
    assert results["free"]["generated_tokens"] > 9
    assert [each.split()[0] for each in results["free"]["notices"]] == ["--top-p", "--min-tokens"]
    assert {len(each["top"]) for each in results["logprobs"]["logprobs"]} == {3}
    for row in rows[::2]:
        own, beside = run_batch(model, [row], max_tokens=150)[row["id"]], results[row["id"]]
        # A character that has begun is completed first.
        assert own["thought_tokens"] - row["think_budget"] in range(GRACE)
        assert own["thought_cut"] is True
        assert own.keys() == beside.keys()
        for name in own.keys() - {"logprobs", "ttft_s", "seconds", "cached_tokens"}:
            assert own[name] == beside[name], name
        for one, other in zip(own.get("logprobs", ()), beside.get("logprobs", ()), strict=True):
            assert one["text"] == other["text"]
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


def test_the_seed_of_a_row_depends_on_the_seed_and_its_id_only() -> None:
    row = Row(number=1, id="a", prompt="x")
    assert row_seed(7, row) == row_seed(7, Row(number=9, id="a", prompt="y"))
    others = (row_seed(8, row), row_seed(7, Row(number=1, id="b", prompt="x")))
    assert row_seed(7, row) not in others


def test_a_shared_prefix_is_stored_once(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[int, int]] = []
    begin_step = RowsCache.begin_step

    def seen(rows: RowsCache) -> None:
        held.append((rows.seats, sum(layer.nbytes for layer in rows)))
        begin_step(rows)

    monkeypatch.setattr(RowsCache, "begin_step", seen)
    rows: list[Record] = [
        {"id": n, "prompt": "the same words " * 50 + f"{n}" * (1 + n % 3), "max_tokens": 4 + n}
        for n in range(8)
    ]
    results = run_batch(tiny_model, rows, rows=8, window=None)
    # Without the first step, which is that of the trial.
    most, most_bytes = max(held[1:])
    fewest, fewest_bytes = min(held[1:])
    assert (most, fewest) == (8, 2)
    assert most_bytes < 2 * fewest_bytes
    check_alone(tiny_model, rows, results, None)


def test_a_shared_prefix_longer_than_the_window_is_read_as_if_alone(tiny_model: Path) -> None:
    """The prefix was read first, which evicts other tokens than reading the prompt in one go."""
    shared = ("shared words here " * 3, "shared words here " * 10)
    rows: list[Record] = [
        {"id": n, "prompt": shared[n % 2] + f"{n}" * (1 + n % 3), "max_tokens": 20}
        for n in range(5)
    ]
    check_alone(tiny_model, rows, run_batch(tiny_model, rows, rows=4, window=64), 64)


@pytest.mark.parametrize("side_by_side", [1, 3])
def test_a_row_that_cannot_go_on_fails_alone(side_by_side: int, tiny_model: Path) -> None:
    """It ended the whole batch, and on every run again. No escape can write these characters."""
    properties = {"b": {"const": 1}, "a": {"type": "string", "pattern": "^[\\x01-\\x07]$"}}
    stuck = {"anyOf": [{"type": "object", "properties": properties, "required": ["b", "a"]}]}
    rows: list[Record] = [
        {"id": 1, "prompt": "a", "max_tokens": 9},
        {"id": 2, "prompt": "b", "schema": stuck},
        {"id": 3, "prompt": "c", "max_tokens": 9},
        {"id": 4, "prompt": "d", "logit_bias": ["288=1"]},
    ]
    results = run_batch(tiny_model, rows, rows=side_by_side)
    begun = [results[n].get("error", "")[:12] for n in range(1, 5)]
    assert begun == ["", "the answer g", "", "--logit-bias"]
    assert "has the id 288, but the model has only 288 tokens" in results[4]["error"]


def test_the_schema_of_a_row_is_never_read_from_a_file(tiny_model: Path, tmp_path: Path) -> None:
    """The rows may come from a stranger, and the path may be that of a private file or a device."""
    path = tmp_path / "schema.json"
    path.write_text('{"enum": [5]}')
    named = {"id": "named", "prompt": "a", "schema": str(path), "max_tokens": 3}
    results = run_batch(tiny_model, [named, {"id": "short", "prompt": "a", "schema": "ok bool"}])
    assert "error" in results["named"]
    assert results["short"]["value"]["ok"] in (True, False)


def test_rows_run_as_the_machine_and_the_model_let_them(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    rows = prompts(6)
    with monkeypatch.context() as patch:
        short = SimpleNamespace(**{**vars(platform), "free_memory_bytes": lambda: 60_000})
        patch.setattr(batch_run, "platform", short)
        check_alone(tiny_model, rows, run_batch(tiny_model, rows, rows=6, notices=notices))
    assert "memory is short" in notices.pop(0)
    notices.clear()
    with monkeypatch.context() as patch:
        patch.setattr(trials, "plain_refusal", lambda *_: "it cannot")
        check_alone(tiny_model, rows, run_batch(tiny_model, rows, notices=notices))
    assert notices == ["rows run one after the other: it cannot"]


# Input that is slow to come


def test_a_row_does_not_wait_for_the_next_line_and_a_batch_that_waits_stops_when_asked(
    tiny_model: Path,
) -> None:
    """A program that sends a line and waits for its answer waited for ever, for other rows."""
    answers: queue.Queue[str] = queue.Queue()
    asked = threading.Event()
    reader, writer = os.pipe()
    request = BatchRequest(setup=Setup(model=str(tiny_model), window=WINDOW, seed=7))
    with (
        os.fdopen(writer, "wb", buffering=0) as pipe,
        os.fdopen(reader, "rb") as piped,
        open_batch(request, write=answers.put, piped=piped) as batch,
    ):
        read: list[tuple[int, int]] = []
        results = batch.results(asked.is_set, lambda figures: read.append(figures.reading))
        thread = threading.Thread(target=lambda: list(results))
        thread.start()
        try:
            for number in range(3):
                pipe.write(b'{"id": %d, "prompt": "a", "max_tokens": 3}\n' % number)
                answer = json.loads(answers.get(timeout=60))
                assert answer["id"] == number
                tokens = answer["prompt_tokens"] - 1
                assert {(0, tokens), (tokens, tokens)} <= {*read}
        finally:
            # The pipe stays open.
            asked.set()
            thread.join()
