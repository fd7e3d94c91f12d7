"""Blocks on the disk: the keys and values of each text in a separate file, next to prefix pages.

Blocks share the pages' index, and so their size limit, eviction order and safety when several
processes use it. A block is looked up only by its model, head and tokens. A file is trusted only if
all of these match exactly.
"""

import hashlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.cache import Block, run_lazily
from mlxchat.cache.layers import windows
from mlxchat.errors import SnapshotBroken
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.fingerprint import made_by
from mlxchat.store.prefix_index import BLOCK, ROOT, PrefixIndex
from mlxchat.store.tensor_file import Tensor
from mlxchat.text.spans import TokenIds

# How much of a block's text lists show.
LABEL_TOKENS = 24


class DiskBlocks:
    """The blocks in `directory` that this model can use. Together with the pages there, they are
    limited to `limit_bytes` of files.

    For one thread. Stores nothing if the disk has too little room. Problems with the disk or its
    files raise nothing; `error` is the reason why the last block that failed was not stored.
    """

    def __init__(
        self, directory: Path, model: Model, limit_bytes: int, has_room: bool = True
    ) -> None:
        self._index = PrefixIndex(directory)
        self._model = model
        self._made_by = made_by(model)
        self._limit_bytes = limit_bytes
        self._has_room = has_room
        self.error: OSError | None = None

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None:
        """The block of these tokens, computed after this head; None if it is not stored."""
        with suppress(OSError):
            for row in self._index.chain([self._key(head, ids)]):
                try:
                    path = self._index.path_of(row.key)
                    tensors, facts = tensor_file.read(path, max_bytes=row.bytes)
                    block = self._block(tensors, facts, head, ids)
                except (SnapshotBroken, FileNotFoundError):
                    self._index.remove(row.key)
                    return None
                self._index.touch([row.key])
                return block
        return None

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None:
        """Store the block, and enforce the limit."""
        if not self._has_room:
            self.error = OSError("the disk has less free space than --prefix-cache-size")
            return
        key = self._key(head, ids)
        facts = {"model": self._made_by, "position": block.position}
        try:
            # Every method creates the directory for the file.
            self._index.chain([key])
            tensors = _tensors(block, head, ids)
            self._index.store(
                key,
                ROOT,
                lambda path: tensor_file.write(path, tensors, facts, full_sync=False),
                limit_bytes=self._limit_bytes,
                depth=len(ids),
                model=self._model.name,
                kind=BLOCK,
                label=self._beginning(ids),
            )
        except OSError as error:
            self.error = error

    def close(self) -> None:
        self._index.close()

    def _beginning(self, ids: TokenIds) -> str:
        """The first words of the text, for a list."""
        return " ".join(self._model.tokenizer.decode(ids[:LABEL_TOKENS].tolist()).split())

    def _key(self, head: TokenIds, ids: TokenIds) -> str:
        digest = hashlib.blake2b(f"block\n{self._made_by}\n{len(head)}\n".encode(), digest_size=20)
        digest.update(_ids_of(head, ids).tobytes())
        return digest.hexdigest()

    @cached_property
    def _like(self) -> list[tuple[mx.array, mx.array] | None]:
        """What each window stores for one token: shapes and dtypes."""
        stored: list[tuple[mx.array, mx.array] | None] = []
        for window in windows(run_lazily(self._model.shard)):
            pair = window.keys, window.values
            stored.append(None if pair[0] is None or pair[1] is None else (pair[0], pair[1]))
        return stored

    def _block(
        self, tensors: dict[str, mx.array], facts: dict[str, Any], head: TokenIds, ids: TokenIds
    ) -> Block:
        """Raises SnapshotBroken if this is not this model's block of these tokens."""
        right = (
            facts == {"model": self._made_by, "position": len(head)}
            and "ids" in tensors
            and np.array_equal(np.array(tensors["ids"]), _ids_of(head, ids))
        )
        if not right:
            raise SnapshotBroken("the block's content does not match its name")
        return Block(
            len(head),
            tuple(
                None if like is None else self._pair(tensors, number, like, len(ids))
                for number, like in enumerate(self._like)
            ),
        )

    def _pair(
        self,
        tensors: dict[str, mx.array],
        number: int,
        like: tuple[mx.array, mx.array],
        tokens: int,
    ) -> tuple[mx.array, mx.array]:
        found = tensors.get(f"{number}.keys"), tensors.get(f"{number}.values")
        for array, one in zip(found, like, strict=True):
            shape = (*one.shape[:2], tokens, *one.shape[3:])
            if array is None or array.shape != shape or array.dtype != one.dtype:
                raise SnapshotBroken("the block's shapes do not match the model")
        keys, values = found
        assert keys is not None
        assert values is not None
        return keys, values


def _ids_of(head: TokenIds, ids: TokenIds) -> np.ndarray:
    return np.concatenate([head, ids]).astype("<i4")


def _tensors(block: Block, head: TokenIds, ids: TokenIds) -> dict[str, Tensor]:
    arrays: dict[str, mx.array] = {}
    for number, pair in enumerate(block.layers):
        if pair is not None:
            arrays[f"{number}.keys"], arrays[f"{number}.values"] = pair
    tensors = tensor_file.hold(arrays)
    # All tokens are stored, so no hash has to be trusted.
    whole = _ids_of(head, ids)
    return tensors | {"ids": Tensor("I32", whole.shape, whole)}
