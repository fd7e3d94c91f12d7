"""Which entries of a window its next tokens see: None (all), "causal", or a boolean array `(N, T)`,
true for the visible ones.

A `window_size` narrows the view to that many latest tokens, kept ones included.
"""

import mlx.core as mx

from mlxchat.cache.ring import Ring

Mask = mx.array | str | None


def prefill_mask(ring: Ring, n: int, window_size: int | None, *, return_array: bool) -> Mask:
    """The mask for `n` tokens that will be appended.

    Each row sees itself, the kept tokens and the latest others, `max_size` in all.
    """
    held = ring.seen_by_next
    if _fits(held + n, ring.max_size, window_size) and not return_array:
        return "causal"
    rows = mx.arange(held, held + n)[:, None]
    return _visible(rows, mx.arange(held + n)[None], ring, window_size)


def decode_mask(ring: Ring, window_size: int | None, *, in_order: bool) -> Mask:
    """The mask for one token. It will be written in place, unless the window stays `in_order`."""
    size = ring.size + 1 if ring.max_size is None else min(ring.size + 1, ring.max_size)
    if window_size is None or window_size >= size:
        return None
    visible = mx.arange(size) >= size - window_size
    if in_order or ring.size < size:
        return visible[None]
    newest = ring.keep if ring.next >= size else ring.next
    # From `newest` on, slots hold ever later entries, wrapping around: rotate the mask to match.
    rotated = mx.roll(visible[ring.keep :], newest - ring.keep + 1)
    return mx.concatenate([visible[: ring.keep], rotated])[None]


def draft_mask(ring: Ring, n: int, window_size: int | None, *, return_array: bool) -> Mask:
    """The mask for `n` drafted tokens, which will be written after the others.

    Each row sees what it would see if the rows before it had been added one by one, each evicting
    the oldest entry of a full window.
    """
    size, keep = ring.size, ring.keep
    if _fits(size + n, ring.max_size, window_size) and not return_array:
        return None if n == 1 else "causal"
    slots = mx.arange(size + n)[None]
    in_ring = (slots >= keep) & (slots < size)
    oldest = keep if ring.next >= size else ring.next
    order = mx.where(in_ring, keep + (slots - oldest) % max(size - keep, 1), slots)
    mask = _visible(mx.arange(size, size + n)[:, None], order, ring, window_size)
    # deepseek_v32 takes the columns it attends to from the mask of a single row.
    return mask[None, None] if n == 1 else mask


def _fits(tokens: int, max_size: int | None, window_size: int | None) -> bool:
    return all(limit is None or tokens <= limit for limit in (max_size, window_size))


def _visible(rows: mx.array, columns: mx.array, ring: Ring, window_size: int | None) -> mx.array:
    """Whether each of the rows `(N, 1)` sees the columns `(1, T)`, both numbered in temporal
    order."""
    visible = rows >= columns
    if ring.max_size is not None:
        latest = rows - columns < ring.max_size - ring.keep
        visible = visible & (latest | (columns < ring.keep))
    if window_size is not None:
        visible = visible & (rows - columns < window_size)
    return visible
