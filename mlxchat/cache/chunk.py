"""The cache of a layer that attends within chunks of the text: Llama 4's local layers.

A token sees the tokens of its own chunk only, so at a chunk's end all is evicted, and the next
chunk's first tokens are the ones that are kept.
"""

from typing import ClassVar

from mlxchat.cache.window import WindowCache


class ChunkCache(WindowCache):
    """A window of at most `max_size` tokens within the current chunk of `chunk_size` positions.

    Stands in for mlx-lm's ChunkedKVCache, whose model makes the mask itself, from `offset` and
    `start_position`: there, a row of a prefill step sees all of its chunk that is held, which may
    be up to S - 1 tokens more than `max_size`. Positions move back by whole chunks.
    """

    SETTINGS: ClassVar = (*WindowCache.SETTINGS, "chunk_size")

    def __init__(self, chunk_size: int, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size, keep)
        self.chunk_size = chunk_size

    @property
    def start_position(self) -> int:
        """The position that the model takes the first entry of the next step for."""
        return self.offset - self._held_before_prefill()

    def maybe_trim_front(self) -> None:
        """Evict what lies before the chunk of the next token; called before every step."""
        in_chunk = min(self._size, self.offset % self.chunk_size)
        if in_chunk == self._size:
            return
        self._put_in_temporal_order()
        self._drop(0, self._size - in_chunk)
        self._begin_kept()

    def _is_evictable(self, start: int, stop: int) -> bool:
        # What is kept is only the chunk's: it goes if it is in the span.
        return start <= stop <= self._size
