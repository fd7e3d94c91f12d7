"""What a saved cache was made with. Used with anything else it would be silently wrong.

A model is known by its configuration and by its weights as they are in memory: samples from every
tensor, since hashing gigabytes at each start would take longer than reading a window again.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlxchat.about import __version__
from mlxchat.models.gguf.source import ORIGIN
from mlxchat.models.model import Model
from mlxchat.text.tokens import Tokenizer

FORMAT = 2
SAMPLES = 64  # values of each tensor
SAMPLED_BYTES = 1 << 28  # of the tensors that are sampled together

Parameters = list[tuple[str, mx.array]]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All of it, as JSON can hold it; hashes in hexadecimal. `keep` is what the cache never evicts,
    in tokens, and `window` None where it is unbounded."""

    format: int
    mlxchat: str
    mlx_lm: str
    model: str
    weights: str
    dtype: str
    tokenizer: str
    template: str
    ranks: int
    window: int | None
    keep: int
    system: str

    def differences(self, saved: object) -> list[str]:
        """What `saved`, a fingerprint's dictionary that was read, differs in; in words."""
        if not isinstance(saved, dict):
            return ["no fingerprint"]
        mine = asdict(self)
        # What one process alone has saved may not say so.
        saved = {"ranks": 1} | saved
        different = [f.name for f in fields(self) if saved.get(f.name, _MISSING) != mine[f.name]]
        if "ranks" in different and "weights" in different:
            # Each holds another part of them.
            different.remove("weights")
        return [IN_WORDS[name] for name in different]


_MISSING = object()

IN_WORDS = {
    "format": "another format of snapshots",
    "mlxchat": "another version of mlxchat",
    "mlx_lm": "another version of mlx-lm",
    "model": "another model",
    "weights": "other weights",
    "dtype": "another dtype",
    "tokenizer": "another tokenizer",
    "template": "another chat template",
    "ranks": "another number of ranks",
    "window": "another window",
    "keep": "another number of kept tokens",
    "system": "another system prompt",
}


class ModelPrint:
    """The part of a fingerprint that a loaded model never changes: computed once, tens of
    milliseconds."""

    def __init__(self, model: Model) -> None:
        self._ranks = 1 if model.peers is None else model.peers.ranks
        # Where a converted file lay makes no difference.
        config = {name: value for name, value in model.config.items() if name != ORIGIN}
        self._of_model: dict[str, Any] = {
            "format": FORMAT,
            "mlxchat": __version__,
            "mlx_lm": version("mlx-lm"),
            "model": _hash(json.dumps(config, sort_keys=True, default=str)),
            "weights": _weights(model),
            "dtype": str(model.dtype),
            "tokenizer": _tokenizer(model.tokenizer),
            "template": _hash(
                "" if model.tokenizer.template is None else model.tokenizer.template.source
            ),
        }

    def of(self, window: int | None, keep: int, system: str | None) -> Fingerprint:
        """The whole, of a cache that is used like this."""
        used: dict[str, Any] = {"window": window, "keep": keep, "system": _hash(system or "")}
        return Fingerprint(**self._of_model, ranks=self._ranks, **used)

    def digest(self) -> str:
        """The model alone, however its cache is used; in hexadecimal."""
        return _hash(json.dumps(self._of_model, sort_keys=True))


def made_by(model: Model) -> str:
    """What keys and values come from, to be compared, where whoever reads them can compute them
    just as well: what rounds otherwise, or had a fault that is mended now, shall do that."""
    return f"{ModelPrint(model).digest()} {version('mlx')} {mx.default_device()}"


def _weights(model: Model) -> str:
    digest = hashlib.blake2b(digest_size=16)
    parameters: Any = tree_flatten(model.shard.parameters())
    for some in _bounded(parameters):
        samples = [_sample(array) for _, array in some]
        # Together: each evaluation waits for the device.
        mx.eval(samples)
        for (name, array), sample in zip(some, samples, strict=True):
            digest.update(f"{name} {array.shape} {array.dtype} ".encode())
            digest.update(np.array(sample).tobytes())
    return digest.hexdigest()


def _bounded(parameters: Parameters) -> Iterator[Parameters]:
    """All of them, as many at a time as may be copied: one that is a transposed view is."""
    some: Parameters = []
    for each in parameters:
        if some and sum(array.nbytes for _, array in some) + each[1].nbytes > SAMPLED_BYTES:
            yield some
            some = []
        some.append(each)
    yield some


def _sample(array: mx.array) -> mx.array:
    flat = array.reshape(-1)
    sample = flat[:: max(flat.size // SAMPLES, 1)][: SAMPLES + 1]
    return sample.view(mx.uint16) if sample.dtype == mx.bfloat16 else sample


def _tokenizer(tokenizer: Tokenizer) -> str:
    return _hash(tokenizer.definition() + str(sorted(tokenizer.eos_ids)))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
