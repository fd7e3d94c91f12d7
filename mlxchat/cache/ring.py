"""Arrays `(B, H, T, D)` in the order of a ring and in temporal order, and with tokens taken out.

In a ring the first `keep` tokens stand still; the oldest of the others is at the slot `next`.
"""

import mlx.core as mx


def unrolled(x: mx.array, keep: int, next: int, size: int) -> mx.array:
    """The first `size` slots in temporal order; `next == size` says that they are in it already."""
    if next == size:
        # A slice even if it is the whole: decode writes into the buffer's own object.
        return x[..., :size, :]
    return mx.concatenate([x[..., :keep, :], x[..., next:, :], x[..., keep:next, :]], axis=2)


def rolled(x: mx.array, keep: int, next: int, size: int) -> mx.array:
    """The inverse of `unrolled`; a new object in any case."""
    if next == size:
        return x[..., :, :]
    older = size - next + keep
    return mx.concatenate([x[..., :keep, :], x[..., older:, :], x[..., keep:older, :]], axis=2)


def without(x: mx.array, start: int, stop: int) -> mx.array:
    return mx.concatenate([x[..., :start, :], x[..., stop:, :]], axis=2)


def grown(buffer: mx.array | None, like: mx.array, slots: int) -> mx.array:
    """The buffer with so many more slots, of which `like` tells the other dimensions."""
    batch, heads, _, dim = like.shape
    room = mx.zeros((batch, heads, slots, dim), dtype=like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
