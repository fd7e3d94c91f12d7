"""Several ranks in one process, as threads that add their numbers: what all know, and who is lost.
The program on several ranks is in `smoke/test_machines`."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest

from mlxchat import distributed, platform
from mlxchat.distributed import Ranks, lost
from mlxchat.distributed.load import Sharding, _agreed
from mlxchat.distributed.lost import RingSockets, Watchdog
from mlxchat.errors import InputError, MlxchatError, ModelUnsupported, RanksError, SnapshotError
from scripts.families import build_family


class Group:
    """One thread's part in a group whose members add numbers, as MLX's do in processes."""

    def __init__(self, rank: int, meeting: threading.Barrier, given: list[np.ndarray]) -> None:
        self._rank, self._meeting, self._given = rank, meeting, given

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._meeting.parties

    def sum(self, numbers: mx.array) -> mx.array:
        own = self._given[self._rank] = np.array(numbers)
        self._meeting.wait(30)
        total = np.sum(self._given, axis=0).astype(own.dtype)
        self._meeting.wait(30)
        return mx.array(total)


class QuietWatchdog:
    """Ends nothing."""

    has_lost = False

    def __init__(self, *_: Any) -> None:
        self.losses = nullcontext
        self.arm = self.disarm = lambda: None


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Ranks], Any]], list[Any]]:
    """Does a job on each of three ranks; returns the results, or the errors raised."""
    monkeypatch.setattr(mx.distributed, "all_sum", lambda numbers, group: group.sum(numbers))
    monkeypatch.setattr(distributed, "Watchdog", QuietWatchdog)

    def run(job: Callable[[Ranks], Any]) -> list[Any]:
        meeting, given = threading.Barrier(3), [np.zeros(0)] * 3

        def on_rank(rank: int) -> Any:
            group: Any = Group(rank, meeting, given)
            try:
                return job(Ranks(group))
            except MlxchatError as error:
                return f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(3) as threads:
            return list(threads.map(on_rank, range(3)))

    return run


OnRanks = Callable[[Callable[[Ranks], Any]], list[Any]]


def fail(error: Exception) -> Any:
    raise error


def test_all_ranks_know_what_one_knows_and_continue_with_rank_0s_token(on_ranks: OnRanks) -> None:
    def job(ranks: Ranks) -> Any:
        number = ranks.rank
        return (
            ranks.lead(7 if number == 0 else 99),
            ranks.gather(10 + number),
            ranks.same(lambda: {"from": number}),
            ranks.same(lambda: {"from": number}, rank=1),
            ranks.token(mx.array([100 + number])).tolist(),
            # Rank 0 has no shard of its own to fail.
            ranks.failed(lambda: None if number == 1 else fail(SnapshotError("gone"))),
        )

    assert on_ranks(job) == [(7, [10, 11, 12], {"from": 0}, {"from": 1}, [100], [2])] * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_of_one_rank_is_raised_on_all(rank: int, on_ranks: OnRanks) -> None:
    def job(ranks: Ranks) -> Any:
        return ranks.same(lambda: fail(InputError(f"of rank {ranks.rank}")), rank)

    assert on_ranks(job) == [f"InputError: of rank {rank}"] * 3


def test_when_rank_0_stops_the_others_do(on_ranks: OnRanks) -> None:
    def job(ranks: Ranks) -> Any:
        if ranks.leads:
            ranks.stop()
            return None
        with pytest.raises(RanksError, match="rank 0 has ended"):
            ranks.lead(1)
        return ranks.is_stopped, ranks.at_rest

    assert on_ranks(job) == [None, (True, False), (True, False)]


@pytest.mark.parametrize(
    ("config", "dtype", "error"),
    [
        ({"a": 1}, mx.float16, "namespace(config={'a': 1}, dtype="),
        ({"a": 2}, mx.float16, "RanksError: rank 2 has a different model of that name or a"),
        ({"a": 1}, mx.float32, "RanksError: rank 2 has a different model of that name or a"),
        (None, None, "RanksError: rank 2: not found"),
    ],
)
def test_all_ranks_load_it_or_none(config: Any, dtype: Any, error: str, on_ranks: OnRanks) -> None:
    def job(ranks: Ranks) -> str:
        model: Any = SimpleNamespace(config={"a": 1}, dtype=mx.float16)
        if ranks.rank == 2:
            model = config and SimpleNamespace(config=config, dtype=dtype)
        return str(_agreed(ranks, model, None if model else InputError("not found")))

    *others, own = on_ranks(job)
    assert all(each.startswith(error) for each in others)
    assert own.startswith(error if config else "InputError: not found")


# Who is lost


@pytest.mark.parametrize("unread", [b"", b"a number"])
def test_a_neighbour_that_has_closed_its_connection_is_gone(
    unread: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's left neighbour of four ranks, even if it had sent something that nobody has read."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{5000 + n}"] for n in range(4)]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(platform, "open_connections", lambda: [(ours.fileno(), 5000, 40_000)])
    sockets = RingSockets(0, 4)
    with ours, ExitStack() as stack:
        for each in sockets._ranks:
            stack.enter_context(each)
        assert sockets.neighbours == {3}
        theirs.sendall(unread)
        assert sockets.gone() == set()
        theirs.close()
        sockets.wait_readable()
        assert sockets.gone() == {3}


def watchdog(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, gone: set[int]) -> Watchdog:
    """That of a rank with these neighbours gone; it does not watch."""
    monkeypatch.setattr(Watchdog, "_watch", lambda _: None)
    neighbours = {(rank - 1) % size, (rank + 1) % size}
    sockets: Any = SimpleNamespace(neighbours=neighbours, gone=lambda: gone, shut=lambda *_: None)
    return Watchdog(rank, size, sockets)


@pytest.mark.parametrize(
    ("size", "gone", "raised", "reported"),
    [
        (2, set(), RuntimeError("[ring] failed"), "rank 1 is gone"),
        (4, {3}, RuntimeError("[ring] failed"), "rank 3 is gone or has lost another rank"),
        (2, {1}, RuntimeError("[metal] out of memory"), None),
        (2, {1}, KeyboardInterrupt(), None),
    ],
    ids=str,
)
def test_an_error_of_the_ring_names_the_rank_that_is_lost(
    size: int, gone: Any, raised: Any, reported: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dog = watchdog(monkeypatch, 0, size, gone)
    with pytest.raises(BaseException) as error, dog.losses():
        raise raised
    assert dog.has_lost == (reported is not None)
    assert error.value is raised or str(error.value) == f"{reported}: all ranks exit"


@pytest.mark.parametrize(
    ("size", "gone", "suspects"),
    [(2, set(), "rank 1"), (4, {1}, "rank 3"), (4, {1, 3}, "rank 2"), (4, set(), "rank 1 or 3")],
)
def test_of_ranks_that_hang_those_are_named_that_do_not_exit(
    size: int, gone: set[int], suspects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost, "RESPONSE_S", 0.0)
    error = watchdog(monkeypatch, 0, size, gone)._hanging()
    assert str(error) == f"{suspects} has not responded for 60 s: all ranks exit"


@pytest.mark.parametrize(("is_armed", "is_heard"), [(True, True), (True, False), (False, True)])
def test_a_rank_exits_by_itself_if_it_waits_for_one_that_is_gone(
    is_armed: bool, is_heard: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """MLX may lose the error and wait for ever, also while loading. Waiting for a user is fine."""
    sleep = Mock(side_effect=[*[None] * 5, TimeoutError])
    watch = Watchdog._watch
    dog = watchdog(monkeypatch, 1, 2, {0})
    monkeypatch.setattr(lost, "GONE_S", 0.0)
    monkeypatch.setattr(lost, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(lost.os, "_exit", sys.exit)
    if not is_heard:
        dog._stderr = Mock(write=Mock(side_effect=BrokenPipeError))
    if is_armed:
        dog.arm()
    with pytest.raises(SystemExit if is_armed else TimeoutError):
        watch(dog)
    error = "mlxchat: error: rank 0 is gone: all ranks exit\n"
    assert capsys.readouterr().err == (error if is_armed and is_heard else "")


@pytest.mark.parametrize(
    ("family", "pipeline", "reason"),
    [
        ("phi3", False, "a phi3 model cannot be divided among several machines"),
        ("llama", True, "a llama model cannot be pipelined: mlx-lm does not support it"),
        ("qwen3_5", True, "a qwen3_5 model cannot be pipelined: its layers have different kinds"),
        ("qwen3_moe", False, "this model's 2 kv heads cannot be divided by 4: use a number of"),
        # Only when it is applied: a module "does not have parameter named signs".
        ("prism_hadamard_qwen35", False, "cannot divide a prism_hadamard_qwen35 model"),
    ],
)
def test_an_indivisible_model_is_refused_by_name(family: str, pipeline: bool, reason: str) -> None:
    group: Any = Group(0, threading.Barrier(4), [])
    sharding, network = Sharding(group, pipeline), build_family(family)
    with pytest.raises(ModelUnsupported, match=reason):  # noqa: PT012
        sharding.check(network)
        sharding.apply(network)
