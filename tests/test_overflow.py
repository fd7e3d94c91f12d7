"""Documents that are larger than the window, in each way of `--overflow`."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat import paths
from mlxchat.app.ranks import check_ranks
from mlxchat.engine.brief import write_brief
from mlxchat.engine.reply import Reply
from mlxchat.errors import UsageError
from mlxchat.models.model import Alone
from mlxchat.passages import index as index_module
from mlxchat.request import Overnight, Request, Setup
from mlxchat.settings import Overflow
from scripts.families import write_family
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
    monkeypatch.setattr("mlxchat.engine.generate.prefill", None)
    run = generate("--overflow", "stop", "-f", str(report), QUESTION)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(
        r"mlxchat: error: the prompt has [\d,]+ tokens, and the window of 1,000 has room for 980 "
        r"and an answer: enlarge --max-kv-size, or use --overflow roll, --overflow passages or "
        r"--overflow map\n",
        run.stderr,
    )


def test_a_document_that_fits_is_read_as_a_whole(generate: Generate, report: Path) -> None:
    arguments = ("-f", str(report), QUESTION)
    whole = generate(*arguments, window=20_000).stdout
    for way in Overflow:
        run = generate("--overflow", way, *arguments, window=20_000)
        assert (run.returncode, run.stdout, run.stderr) == (0, whole, "")


def test_a_model_that_evicts_nothing_is_not_stopped(tmp_path: Path, report: Path) -> None:
    model = write_family(tmp_path / "model", "rwkv7", "float32")
    run = run_in_process(
        *("generate", "-m", str(model), "--max-kv-size", "128", "-n", "3", "--overflow", "stop"),
        *("-f", str(report), QUESTION),
    )
    assert (run.returncode, run.stderr) == (0, "")


# What cannot be combined


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("passages",), "needs a question as the prompt, after the documents"),
        (("map", "-"), "needs a question as the prompt, after the documents"),
        (("map", "  "), "needs a question as the prompt, after the documents"),
        (("passages", "--raw", QUESTION), "needs the chat template, which --raw bypasses"),
        (("map", "--block", "x", QUESTION), "and --block cannot be combined: pass the documents"),
        (("map", "--checkpoint", "night", QUESTION), "and --checkpoint cannot be combined"),
    ],
)
def test_what_needs_a_question_says_so(
    generate: Generate, arguments: tuple[str, ...], error: str
) -> None:
    run = generate("--overflow", *arguments, stdin="text")
    assert (run.returncode, run.stdout) == (2, "")
    assert f"--overflow {arguments[0]} {error}" in run.stderr


class TwoRanks(Alone):
    size = 2


def test_ranks_cannot_read_in_sections() -> None:
    with pytest.raises(UsageError, match=r"cannot be used under mlx\.launch"):
        check_ranks(TwoRanks(), overflow="map")


# Passages


def test_passages_are_read_and_what_is_left_out_is_reported(
    generate: Generate, report: Path
) -> None:
    run = generate("--overflow", "passages", "--json", "-f", str(report), QUESTION)
    assert run.returncode == 0
    assert re.fullmatch(
        rf"mlxchat: {report}: larger than the window, read \d+ of \d+ passages \(lines \d+-\d+\); "
        r"\d\d\.\d% of the text is left out\n",
        run.stderr,
    )
    start, passages, *_, done = events_of(run.stdout)
    assert passages["event"] == "passages"
    (place,) = passages["passages"]
    first, last = place["lines"]
    assert place["file"] == str(report)
    assert first <= 21 <= last, "the line of the fact"
    assert done["passages"] == passages["passages"]
    assert start["prompt_tokens"] == done["prompt_tokens"] <= WINDOW - 20
    assert done["evicted_tokens"] == 0


def test_the_prompt_has_the_passages_with_their_places_before_the_question(
    unthinking_model: Path, report: Path
) -> None:
    asked = request(unthinking_model, report, overflow=Overflow.PASSAGES)
    with mlxchat.begin(asked) as run:
        prompt = run.prompt
        assert prompt is not None
        text = run.model.tokenizer.decode(prompt.ids)
        run.write()
    head, _, rest = text.partition(f"[{report}, lines ")
    assert head.endswith("user\n")
    assert rest.index(FACT) < rest.index(f"\n\n{QUESTION}")


def test_a_question_without_words_of_the_text_reads_the_beginning(
    generate: Generate, report: Path
) -> None:
    run = generate("--overflow", "passages", "--json", "-f", str(report), "Zusammenfassung?")
    assert run.returncode == 0
    assert (
        "no passage has a word of the question: reading the first ones; --overflow map reads "
        "everything"
    ) in run.stderr
    assert events_of(run.stdout)[-1]["passages"][0]["lines"][0] == 1


@pytest.mark.parametrize("way", ["passages", "map"])
def test_a_question_larger_than_the_window_is_refused(
    generate: Generate, report: Path, way: str
) -> None:
    run = generate("--overflow", way, "-f", str(report), "Ada? " * 300)
    assert (run.returncode, run.stdout) == (1, "")
    assert "the question and the template take" in run.stderr
    assert "--max-kv-size must be larger" in run.stderr


def test_passages_with_a_checkpoint_are_resumed(
    unthinking_model: Path, report: Path, tmp_path: Path
) -> None:
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


@pytest.fixture
def any_size_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxchat.app.overflow.MIN_KEPT_BYTES", 0)


@pytest.mark.usefixtures("any_size_is_kept")
def test_an_index_is_used_again_and_a_damaged_one_made_again(
    generate: Generate, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--overflow", "passages", "--json", "-f", str(report), QUESTION)
    first = events_of(generate(*arguments, window=500).stdout)[1]
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "_fill", None)
        assert events_of(generate(*arguments, window=500).stdout)[1] == first
    (index,) = paths.document_indexes_dir().iterdir()
    sound = index.read_bytes()
    index.write_bytes(sound[:4_096] + b"\xff" * 4_096 + sound[8_192:])
    run = generate(*arguments, window=500)
    assert (run.returncode, events_of(run.stdout)[1]) == (0, first)


@pytest.mark.usefixtures("any_size_is_kept")
def test_nothing_is_kept_of_a_pipe_or_without_the_prefix_cache(
    generate: Generate, report: Path
) -> None:
    generate("--overflow", "passages", QUESTION, stdin=report.read_text())
    generate("--overflow", "passages", "--no-prefix-cache", "-f", str(report), QUESTION)
    assert not paths.document_indexes_dir().exists()


# Map


def sections(stdout: str) -> list[dict[str, Any]]:
    return [each for each in events_of(stdout) if each["event"] == "section"]


@pytest.fixture
def asked(unthinking_model: Path, report: Path) -> Request:
    """A question about the report, to be read section by section."""
    return request(unthinking_model, report, overflow=Overflow.MAP, events=True)


def events_from(asked: Request) -> list[dict[str, Any]]:
    with mlxchat.begin(asked) as run:
        return [json.loads(piece.text) for piece in run]


def answers(events: list[dict[str, Any]]) -> list[str]:
    return [each["answer"] for each in events if each["event"] == "section"]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str]], None]:
    """Lets a function of the prompt write the answers from the sections."""

    def answer_with(write: Callable[[str], str]) -> None:
        def brief(reply: Reply, *others: Any, **how: Any) -> str:
            return write(reply.model.tokenizer.decode(reply.rest.tolist()))

        monkeypatch.setattr("mlxchat.app.overflow.write_brief", brief)

    return answer_with


def test_every_line_is_read_once_and_in_order(
    generate: Generate, report: Path, answering: Any
) -> None:
    answering(lambda prompt: prompt[-200:-180])
    run = generate("--overflow", "map", "--json", "-f", str(report), QUESTION)
    assert run.returncode == 0, run.stderr
    read = sections(run.stdout)
    assert len(read) > 5
    texts = report.read_text().split("\n")
    done = 0
    for each in read:
        first, last = each["lines"]
        assert not "".join(texts[done : first - 1]).strip()
        done = last
    assert done == len(texts)
    assert events_of(run.stdout)[-1]["finish_reason"] == "length"


def test_answers_from_several_documents_are_combined_until_they_fit(
    generate: Generate, tmp_path: Path, answering: Any
) -> None:
    """The name of combined answers grew with each round, and their lines were of two files."""
    asked = count()
    answering(lambda _: f"{next(asked)} {FILLER} {FILLER[:40]}")
    paths_ = [tmp_path / f"{name}.txt" for name in "abcdefgh"]
    for path in paths_:
        path.write_text("\n\n".join([FILLER] * 6))
    files = [word for path in paths_ for word in ("-f", str(path))]
    run = generate("--overflow", "map", "--json", *files, QUESTION)
    assert run.returncode == 0, run.stderr
    assert {each["file"] for each in sections(run.stdout)} == {str(path) for path in paths_}
    assert events_of(run.stdout)[-1]["prompt_tokens"] <= WINDOW - 20


def test_no_prompt_of_a_section_is_larger_than_the_window(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest: list[int] = []

    def watched(reply: Reply, limit: int, *others: Any, **how: Any) -> str:
        largest.append(len(reply.rest) + limit)
        return write_brief(reply, limit, *others, **how)

    monkeypatch.setattr("mlxchat.app.overflow.write_brief", watched)
    with mlxchat.begin(asked) as run:
        run.write()
        assert run.stats.evicted_tokens == 0
        assert run.stats.prompt_tokens <= WINDOW - 20
    assert len(largest) > 5
    assert max(largest) <= WINDOW


def test_a_stopped_reading_writes_what_there_is(
    asked: Request, report: Path, tmp_path: Path
) -> None:
    report.write_text(report.read_text()[:1_500])
    out, warned = tmp_path / "out", list[str]()
    asked = replace(asked, events=False, overnight=Overnight(output=out))
    with mlxchat.begin(asked, mlxchat.Observer(warn=warned.append)) as run:
        run.write(should_stop=lambda: run.reader is not None and len(run.reader.answers) > 1)
    assert (run.stats.complete, run.stats.finish_reason) == (False, "interrupted")
    assert run.stats.generated_tokens == 0
    assert warned == ["stopped after reading 2 sections"]
    assert re.fullmatch(r"\[.*, lines 1-\d+\]\n.*\n\n\[.*\]\n.*\n", out.read_text(), re.DOTALL)


def test_a_deadline_ends_the_reading(generate: Generate, report: Path) -> None:
    run = generate("--overflow", "map", "--for", "0.000001s", "--json", "-f", str(report), QUESTION)
    assert run.returncode == 4
    done = events_of(run.stdout)[-1]
    assert (done["finish_reason"], done["complete"]) == ("time", False)


@pytest.mark.usefixtures("any_size_is_kept")
def test_what_cannot_be_kept_is_reported_and_not_needed(generate: Generate, report: Path) -> None:
    paths.document_indexes_dir().parent.mkdir(parents=True)
    paths.document_indexes_dir().touch()
    run = generate("--overflow", "passages", "-f", str(report), QUESTION)
    assert run.returncode == 0
    assert len(re.findall("the index of .* is not kept: ", run.stderr)) == 1
