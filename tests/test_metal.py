"""The imitation of Metal: MLX's own rotation, except for Metal's peculiarities."""

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache.positions import KeyShift
from scripts import metal

KEYS = mx.random.normal((2, 3, 5, 16), key=mx.random.key(0))
FREQS = mx.array([1.0, 2.0, 30.0, 400.0])


@pytest.mark.parametrize("offset", [0, 7, mx.array(9), mx.array([3, 5])])
@pytest.mark.parametrize("traditional", [True, False])
def test_it_rotates_like_mlx(offset: int | mx.array, traditional: bool) -> None:
    for base, freqs in ((10_000.0, None), (None, FREQS)):
        how = {"traditional": traditional, "base": base, "scale": 0.5, "freqs": freqs}
        found, expected = (
            rope(KEYS, 8, offset=offset, **how) for rope in (metal.rope, mx.fast.rope)
        )
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-6)


def test_a_negative_offset_turns_keys_to_garbage() -> None:
    how = {"traditional": False, "base": 10_000.0, "scale": 1.0, "offset": -7}
    found, expected = (np.array(rope(KEYS, 8, **how)) for rope in (metal.rope, mx.fast.rope))
    assert np.abs(found - expected).max() > 0.1


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("gain", [None, mx.arange(1.0, 17.0)])
@pytest.mark.parametrize("freqs", [None, FREQS])
def test_no_shift_passes_a_negative_offset(
    start: int, gain: mx.array | None, freqs: mx.array | None
) -> None:
    """Metal took it for four billion positions in layers whose rope begins within the head."""
    base = 10_000.0 if freqs is None else None
    shift = KeyShift(8, False, base, 1.0, freqs, start=start, gain=gain)
    with metal.imitated():
        back = shift(shift(KEYS, 1_000), -1_000)
    np.testing.assert_allclose(np.array(back), np.array(KEYS), atol=1e-3)


def test_moved_keys_are_contiguous() -> None:
    """Otherwise Metal's kernels copied a transposed view of the whole window for every token."""
    moved = KeyShift(8, False, 10_000.0, 1.0)(KEYS, 7)
    mx.eval(moved)
    assert np.array(moved, copy=False).flags.c_contiguous
