"""Identifies what a saved cache was made with. Anything else would silently give wrong results.

A model is identified by its configuration and by samples of every tensor in memory: hashing
gigabytes at each start would take longer than prefilling a window again.
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

from mlxchat.models.gguf import ORIGIN
from mlxchat.models.model import Model
from mlxchat.paths import __version__
from mlxchat.text.tokens import Tokenizer

FORMAT = 2
SAMPLES = 64  # values per tensor
SAMPLED_BYTES = 1 << 28  # of tensors sampled at the same time

Parameters = list[tuple[str, mx.array]]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The whole fingerprint, in types that JSON has; hashes are hexadecimal. `keep` counts tokens
    that are never evicted; `window` is None if unbounded."""

    format: int
    mlxchat: str
    mlx_lm: str
    model: str
    weights: str
    dtype: str
    tokenizer: str
    template: str
    adapter: str
    ranks: int
    window: int | None
    keep: int
    system: str

    def differences(self, saved: object) -> list[str]:
        """How `saved`, the dictionary of a fingerprint read from a file, differs, in words."""
        if not isinstance(saved, dict):
            return ["no fingerprint"]
        mine = asdict(self)
        different = [f.name for f in fields(self) if saved.get(f.name, _MISSING) != mine[f.name]]
        # Each rank has another part of the weights, and an adapter's arrays are among them.
        if "weights" in different and {"ranks", "adapter"} & set(different):
            different.remove("weights")
        return [IN_WORDS[name] for name in different]


_MISSING = object()

IN_WORDS = {
    "format": "a different snapshot format",
    "mlxchat": "a different version of mlxchat",
    "mlx_lm": "a different version of mlx-lm",
    "model": "a different model",
    "weights": "different weights",
    "dtype": "a different dtype",
    "tokenizer": "a different tokenizer",
    "template": "a different chat template",
    "adapter": "a different adapter",
    "ranks": "a different number of ranks",
    "window": "a different window",
    "keep": "a different number of kept tokens",
    "system": "a different system prompt or note",
}


class ModelPrint:
    """The part of a fingerprint that never changes for a loaded model. Computed once, in tens of
    milliseconds."""

    def __init__(self, model: Model) -> None:
        self._ranks = 1 if model.peers is None else model.peers.size
        # The path of a converted file does not matter.
        config = {name: value for name, value in model.config.items() if name != ORIGIN}
        self._of_model: dict[str, Any] = {
            "format": FORMAT,
            "mlxchat": __version__,
            "mlx_lm": version("mlx-lm"),
            "model": _hash(json.dumps(config, sort_keys=True, default=str)),
            "weights": _weights(model),
            "adapter": "" if model.adapter is None else model.adapter.digest,
            "dtype": str(model.dtype),
            "tokenizer": _tokenizer(model.tokenizer),
            "template": _hash(
                "" if model.tokenizer.template is None else model.tokenizer.template.source
            ),
        }

    def of(self, window: int | None, keep: int, system: str | None) -> Fingerprint:
        """The complete fingerprint of a cache with these settings."""
        used: dict[str, Any] = {"window": window, "keep": keep, "system": _hash(system or "")}
        return Fingerprint(**self._of_model, ranks=self._ranks, **used)

    def digest(self) -> str:
        """Identifies the model alone, whatever its cache, in hexadecimal."""
        return _hash(json.dumps(self._of_model, sort_keys=True))


def made_by(model: Model) -> str:
    """Identifies everything that affects keys and values, for data that is cheap to recompute: a
    version that rounds differently, or that fixed a defect, should recompute it."""
    return f"{ModelPrint(model).digest()} {version('mlx')} {mx.default_device()}"


def _weights(model: Model) -> str:
    digest = hashlib.blake2b(digest_size=16)
    parameters: Any = tree_flatten(model.shard.parameters())
    for some in _bounded(parameters):
        samples = [_sample(array) for _, array in some]
        # All together, because each evaluation waits for the device.
        mx.eval(samples)
        for (name, array), sample in zip(some, samples, strict=True):
            digest.update(f"{name} {array.shape} {array.dtype} ".encode())
            digest.update(np.array(sample).tobytes())
    return digest.hexdigest()


def _bounded(parameters: Parameters) -> Iterator[Parameters]:
    """All parameters, in batches of bounded size: sampling a transposed view copies it."""
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
