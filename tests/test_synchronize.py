"""Before it stops, a rank waits for both of its streams."""

import mlx.core as mx
import pytest

from mlxchat import platform
from mlxchat.distributed import Ranks


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[mx.Stream | None]:
    """The streams waited for; None is the default one, a GPU's on a Mac."""
    streams: list[mx.Stream | None] = []
    monkeypatch.setattr(mx, "synchronize", lambda stream=None: streams.append(stream))
    return streams


@pytest.fixture
def alone() -> Ranks:
    return Ranks(mx.distributed.init())


def both() -> list[mx.Stream | None]:
    return [None, mx.default_stream(mx.cpu)]


def test_a_rank_waits_for_its_messages_before_it_stops(
    alone: Ranks, waited: list[mx.Stream | None]
) -> None:
    """`mx.synchronize()` waits only for the GPU's stream. Messages run on the CPU's, so the last
    one could be lost."""
    alone.stop()
    assert waited == both()


def test_the_wired_limit_is_changed_only_after_all_computation(
    waited: list[mx.Stream | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def set_wired_limit(limit: int) -> int:
        limits.append(limit)
        return 7

    monkeypatch.setattr(platform, "recommended_working_set_bytes", lambda: 1000)
    monkeypatch.setattr(mx, "set_wired_limit", set_wired_limit)
    with platform.wired_limit():
        assert waited == []
    assert waited == both()
    assert limits == [1000, 7]
