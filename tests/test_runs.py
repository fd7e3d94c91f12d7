"""Long runs in this process: whatever cuts them off, the text is the same, the report true."""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mlxchat.app.begin import Changes, begin, record_of, request_of, resume
from mlxchat.app.opening import open_model
from mlxchat.app.run import Run
from mlxchat.errors import (
    ExitStatus,
    OutputError,
    RunEnded,
    SessionError,
    SnapshotBroken,
    SnapshotTooLarge,
    UsageError,
    WindowTooSmall,
)
from mlxchat.request import Overnight, Request, Setup
from mlxchat.settings import OnLoop, SamplingSettings
from mlxchat.store import tensor_file
from mlxchat.store.checkpoint import Checkpoint, RunRecord, from_json, to_json
from mlxchat.units import Observer
from tests.conftest import examples
from tests.failing_disk import KINDS, FailingDisk

TEXT = "The sea was calm, and nothing moved. "

Make = Callable[..., Request]


@pytest.fixture
def request_for(tiny_model: Path) -> Make:
    def make(overnight: Overnight | None = None, **options: Any) -> Request:
        setup = Setup(
            str(tiny_model),
            offline=True,
            window=64,
            prefill_step_size=8,
            sampling={"temp": 1.0},
            seed=3,
        )
        options = {"max_tokens": 25, "raw": True, "ignore_eos": True} | options
        return Request(setup, TEXT, overnight=overnight or Overnight(), **options)

    return make


@pytest.fixture
def whole(request_for: Make) -> str:
    """The text of a run that nothing cuts off."""
    with begin(request_for()) as run:
        # The last piece may be the end of the line.
        text = "".join(piece.text for piece in run if piece.id is not None or piece.text != "\n")
        with pytest.raises(UsageError, match="a run generates once"):
            next(iter(run))
        return text


class Cut(Exception):
    """Ends a run at a certain step of its prompt or its reply."""


def run_until(run: Run, step: int, night: Path, *, is_killed: bool) -> None:
    """Stop it after that many steps, if it has them; or leave its checkpoint as a kill would."""
    steps, stopped, killed = count(1), list[bool](), night.with_name("killed")

    def see(*_: object) -> None:
        if next(steps) == step:
            stopped.append(True)
            if is_killed:
                # A file that is being written has another name.
                shutil.copytree(night, killed, ignore=shutil.ignore_patterns(".*"))
                raise Cut

    with suppress(Cut), run:
        for _ in run.tokens(should_stop=lambda: bool(stopped), on_prefill=see):
            see()
    if killed.exists():
        shutil.rmtree(night)
        killed.rename(night)


def text_of(checkpoint: Path) -> str:
    """The output, with the line ends that the model wrote."""
    return (checkpoint / "output.txt").read_bytes().decode()


def test_a_long_document_does_not_evict_the_system_prompt_which_must_fit(request_for: Make) -> None:
    """Only the first four tokens stayed, and the rest of the system prompt was evicted."""
    for keep, kept in ((4, ""), (30, "The s")):
        request = request_for(raw=False, system="Be brief.")
        with begin(replace(request, setup=replace(request.setup, keep=keep))) as run:
            assert run.prompt is not None
            text = run.model.tokenizer.decode(run.prompt.ids[: run.loaded.keep].tolist())
            # Without its control tokens, which decoding omits.
            assert text == f"system\nBe brief.\nuser\n{kept}"
    with pytest.raises(WindowTooSmall, match=r"of 116 tokens: use 117 or more$") as refused:
        begin(request_for(raw=False, system="Be brief. " * 10))
    assert refused.value.exit_status == ExitStatus.USAGE


@given(st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=2))
@example([(3, True), (6, True), (9, False)])
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_cut_off_anywhere_and_resumed_writes_the_same_text(
    request_for: Make, whole: str, cuts: list[tuple[int, bool]]
) -> None:
    """While it reads its prompt, which can take a night, as while it writes."""
    with TemporaryDirectory() as directory:
        night = Path(directory) / "night"
        run = begin(request_for(Overnight(checkpoint=night, checkpoint_every=7)))
        for step, is_killed in cuts:
            run_until(run, step, night, is_killed=is_killed)
            if json.loads((night / "run.json").read_text())["ended"]:
                break
            # A copy wrote into the directory that it was copied from.
            night = night.rename(f"{night}x")
            run = resume(night)
        else:
            with run:
                run.write()
        for change in (Changes(), Changes(max_tokens=3)):
            with pytest.raises(RunEnded, match="already ended: length"), resume(night, **change):
                pass
        assert text_of(night) == whole
        (night / "output.txt").unlink()
        with pytest.raises(RunEnded, match=r"output\.txt, is gone"), resume(night):
            pass


def test_a_last_checkpoint_that_cannot_be_written_either_is_said_at_the_end(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning about the first comes hours before."""
    said, overnight = list[str](), Overnight(checkpoint=tmp_path / "night", checkpoint_every=7)
    with begin(request_for(overnight, max_tokens=24), Observer(warn=said.append)) as run:
        monkeypatch.setattr(tensor_file, "write", Mock(side_effect=OSError("full")))
        run.write()
    assert [each[:20] for each in said] == ["cannot write a check", "the last checkpoint "]


@given(st.integers(0, 60), st.sampled_from([1, 2, 1000]), st.sampled_from([KINDS, ["replace"]]))
@example(2, 2, ["replace"])
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_disk_that_fails_at_any_call_costs_no_text(
    request_for: Make, whole: str, first: int, calls: int, kinds: Sequence[str]
) -> None:
    """A checkpoint that cannot be written is reported once, as is the end of that, and the run
    goes on; text that cannot be written ends it."""
    with TemporaryDirectory() as directory:
        night, said = Path(directory) / "night", list[str]()
        request = request_for(Overnight(checkpoint=night, checkpoint_every=7))
        with FailingDisk(night, kinds).used() as disk:
            disk.failing = range(first, first + calls)
            try:
                with begin(request, Observer(warn=said.append)) as run:
                    run.write()
            except OutputError as error:
                said.append(str(error))
        assert all("No space left on device" in each or "written" in each for each in said)
        if kinds == ["replace"] and 1 < first < len(disk.calls) - calls - 1:
            assert ["can be written" in each for each in said] == [False, True]
        if (night / "run.json").exists():
            with suppress(RunEnded), resume(night) as run:
                run.write()
            assert text_of(night) == whole


def test_a_checkpoint_is_locked_until_its_last_state_is_written(tmp_path: Path) -> None:
    """Else another process could resume from the state before, which is then replaced."""
    checkpoint, disk, events = Checkpoint.create(tmp_path / "night"), Event(), list[str]()
    release = checkpoint._lock.release

    def write() -> int:
        disk.wait()
        events.append("written")
        return 0

    checkpoint._lock.release = lambda: events.append("released") or release()
    checkpoint.state.background.run(write)
    with pytest.raises(SessionError, match=f"is open in process {os.getpid()}: "):
        Checkpoint.create(tmp_path / "night")
    closing = Thread(target=checkpoint.close)
    closing.start()
    # Long enough to do it in the wrong order.
    closing.join(0.05)
    disk.set()
    closing.join()
    assert events == ["written", "released"]
    Checkpoint.create(tmp_path / "night").close()


@pytest.mark.parametrize("spoil", [lambda state: os.truncate(state, 9_999), Path.unlink])
def test_an_unusable_state_costs_time_and_no_text(
    spoil: Callable[[Path], object], request_for: Make, whole: str, tmp_path: Path
) -> None:
    """The text of a night was overwritten."""
    night, warned = tmp_path / "night", list[str]()
    with begin(request_for(Overnight(checkpoint=night, checkpoint_every=10))) as run:
        list(islice(run, 20))
    spoil(night / "state.safetensors")
    before = (night / "output.txt").read_bytes()
    with resume(night, Observer(warn=warned.append)) as run:
        run.write()
    kept = night / "output.txt.1"
    assert kept.read_bytes() == before
    assert f"the text begins again: what there was is kept in {kept}" in warned
    assert text_of(night) == whole


def test_a_state_too_large_for_memory_leaves_everything_as_it_is(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = tmp_path / "night"
    with begin(request_for(Overnight(checkpoint=night, checkpoint_every=5))) as run:
        list(islice(run, 20))
    before = {path.name: path.read_bytes() for path in night.iterdir()}
    memory = SimpleNamespace(free_memory_bytes=lambda: 1_000, shortage_is_certain=lambda: True)
    monkeypatch.setattr("mlxchat.store.snapshot.platform", memory)
    with pytest.raises(SnapshotTooLarge) as error, resume(night):
        pass
    assert str(error.value).endswith("1.00 kB is free: close other programs, then resume again")
    assert {path.name: path.read_bytes() for path in night.iterdir()} == before


def test_a_checkpoint_has_every_option_of_the_run(request_for: Make, tmp_path: Path) -> None:
    """Options were copied one by one, and one that the text depends on was forgotten."""
    sampling = SamplingSettings(temp=0.5, top_k=9, logit_bias=("1=2", "3=-1.5"), seed=3)
    request = request_for(
        Overnight(None, 60.0, OnLoop.STOP, tmp_path / "o", tmp_path, 7),
        system="Be brief.",
        raw=False,
        think="hide",
        template_args={"a": [1.5]},
        min_tokens=2,
        stop=("a", "\n"),
        ignore_eos=False,
    )
    loaded = replace(open_model(request.setup), sampling=sampling)
    # A directory of converted weights may be deleted.
    assert record_of(request, replace(loaded, name="smollm2")).request.setup.model == "smollm2"
    stored = json.loads(json.dumps(to_json(record_of(request, loaded))))
    again = request_of(from_json(RunRecord, stored), tmp_path, {})
    assert again.setup.sampling_settings({}) == sampling
    until = again.overnight.until
    assert until is not None
    assert 50 < until.timestamp() - time.time() < 60
    setup = replace(request.setup, sampling=again.setup.sampling)
    expected = replace(request, setup=replace(setup, model=again.setup.model))
    same = replace(again.overnight, until=None, lasting_s=60.0)
    assert replace(again, overnight=same) == expected


def test_a_second_ctrl_c_leaves_a_last_event(request_for: Make, tmp_path: Path) -> None:
    file, seen = tmp_path / "events.jsonl", list[str]()

    def interrupt() -> bool:
        if len(seen) == 12:
            raise KeyboardInterrupt
        return False

    request = request_for(Overnight(output=file), events=True)
    with pytest.raises(KeyboardInterrupt), begin(request) as run:  # noqa: PT012
        for piece in run.tokens(should_stop=interrupt):
            seen.append(piece.text)
    last = json.loads(file.read_text().splitlines()[-1])
    assert (last["event"], last["finish_reason"]) == ("done", "interrupted")


def test_an_invalid_run_json_is_refused(request_for: Make, tmp_path: Path) -> None:
    night = tmp_path / "night"
    with begin(request_for(Overnight(checkpoint=night))) as run:
        run.write()
    path = night / "run.json"
    path.write_text(path.read_text().replace('"window"', '"strange"'))
    for _ in range(2):  # It is not locked.
        with pytest.raises(SnapshotBroken, match=r"unknown field request\.setup\.strange"):
            resume(night)
