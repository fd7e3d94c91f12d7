"""Documents that are larger than the window, in each way of `--overflow`."""

import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat import paths
from mlxchat.app.overflow import FROM_SECTION, SectionReader
from mlxchat.engine.reply import Reply, Stats
from mlxchat.passages import index as index_module
from mlxchat.request import Overnight, Request, Setup
from mlxchat.settings import Overflow
from mlxchat.text.documents import open_documents
from tests.in_process import run_in_process
from tests.json_events import events_of

FILLER = "The committee met on the usual day and talked about the budget at some length."
FACT = "Ada Lovelace was born in London."
QUESTION = "Where was Ada Lovelace born?"
WINDOW = 1_000

Generate = Callable[..., Any]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """3,000 tokens of the tiny model, which has a token for each byte."""
    path = tmp_path / "report.txt"
    path.write_text("\n\n".join([*[f"{FILLER} {FILLER}"] * 10, FACT, *[FILLER] * 15]))
    return path


@pytest.fixture
def generate(unthinking_model: Path) -> Generate:
    def run(*arguments: str, window: int = WINDOW, stdin: str | None = None) -> Any:
        how = ("generate", "-m", str(unthinking_model), "--max-kv-size", str(window), "-n", "20")
        return run_in_process(*how, *arguments, stdin=stdin)

    return run


def request(model: Path, report: Path, **options: Any) -> Request:
    given = {"max_tokens": 20, "prompt": QUESTION, "files": (str(report),)}
    return Request(setup=Setup(str(model), window=WINDOW), **{**given, **options})


# Stop


def test_stop_refuses_a_prompt_that_does_not_fit_before_anything_is_read(
    generate: Generate, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxchat.engine.prefill.compute_step", None)
    run = generate("--overflow", "stop", "-f", str(report), QUESTION)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(
        r"mlxchat: error: the prompt has [\d,]+ tokens, and the window of 1,000 has room for 980 "
        r"and an answer: enlarge --max-kv-size or use --overflow roll, or see --overflow passages "
        r"or --overflow map\n",
        run.stderr,
    )


def test_a_document_that_fits_is_read_as_a_whole(generate: Generate, report: Path) -> None:
    arguments = ("-f", str(report), QUESTION)
    whole = generate(*arguments, window=20_000).stdout
    for way in Overflow:
        run = generate("--overflow", way, *arguments, window=20_000)
        assert (run.returncode, run.stdout, "most 4,096 tokens" in run.stderr) == (0, whole, True)


NEEDS = "--overflow {} needs a question as the prompt, without -p or -"
TAKES = "the question and the template take"


@pytest.mark.parametrize(
    ("way", "question", "status", "complaint"),
    [
        *(("passages", [], 2, NEEDS), ("map", ["-"], 2, NEEDS), ("map", ["  "], 2, "empty")),
        *((way, ["Ada? " * 300], 1, TAKES) for way in ("passages", "map")),
    ],
)
def test_a_question_that_is_missing_or_larger_than_the_window_is_refused(
    generate: Generate, way: str, question: list[str], status: int, complaint: str
) -> None:
    run = generate("--overflow", way, *question, stdin=FILLER * 40)
    assert (run.returncode, run.stdout) == (status, "")
    assert complaint.format(way) in run.stderr


def test_a_question_that_leaves_no_room_for_the_last_answer_is_refused(
    generate: Generate, tmp_path: Path
) -> None:
    """One answer was combined for ever, and for a template that is longer if it thinks, all."""
    thinks = tmp_path / "thinks.jinja"
    thinks.write_text(
        "{% if enable_thinking | default(true) %}{{ 'Think. ' * 1000 }}{% endif %}"
        "{% for each in messages %}{{ each.content }}{% endfor %}"
    )
    for asked in (["Ada? " * 1_160], ["--chat-template", str(thinks), "Who is Ada?"]):
        run = generate("--overflow", "map", "-n", "-1", *asked, window=8_192, stdin=FILLER * 300)
        assert (run.returncode, run.stdout) == (1, "")
        assert TAKES in run.stderr


# Passages


def test_passages_are_read_with_their_places_and_what_is_left_out_is_reported(
    unthinking_model: Path, report: Path
) -> None:
    asked = request(unthinking_model, report, overflow=Overflow.PASSAGES, events=True)
    warned: list[str] = []
    with mlxchat.begin(asked, mlxchat.Observer(warn=warned.append)) as run:
        assert run.prompt is not None
        text = run.model.tokenizer.decode(run.prompt.ids)
        start, passages, *_, done = events_of("".join(piece.text for piece in run))
    head, _, rest = text.partition(f"[{report}, lines ")
    assert head.endswith("user\n")
    assert rest.index(FACT) < rest.index(f"\n\n{QUESTION}")
    (place,) = passages["passages"]
    first, last = place["lines"]
    assert (place["file"], first <= 21 <= last) == (str(report), True), "the line of the fact"
    assert done["passages"] == passages["passages"]
    assert start["prompt_tokens"] == done["prompt_tokens"] <= WINDOW - 20
    assert done["evicted_tokens"] == 0
    (notice,) = warned
    assert re.fullmatch(
        rf"{report}: larger than the window, read \d+ of \d+ passages "
        rf"\(lines {first}-{last}\); \d\d\.\d% of the text is left out",
        notice,
    )


def test_a_question_without_its_words_reads_the_beginning(generate: Generate, report: Path) -> None:
    run = generate("--overflow", "passages", "--json", "-f", str(report), "Zusammenfassung?")
    assert run.returncode == 0
    assert "no passage stands out for the question: reading the first ones; --over" in run.stderr
    assert [each["lines"][0] for each in events_of(run.stdout)[-1]["passages"]] == [1]


def test_passages_are_resumed(unthinking_model: Path, report: Path, tmp_path: Path) -> None:
    """The prompt is in the checkpoint: the document is not needed again."""
    how = {"overflow": Overflow.PASSAGES, "ignore_eos": True}
    night = Overnight(checkpoint=tmp_path / "night", checkpoint_every=5)
    with mlxchat.begin(request(unthinking_model, report, overnight=night, **how)) as run:
        tokens = iter(range(12))
        run.write(should_stop=lambda: next(tokens, None) is None)
    text = report.read_text()
    report.unlink()
    with mlxchat.resume(tmp_path / "night") as run:
        run.write()
    report.write_text(text)
    other = Overnight(checkpoint=tmp_path / "once")
    with mlxchat.begin(request(unthinking_model, report, overnight=other, **how)) as run:
        run.write()
    resumed, once = (tmp_path / name / "output.txt" for name in ("night", "once"))
    assert resumed.read_bytes() == once.read_bytes()


def test_the_index_of_a_file_is_used_again_and_a_damaged_one_made_again(
    generate: Generate, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is kept of a pipe, or without the prefix cache."""
    monkeypatch.setattr("mlxchat.app.overflow.KEPT_BYTES", 0)
    directory = paths.document_indexes_dir()
    generate("--overflow", "passages", QUESTION, stdin=report.read_text())
    arguments = ("--overflow", "passages", "--json", "-f", str(report), QUESTION)
    generate("--no-prefix-cache", *arguments)
    assert not directory.exists()
    first = events_of(generate(*arguments, window=500).stdout)[1]
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "_made", None)
        assert events_of(generate(*arguments, window=500).stdout)[1] == first
    (index,) = directory.iterdir()
    sound = index.read_bytes()
    index.write_bytes(sound[:4_096] + b"\xff" * 4_096 + sound[8_192:])
    run = generate(*arguments, window=500)
    assert (run.returncode, events_of(run.stdout)[1]) == (0, first)
    index.unlink()
    directory.rmdir()
    directory.touch()
    run = generate(*arguments, window=500)
    assert (run.returncode, events_of(run.stdout)[1]) == (0, first)
    assert len(re.findall("the index of .* is not kept: ", run.stderr)) == 1


# Map


@pytest.fixture
def asked(unthinking_model: Path, report: Path) -> Request:
    """A question about the report, to be read section by section."""
    return request(unthinking_model, report, overflow=Overflow.MAP, events=True)


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the prompts of the sections, which get long answers at once."""
    prompts: list[str] = []

    def brief(reply: Reply, limit: int, *others: Any, **how: Any) -> str:
        assert len(reply.rest) + limit <= WINDOW
        prompts.append(reply.model.tokenizer.decode(reply.rest.tolist()))
        return f"{len(prompts)} {FILLER} {FILLER[:40]}"

    monkeypatch.setattr("mlxchat.app.overflow.write_brief", brief)
    return prompts


def test_every_word_is_read_once_and_in_order_however_long_a_document_is(
    asked: Request, tmp_path: Path, prompts: list[str]
) -> None:
    path = tmp_path / "short.txt"
    with mlxchat.begin(asked) as run:
        for length in range(1, 12):
            path.write_text("\n\n".join(f"{n} {FILLER * (1 + n % 4)}" for n in range(length)))
            (document,) = open_documents([str(path)], None, print, needs_pipe=False)
            reader = SectionReader(asked, [document], run.loaded, mlxchat.Observer())
            read = list(reader.read(lambda: False))
            document.close()
            sections = [each for each in prompts if FROM_SECTION in each]
            assert len(read) == len(sections)
            texts = [each.partition("]\n")[2].partition(FROM_SECTION)[0] for each in sections]
            assert "".join("".join(texts).split()) == "".join(path.read_text().split())
            assert reader.prompt is not None
            prompts.clear()


def test_sections_of_a_passage_too_large_have_their_own_lines(asked: Request, report: Path) -> None:
    report.write_text("".join(f"{n:04}\n" * (n % 3 > 0) or "\n" for n in range(1, 400)))
    with mlxchat.begin(asked) as run:
        assert run.reader is not None
        run.reader._room = 64
        sections = [*run.reader._sections()]
    assert len(sections) > 6
    for place, text in sections:
        wanted = report.read_text().split("\n")[place.first - 1 : place.last]
        assert text.partition("]\n")[2].strip() == "\n".join(wanted)


def test_answers_from_several_documents_are_combined_until_they_fit(
    generate: Generate, tmp_path: Path, prompts: list[str]
) -> None:
    """The name of combined answers grew with each round, and their lines were of two files."""
    paths_ = [tmp_path / f"{name}.txt" for name in "abcdefgh"]
    for path in paths_:
        path.write_text("\n\n".join([FILLER] * 6))
    files = [word for path in paths_ for word in ("-f", str(path))]
    run = generate("--overflow", "map", "--json", *files, QUESTION)
    assert run.returncode == 0, run.stderr
    events = events_of(run.stdout)
    read = [each["file"] for each in events if each["event"] == "section"]
    assert list(dict.fromkeys(read)) == [str(path) for path in paths_]
    assert events[-1]["prompt_tokens"] <= WINDOW - 20


def test_progress_is_in_time_and_counts_what_will_be_combined(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time left grew while an answer was written, and nothing was shown of their combining."""
    now, parts = 1.0, defaultdict[str, list[tuple[float, int, int]]](list)

    def brief(reply: Reply, limit: int, _: Any, **how: Any) -> str:
        nonlocal now
        for done in range(len(reply.rest)):
            now += 1
            how["on_prefill"](done, len(reply.rest))
        for done in range(limit):
            now += 30
            how["on_tokens"](done)
        return f"{now} {FILLER}"

    def counting(what: str, _: str) -> Any:
        return nullcontext(lambda done, total: parts[what].append((now, done, total)))

    monkeypatch.setattr("mlxchat.app.overflow.write_brief", brief)
    rates: dict[str, Any] = {"prefill_tokens_per_s": 30.0, "decode_tokens_per_s": 1.0}
    monkeypatch.setattr(Reply, "stats", Stats("stop", generated_tokens=WINDOW // 8, **rates))
    with mlxchat.begin(asked, mlxchat.Observer(counting=counting)) as run:
        run.write()
    assert [*parts][1:] == ["part 1 of 3: about", "part 2 of 3: about", "part 3 of 3:"]
    # After the first section, which shows what a written token takes.
    left = [s * (end - done) / done for s, done, end in parts["part 1 of 3: about"] if done > 120]
    assert len(left) > 1_000
    assert all(each < 1.1 * least for each, least in zip(left, accumulate(left, min), strict=True))


@pytest.mark.parametrize(("part", "events"), [(1, False), (1, True), (3, False)])
def test_stopped_reading_writes_what_there_is(
    asked: Request, report: Path, tmp_path: Path, part: int, events: bool
) -> None:
    report.write_text(report.read_text()[:1_500])
    out, warned = tmp_path / "out", list[str]()
    asked = replace(asked, events=events, overnight=Overnight(output=out))
    with mlxchat.begin(asked, mlxchat.Observer(warn=warned.append)) as run:
        reader: Any = run.reader
        is_due = (lambda: len(reader.answers) > 1) if part == 1 else (lambda: bool(run.prompt))
        run.write(should_stop=is_due)
    assert (run.stats.complete, run.stats.finish_reason) == (False, "interrupted")
    assert (run.stats.generated_tokens > 0) is (part == 1)
    text = f"{events_of(out.read_text())[-1]['text']}\n" if events else out.read_text()
    assert len(text.split("\n\n[")) == len(reader.answers)
    assert warned == ["stopped after reading 2 sections"] * (part == 1)
    assert re.fullmatch(r"\[.*, lines 1-\d+\]\n.*\n\n\[.*\]\n.*\n", text, re.DOTALL)


@pytest.mark.parametrize("way", ["map", "roll"])
def test_a_deadline_ends_the_reading(way: str, generate: Generate, report: Path) -> None:
    run = generate("--overflow", way, "--for", "0.000001s", "--json", "-f", str(report), QUESTION)
    assert run.returncode == 4
    done = events_of(run.stdout)[-1]
    assert (done["finish_reason"], done["complete"]) == ("time", False)
