"""Arrays `(B, H, T, D)`: conversion between ring order and temporal order, and removal of tokens.

In a ring, the first `keep` tokens stay in place; slot `next` holds the oldest of the others.
"""

import mlx.core as mx


def unrolled(x: mx.array, keep: int, next: int, size: int) -> mx.array:
    """The first `size` slots in temporal order; `next == size` means they already are."""
    if next == size:
        # A slice even of the whole: decode writes into the buffer object itself.
        return x[..., :size, :]
    return mx.concatenate([x[..., :keep, :], x[..., next:size, :], x[..., keep:next, :]], axis=2)


def rolled(x: mx.array, keep: int, next: int, size: int) -> mx.array:
    """The inverse of `unrolled`; always a new object."""
    if next == size:
        return x[..., :, :]
    older = size - next + keep
    return mx.concatenate([x[..., :keep, :], x[..., older:, :], x[..., keep:older, :]], axis=2)


def without(x: mx.array, start: int, stop: int) -> mx.array:
    return mx.concatenate([x[..., :start, :], x[..., stop:, :]], axis=2)


def grown(buffer: mx.array | None, like: mx.array, slots: int) -> mx.array:
    """The buffer with `slots` more slots; `like` has its other dimensions and dtype."""
    batch, heads, _, dim = like.shape
    room = mx.zeros((batch, heads, slots, dim), dtype=like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
