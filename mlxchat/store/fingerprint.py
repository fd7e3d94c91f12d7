"""Identifies what a saved cache was made with. Anything else would silently give wrong results.

A model is identified by its configuration and by samples of every tensor in memory: hashing
gigabytes at each start would take longer than prefilling a window again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlxchat.models.gguf import ORIGIN
from mlxchat.models.model import Model
from mlxchat.paths import __version__

SAMPLES = 64  # values per tensor
SAMPLED_BYTES = 1 << 28  # of tensors sampled at the same time

Parameters = list[tuple[str, mx.array]]
# What may differ, in words, with its value in types that JSON has.
Fingerprint = dict[str, object]


class ModelPrint:
    """The part of a fingerprint that never changes for a loaded model. Computed once, in tens of
    milliseconds."""

    def __init__(self, model: Model) -> None:
        tokenizer, template = model.tokenizer, model.tokenizer.template
        # The path of a converted file does not matter.
        config = {name: value for name, value in model.config.items() if name != ORIGIN}
        self._ranks = 1 if model.peers is None else model.peers.size
        self._of_model: Fingerprint = {
            "version of mlxchat": __version__,
            "version of mlx-lm": version("mlx-lm"),
            "model": _hash(json.dumps(config, sort_keys=True, default=str)),
            "set of weights": _weights(model),
            "adapter": "" if model.adapter is None else model.adapter.digest,
            "dtype": str(model.dtype),
            "chat template": _hash(template.source if template is not None else ""),
            "tokenizer": _hash(tokenizer.definition() + str(sorted(tokenizer.eos_ids))),
        }

    def of(self, window: int | None, keep: int, system: str | None) -> Fingerprint:
        """The complete fingerprint of a cache of at most `window` tokens (None: unbounded), the
        first `keep` of which are never evicted."""
        return self._of_model | {
            "number of ranks": self._ranks,
            "window": window,
            "number of kept tokens": keep,
            "system prompt or note": _hash(system or ""),
        }

    def digest(self) -> str:
        """Identifies the model alone, whatever its cache, in hexadecimal."""
        return _hash(json.dumps(self._of_model, sort_keys=True))


def differences(own: Fingerprint, saved: Mapping[str, object]) -> list[str]:
    """How a fingerprint read from a file differs, in words."""
    names = {name for name in own if name not in saved or saved[name] != own[name]}
    # Each rank has another part of the weights, and an adapter's arrays are among them.
    if {"number of ranks", "adapter"} & names:
        names.discard("set of weights")
    return [f"different {name}" for name in own if name in names]


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


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
