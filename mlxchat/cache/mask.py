"""Attention masks for a window's next tokens: boolean `(N, T)`, true for the visible entries."""

import mlx.core as mx


def prefill_mask(
    held: int, n: int, max_size: int | None, keep: int, window_size: int | None
) -> mx.array:
    """Mask for `n` tokens after `held` others, in temporal order.

    Each row sees itself, the first `keep` and the latest others, `max_size` in all; of those, only
    the latest `window_size`.
    """
    rows = mx.arange(held, held + n)[:, None]
    columns = mx.arange(held + n)[None]
    mask = rows >= columns
    if max_size is not None:
        latest = rows - columns < max_size - keep
        mask = mask & (latest | (columns < keep))
    if window_size is not None:
        mask = mask & (rows - columns < window_size)
    return mask


def draft_mask(
    size: int, n: int, max_size: int | None, keep: int, *, oldest: int, window_size: int | None
) -> mx.array:
    """Mask for `n` drafted tokens in slots `size` to `size + n`, after the `size` slots of a ring
    whose oldest entry that is not kept is in slot `oldest`.

    Each row sees what it would see if the rows before it had been added one by one, each evicting
    the oldest entry of a full window.
    """
    slots = mx.arange(size + n)[None]
    rows = mx.arange(size, size + n)[:, None]
    in_ring = (slots >= keep) & (slots < size)
    # The slots' temporal order: the ring begins at `oldest`.
    order = mx.where(in_ring, keep + (slots - oldest) % max(size - keep, 1), slots)
    mask = rows >= order
    if max_size is not None:
        mask = mask & ((rows - order < max_size - keep) | (slots < keep))
    if window_size is not None:
        mask = mask & (rows - order < window_size)
    return mask


def latest_mask(size: int, window_size: int) -> mx.array:
    """Mask for one token, the last of `size` in temporal order."""
    return (mx.arange(size) >= size - window_size)[None]


def ring_mask(size: int, window_size: int, keep: int, newest: int) -> mx.array:
    """Mask for one token, about to be written at slot `newest` in a full ring of `size`."""
    visible = latest_mask(size, window_size)[0]
    # From `newest` on, slots hold ever later entries, wrapping around: rotate the mask to match.
    ring = mx.roll(visible[keep:], newest - keep + 1)
    return mx.concatenate([visible[:keep], ring])[None]
