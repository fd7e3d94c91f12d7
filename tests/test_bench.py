"""The tools of the benchmarks: interleaved runs, spreads, texts, each benchmark's arithmetic."""

import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.bench import (
    batch_prefix,
    batch_speed,
    catalog,
    chat,
    documents,
    memory,
    prefill,
    recall,
    startup,
    stream,
    text,
    theirs,
    workloads,
)
from mlxchat.bench.long_text import long_text
from mlxchat.bench.machine import this_machine
from mlxchat.bench.paired import Side, Spread, differences, interleave, ratios, verdict
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.record import Circumstances, lines
from mlxchat.bench.report import figure
from mlxchat.bench.scheduler import run_rows
from mlxchat.bench.subject import SENTENCES, Subject
from mlxchat.bench.tiny import tiny_config
from mlxchat.cache import make_cache
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.lookup import History
from mlxchat.engine.row_costs import RowCosts
from mlxchat.errors import InputError, ModelError
from mlxchat.models.load import load
from mlxchat.models.skeleton import named_parameters
from scripts.families import build_family, family_config
from scripts.tiny_model import write_tiny_model
from tests.conftest import build_random_model

NUMBERS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20)
NO_TICK = lambda done, total, what: None  # noqa: E731


@pytest.fixture
def subject(tiny_model: Path, tmp_path: Path) -> Subject:
    return Subject(
        tiny_model,
        "tiny",
        partial(load, str(tiny_model), offline=True),
        scratch=tmp_path,
        tick=NO_TICK,
        quick=True,
        notify=lambda _: None,
    )


def side(name: str, log: list[str], give: Callable[[], float] = lambda: 1.0) -> Side[float]:
    def run() -> float:
        log.append(name)
        return give()

    return Side(name, run, warm_up=lambda: log.append(f"warm {name}"))


# Interleaved runs


def test_sides_are_warmed_up_once_and_run_in_turn() -> None:
    log: list[str] = []
    list(interleave([side("A", log), side("B", log)], 3, NO_TICK))
    assert log == ["warm A", "warm B", "A", "B", "A", "B", "A", "B"]


def test_each_run_yields_all_results_so_far() -> None:
    values = iter([1.0, 2.0, 3.0, 4.0])
    sides = [side(name, [], lambda: next(values)) for name in "AB"]
    assert list(interleave(sides, 2, NO_TICK)) == [
        [[1.0], []],
        [[1.0], [2.0]],
        [[1.0, 3.0], [2.0]],
        [[1.0, 3.0], [2.0, 4.0]],
    ]


def test_an_interrupted_run_keeps_the_earlier_ones() -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    measured = interleave([side("A", []), side("B", [], interrupt)], 2, NO_TICK)
    so_far = next(measured)
    with pytest.raises(KeyboardInterrupt):
        next(measured)
    assert so_far == [[1.0], []]


def test_progress_counts_every_run_and_names_it() -> None:
    ticks: list[tuple[int, int, str]] = []
    list(interleave([side("A", []), side("B", [])], 2, lambda *tick: ticks.append(tick)))
    assert ticks == [
        *((0, 4, "warming up: A"), (0, 4, "warming up: B")),
        *((0, 4, "A"), (1, 4, "B"), (2, 4, "A"), (3, 4, "B"), (4, 4, "")),
    ]


def test_memory_of_the_previous_run_is_freed_before_each_run() -> None:
    before: list[int] = []

    def litter() -> float:
        before.append(mx.get_active_memory())
        # A cycle, which only the garbage collector frees.
        ring: list[Any] = [mx.zeros((256, 1024)) + 1]
        ring.append(ring)
        mx.eval(ring[0])
        return 0.0

    gc.disable()
    try:
        list(interleave([side("A", [], litter), side("B", [], litter)], 3, NO_TICK))
    finally:
        gc.enable()
    assert len(set(before)) == 1


# Statistics of runs


@given(NUMBERS)
def test_a_spread_is_the_median_minimum_and_maximum(values: list[float]) -> None:
    ordered = sorted(values)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    found = Spread.of(values)
    assert found.median == pytest.approx(middle)
    assert (found.min, found.max, found.runs) == (ordered[0], ordered[-1], n)


def test_a_slowdown_of_the_machine_does_not_change_ratios() -> None:
    """B takes twice as long as A in every round, and both take ten times as long from the second,
    last and interrupted round on: the medians alone would say 1.1."""
    a, b = [1.0, 10.0, 10.0], [2.0, 20.0]
    assert ratios(b, a) == Spread(2.0, 2.0, 2.0, 2)
    assert differences(b, a) == Spread(5.5, 1.0, 10.0, 2)
    assert ratios([], a) is None


@pytest.mark.parametrize(
    ("ratio", "word"),
    [
        (Spread(1.2, 1.1, 1.3, 3), "more"),
        (Spread(0.8, 0.7, 0.9, 3), "less"),
        (Spread(1.2, 0.9, 1.3, 3), "unclear"),
        (Spread(1.01, 0.9, 1.3, 3), "tie"),
        (Spread(0.99, 0.985, 0.995, 3), "tie"),
        (None, ""),
    ],
)
def test_a_ratio_has_a_one_word_verdict(ratio: Spread | None, word: str) -> None:
    assert verdict(ratio, "more", "less") == word


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (0.07123, "0.071"), (0.9996, "1.00"), (1.005, "1.00"), (9.996, "10.0")),
        *((17.24, "17.2"), (99.96, "100"), (999.4, "999"), (1234.5, "1,234"), (-0.147, "-0.147")),
    ],
)
def test_figures_have_three_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_infinity_and_nan_are_null_in_a_record() -> None:
    found = [startup.StartFigures("mlxchat", "--help", Spread(math.inf, 0.1, math.nan, 2), None)]
    circumstances = Circumstances(
        *("startup", "2026-01-01T00:00:00+00:00", "mlxchat bench", True, True, "m", "auto", None),
        *(None, this_machine()),
    )
    (line,) = lines(found, circumstances)
    record = json.loads(line)
    assert record["figures"]["seconds"] == {"median": None, "min": 0.1, "max": None, "runs": 2}
    assert record["machine"] == asdict(this_machine()) | {"load": record["machine"]["load"]}


# Texts


def texts(*lengths: int) -> Callable[[], Iterator[text.Text]]:
    return lambda: (text.Text(f"of {n}", "x" * n) for n in lengths)


def test_the_longest_text_is_found() -> None:
    assert text.find_text([texts(3), texts(), texts(5, 4)]).source == "of 5"


def test_without_a_text_the_error_names_the_option() -> None:
    with pytest.raises(InputError, match="give one with text"):
        text.find_text([texts()])


def test_python_comes_with_a_long_text() -> None:
    (found,) = text.pydoc_topics()
    assert len(found.text) > 100_000
    assert "assignment" in found.text


def test_system_files_are_found(tmp_path: Path) -> None:
    licence = tmp_path / "usr/share/common-licenses/GPL-3"
    licence.parent.mkdir(parents=True)
    licence.write_text("Everyone is permitted")
    help_ = tmp_path / "usr/share/vim/vim91/doc/options.txt"
    help_.mkdir(parents=True)
    assert list(text.files(tmp_path)) == [text.Text(str(licence), "Everyone is permitted")]


def test_a_short_text_is_refused_by_name(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("ten bytes!")
    named = Subject(
        subject.directory,
        "tiny",
        lambda: subject.model,
        scratch=tmp_path,
        tick=NO_TICK,
        text=str(tmp_path / "short.txt"),
        notify=lambda _: None,
    )
    assert len(named.text_ids(10, 20)) == 10
    with pytest.raises(InputError, match=r"short\.txt has only 10 of the 11 tokens needed.*text"):
        named.text_ids(11, 20)


def test_a_text_is_cut_to_the_requested_length(subject: Subject) -> None:
    ids = subject.text_ids(1, 50)
    assert len(ids) == 50
    assert subject.text_source is not None
    assert "topics" in subject.text_source


# The benchmarks


def test_each_benchmark_is_a_module_with_three_functions() -> None:
    for entry in catalog.BENCHES:
        bench = catalog.load(entry.name)
        assert all(callable(getattr(bench, name)) for name in ("measure", "tables", "charts"))


def test_a_stream_within_the_window_has_the_losses_of_plain_attention(subject: Subject) -> None:
    network, ids = subject.model.network, subject.text_ids(100, 100)
    found = list(stream.losses(network, make_cache(network, 100, 4), ids, step_size=7))
    logits = np.array(network(mx.array(ids)[None])[0]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [-logprobs[n, ids[n + 1]] for n in range(99)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_recomputed_tokens_see_their_window_and_no_more(subject: Subject) -> None:
    network, ids = subject.model.network, subject.text_ids(400, 400)
    place, window = 200, 96
    found = stream._recomputed(network, ids, place, window)
    start = place + 1 + stream.STRETCH // 2 - window
    # The same tokens after others: nothing before the window matters.
    others = np.concatenate([np.zeros(start, ids.dtype), ids[start:]])
    assert stream._recomputed(network, others, place, window) == found
    alone = list(
        stream.losses(network, make_cache(network), ids[start : place + stream.STRETCH + 1], 512)
    )
    np.testing.assert_allclose(found, alone[-stream.STRETCH :], rtol=1e-4)


def test_perplexity_is_the_exponential_of_the_mean_or_none_on_overflow() -> None:
    assert stream.perplexity([math.log(2), math.log(8)]) == pytest.approx(4)
    assert stream.perplexity([800.0]) is None


def test_recall_brings_back_what_the_window_forgot(subject: Subject) -> None:
    *_, found = recall.measure(subject)
    by_way = {each.way: each for each in found}
    assert by_way[recall.WITH].found >= 4
    assert by_way[recall.WITH].wrong <= 3
    assert 10 < by_way[recall.WITH].quote_tokens <= 512 / 8
    assert by_way[recall.WITHOUT].quote_tokens == 0
    assert all(each.logprob < 0 for each in found)


def test_passages_of_a_document_have_the_facts_that_rolled_out_of_the_window(
    subject: Subject,
) -> None:
    *_, found = documents.measure(subject)
    by_way = {each.way: each for each in found}
    assert by_way["passages"].found == by_way["passages"].facts
    assert by_way["roll"].found == 0
    assert by_way["passages"].prompt_tokens < 1_024 < by_way["roll"].prompt_tokens
    assert by_way["map"].prompt_tokens < 1_024


def test_a_long_text_has_each_fact_once_and_few_paragraphs_twice() -> None:
    text = long_text(REPORTING.facts, REPORTING.topics, 100_000)
    assert 0.98 < len(text.encode()) / 100_000 < 1.02
    for fact in REPORTING.facts:
        assert text.count(fact.statement) == 1
        assert not fact.change or text.index(fact.change) > text.index(fact.statement)
    paragraphs = text.split("\n\n")
    assert len(set(paragraphs)) > 0.95 * len(paragraphs)


def test_planted_facts_are_forgotten_and_their_answers_are_in_them() -> None:
    turns, places = recall.conversation(REPORTING, 60)
    for fact in REPORTING.facts:
        last = turns[places[fact.statement][-1] - 1]
        assert fact.answer in last.user
        assert not last.user.startswith(fact.answer)


def test_all_ways_of_the_chat_benchmark_say_the_same_and_overflow_the_window(
    subject: Subject,
) -> None:
    *_, found = chat.measure(subject)
    by_way = {way: [each for each in found if each.way == way] for way in map(str, chat.WAYS)}
    assert [each.turn for each in by_way["shift"]] == list(range(1, chat.QUICK.turns + 1))
    assert by_way["shift"][-1].forgotten_turns > 0
    assert by_way["refill"][-1].prefilled_tokens > by_way["shift"][-1].prefilled_tokens
    # "Everything" reads all the turns' tokens and the replies, each of full length.
    for read in by_way["everything"]:
        own = sum(each.own_tokens for each in by_way["shift"][: read.turn])
        assert read.prefilled_tokens == own + (read.turn - 1) * chat.QUICK.reply


def test_smaller_steps_need_less_memory(subject: Subject) -> None:
    *_, found = prefill.measure(subject)
    peaks = [each.peak_memory_bytes.median for each in found]
    assert [each.step for each in found] == ["64", "128", "all at once"]
    # Two cores compute parts of a step at the same time, and which arrays coexist is up to chance.
    assert max(peaks[:2]) < peaks[-1]
    assert found[-1].speed_ratio is None


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({256: 99.0, 512: 98.5, 1_024: 100.0, 2_048: 90.0}, 512),
        ({256: 80.0, 512: 90.0, 1_024: 99.0, 2_048: 100.0}, 1_024),
        ({256: 100.0, 512: 90.0, 1_024: 80.0, 2_048: 70.0}, 256),
        ({128: 99.0, 256: 100.0}, None),
    ],
)
def test_the_smallest_of_the_fastest_steps_is_recommended(
    speeds: dict[int, float], best: int | None
) -> None:
    found = [
        prefill.PrefillFigures(
            side=side,
            prompt_tokens=4_232,
            step_size=step,
            tokens_per_s=Spread.of([speed]),
            peak_memory_bytes=Spread.of([1.0]),
            ratio_to="mlx-lm",
            speed_ratio=None,
            memory_ratio=None,
        )
        # All at once, and the other program: neither can be recommended.
        for side, step, speed in [
            *(("mlxchat", step, speed) for step, speed in speeds.items()),
            ("mlxchat", 4_232, 999.0),
            ("mlx-lm", 2_048, 999.0),
        ]
    ]
    assert prefill.best_step(found) == best


def test_a_shell_loop_generates_what_the_rows_do(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    amounts = batch_prefix.Amounts(prompts=2, shared=40, tokens=3, rounds=1)
    prompts = batch_prefix.sharing_prompts(subject, amounts)
    assert len(set(prompts)) == 2
    assert all(prompt.startswith(SENTENCES[0][:40]) for prompt in prompts)
    outputs: list[str] = []
    run = subprocess.run

    def keeps(*arguments: Any, **options: Any) -> Any:
        done = run(*arguments, **options)
        outputs.append(done.stdout)
        return done

    monkeypatch.setattr(batch_prefix.subprocess, "run", keeps)
    loop = batch_prefix.Loop(subject, prompts, amounts.tokens, with_cache=False)
    assert loop.seconds() > 0
    rows = run_rows(subject.model, prompts, amounts.tokens, rows=2, notify=subject.notify)
    assert sorted(result.text + "\n" for result in rows) == sorted(outputs)


def test_the_first_process_of_a_shell_loop_fills_the_prefix_cache(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted once, and the others are multiplied."""
    caches: list[str] = []

    def seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
        caches.append(environment["XDG_CACHE_HOME"])
        return 10.0 if len(caches) == 1 else 1.0

    monkeypatch.setattr(batch_prefix, "process_seconds", seconds)
    loop = batch_prefix.Loop(subject, ["a"] * 64, 1, with_cache=True)
    assert loop.seconds() == 10 + 63
    assert len(caches) == batch_prefix.PROCESSES
    assert set(caches) == {str(subject.scratch / "caches-1")}


def test_all_sides_generate_the_same_number_of_tokens(subject: Subject) -> None:
    prompts = batch_speed.different_prompts(subject.model, 3, 20)
    assert len({prompt[:1] for prompt in prompts}) == 3
    given: dict[str, int] = {}
    for generate in (batch_speed.generate_side_by_side, batch_speed.generate_theirs):
        timer = batch_speed.Timer()
        generate(subject, prompts, 5, timer.take)
        given[generate.__name__] = timer.tokens
    assert set(given.values()) == {15}


def test_a_workload_has_the_same_tokens_with_drafts_without_and_from_mlx_lm(
    subject: Subject,
) -> None:
    """All runs continue the same prompt, from a cache that no earlier run has changed."""
    *_, found = workloads.measure(subject, theirs.load_tokenizer(subject.directory))
    names = [each.name for each in workloads.workloads(quick=True)]
    assert [each.workload for each in found] == [name for name in names for _ in range(2)]
    assert all(each.same_tokens == each.tokens == workloads.MIN_TOKENS for each in found)
    assert all(each.prompt_tokens > each.tokens for each in found)
    assert all((each.speed_ratio is None) == (each.side == "mlx-lm") for each in found)


def test_a_workload_that_foresees_its_reply_accepts_drafts(subject: Subject) -> None:
    """A tiny model soon repeats itself."""
    model = subject.model
    ids = workloads.prompt_ids(model, workloads.workloads(quick=True)[-1])
    reply = workloads.Reply.expected(model, "chat", ids, max_tokens=100)
    drafter = Drafter(History(), 15, {1024: RowCosts({1: 1.0, 16: 1.1})})
    drafter.history.extend(np.array([*ids[-10:], *reply.tokens], np.int32))
    run = reply.decode(drafter)
    assert run.ids == reply.tokens
    assert 0 < run.accepted <= run.drafted


def test_a_reply_counts_up_to_its_end(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject.model
    ids = workloads.prompt_ids(model, workloads.workloads(quick=True)[-1])
    whole = workloads.Reply.expected(model, "chat", ids, max_tokens=40).tokens
    end = next(n for n in range(len(whole) - 1, -1, -1) if whole[n] not in whole[:n])
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset({whole[end]}))
    assert len(workloads.Reply.expected(model, "chat", ids, 40).tokens) == max(end, 16)


def test_a_workload_longer_than_the_models_positions_is_left_out(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 learned 1,024 positions, fewer than a long file takes."""
    notices: list[str] = []
    subject.notify = notices.append
    monkeypatch.setattr("mlxchat.models.model.learned_positions", lambda _: 20)
    assert list(workloads.measure(subject, None)) == []
    assert notices[0] == "edit needs more than the model's 20 positions"


def test_memory_is_sampled_twenty_times(subject: Subject) -> None:
    *_, found = memory.measure(subject)
    assert [each.tokens for each in found] == list(range(20, 401, 20))
    weights = sum(array.nbytes for _, array in named_parameters(subject.model.network))
    assert all(each.active_bytes > weights for each in found)


def test_a_process_is_timed_up_to_its_first_character() -> None:
    """After mlx-lm's line of equals signs, and without waiting for the rest."""
    code = "import time; print('====', flush=True); print('x', flush=True); time.sleep(1)"
    assert startup.seconds_to_output([sys.executable, "-c", code], {}) > 0


def test_a_failed_process_is_an_error_with_its_last_line() -> None:
    code = "import sys; sys.exit('first\\nno such model')"
    with pytest.raises(ModelError, match=r"status 1: no such model$"):
        startup.seconds_to_output([sys.executable, "-c", code], {})


def test_mlx_lm_gets_weights_in_the_same_dtype_as_ours(subject: Subject) -> None:
    directory = theirs.same_weights(subject)
    assert directory != subject.directory
    copied: Any = mx.load(str(directory / "model.safetensors"))
    ours = dict(named_parameters(subject.model.network))
    assert copied.keys() == ours.keys()
    assert all(mx.array_equal(copied[name], ours[name]) for name in ours)
    names = {path.name for path in subject.directory.iterdir()}
    assert {path.name for path in directory.iterdir()} == names


def test_warnings_of_transformers_are_not_shown(tmp_path: Path) -> None:
    config = family_config("mamba")
    assert "rope_scaling" in config, "this is what it warns of"
    tokenizer = theirs.load_tokenizer(write_tiny_model(tmp_path / "m", config=config))
    assert tokenizer.eos_token_ids == set()


def test_models_for_which_mlx_lm_ignores_a_window_are_detected() -> None:
    """llama and gemma3 make their own caches; some of gemma3's layers are bounded by design."""
    kept = {
        name: theirs.keeps_window(build_family(name), 16)
        for name in ("llama", "gemma3_text", "phi")
    }
    assert kept == {"llama": False, "gemma3_text": False, "phi": True}


def test_mlx_lms_rotating_cache_replaces_only_unbounded_layers() -> None:
    plain = theirs.rotating_cache(build_random_model(), 16, 4)
    assert [(type(each).__name__, each.max_size, each.keep) for each in plain] == [
        ("RotatingKVCache", 16, 4)
    ] * tiny_config()["num_hidden_layers"]
