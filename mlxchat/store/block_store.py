"""Blocks on the disk: the keys and values of each text in a separate file, next to prefix pages.

A block is found only by its model, its head and its tokens.
"""

import hashlib
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxchat.cache import Block, run_lazily
from mlxchat.cache.layers import windows
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.cache_files import CacheFiles
from mlxchat.store.fingerprint import made_by
from mlxchat.text.spans import TokenIds


class DiskBlocks:
    """The blocks in `directory` that this model can use, limited with the pages there to
    `limit_bytes` of files.

    Stores nothing if the disk has too little room. Problems with the disk or its files raise
    nothing; `error` is the reason why the last block that failed was not stored.
    """

    def __init__(self, directory: Path, model: Model, limit_bytes: int) -> None:
        self._files = CacheFiles(directory, limit_bytes)
        self._model = model
        self._made_by = made_by(model)
        self._has_room = self._files.has_room()
        self.error: OSError | None = None

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None:
        """The block of these tokens, computed after this head; None if it is not stored."""
        key = self._key(head, ids)
        tensors = self._files.read(key)
        if tensors is None:
            return None
        self._files.touch([key])
        arrays = tensor_file.loaded(tensors)
        used = [window.keys is not None for window in windows(run_lazily(self._model.shard))]
        layers = [
            (arrays[f"{i}.keys"], arrays[f"{i}.values"]) if is_used else None
            for i, is_used in enumerate(used)
        ]
        return Block(len(head), tuple(layers))

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None:
        """Store the block, and enforce the limit."""
        if not self._has_room:
            self.error = OSError("the disk has less free space than --prefix-cache-size")
            return
        arrays: dict[str, mx.array] = {}
        for i, pair in enumerate(block.layers):
            if pair is not None:
                arrays[f"{i}.keys"], arrays[f"{i}.values"] = pair
        try:
            self._files.write(self._key(head, ids), tensor_file.hold(arrays), {}, time.time())
        except OSError as error:
            self.error = error

    def _key(self, head: TokenIds, ids: TokenIds) -> str:
        digest = hashlib.blake2b(f"block\n{self._made_by}\n{len(head)}\n".encode(), digest_size=20)
        digest.update(np.concatenate([head, ids]).astype("<i4").tobytes())
        return digest.hexdigest()
