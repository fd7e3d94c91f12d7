"""The cache of layers that attend within chunks of the text: Llama 4's local layers.

A token sees only the tokens of its own chunk, so everything is evicted at the end of a chunk, and
the first tokens of the next chunk are the kept ones.
"""

from mlxchat.cache.window import WindowCache


class ChunkCache(WindowCache):
    """A window of at most `max_size` tokens within the current chunk of `chunk_size` positions.

    Replaces mlx-lm's ChunkedKVCache, whose model computes the mask from `offset` and
    `start_position`: there, a row of a prefill step sees everything held of its chunk, up to S - 1
    tokens more than `max_size`. Positions move back by whole chunks.
    """

    def __init__(self, chunk_size: int, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size, keep)
        self.chunk_size = chunk_size

    @property
    def start_position(self) -> int:
        """The position of the first entry that the model sees in the next step."""
        return self.offset - self._ring.seen_by_next

    def maybe_trim_front(self) -> None:
        """Evict everything before the next token's chunk. The model calls this before each step."""
        in_chunk = min(self._ring.size, self.offset % self.chunk_size)
        if in_chunk == self._ring.size:
            return
        self._ring.unroll()
        self._drop(0, self._ring.size - in_chunk)
        self._begin_kept()

    def _is_evictable(self, start: int, stop: int) -> bool:
        # Kept tokens belong to the chunk, and go with it.
        return start <= stop <= self._ring.size
