"""Adapters: what mlx-lm's fine-tuning changed, kept apart from the weights of the model.

mlx-lm adds their arrays to the network and refuses those that do not fit. PEFT's are refused here.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.errors import MlxchatError, ModelError, device_failures
from mlxchat.files import reported_as
from mlxchat.models.skeleton import named_parameters
from mlxchat.models.weights import open_arrays
from mlxchat.options import in_home

# The files of mlx-lm's adapters: the configuration and the arrays.
FILES = CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
# What a low-rank module adds: two factors, and DoRA's magnitude.
FACTORS = ("lora_a", "lora_b", "m")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter on this disk. `name` is its directory's path, `digest` is of its files, in hex."""

    name: str
    digest: str


def find_adapter(name: str) -> Adapter:
    """The adapter in the directory of that name. Raises ModelError."""
    path = in_home(name).absolute()
    if not path.is_dir():
        raise ModelError(f"{name} is not a directory: name the one of the adapter")
    names = {each.name for each in path.glob("*")}
    if any(each.startswith("adapter_model.") for each in names) and not names.issuperset(FILES):
        raise ModelError(
            f"{path} is a PEFT adapter: fuse it into its model, or train with mlx_lm.lora"
        )
    if not names.issuperset(FILES):
        raise ModelError(f"{path} is not an adapter: it needs {CONFIG} and {WEIGHTS}")
    digest = hashlib.blake2b(digest_size=16)
    for each in FILES:
        with reported_as(ModelError, f"read {path / each}"), (path / each).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return Adapter(str(path), digest.hexdigest())


def apply_adapter(adapter: Adapter, network: nn.Module, dtype: mx.Dtype | None = None) -> None:
    """Add the adapter to the network and, unless `dtype` is None, read its arrays. In float32, all
    of them are converted; in any other `dtype`, as in mlx-lm, whole weights, not low-rank ones.

    Raises ModelError if it does not fit, ModelBroken if its file is damaged.
    """
    stored = set(open_arrays(Path(adapter.name, WEIGHTS)))
    try:
        with device_failures():
            platform.import_from_mlx_lm("tuner.utils").load_adapters(network, adapter.name)
            parameters = dict(named_parameters(network))
            # mlx-lm leaves missing factors at their random or zero start.
            expected = {name for name in parameters if name.rpartition(".")[2] in FACTORS}
            if not stored or expected - stored:
                raise ValueError(f"{WEIGHTS} is incomplete")
            if dtype is not None:
                arrays = [(name, parameters[name]) for name in stored]
                if dtype == mx.float32 or not expected:
                    arrays = [(n, a.astype(dtype)) for n, a in arrays if a.dtype != mx.uint32]
                    network.load_weights(arrays, strict=False)
                mx.eval(arrays)
    except MlxchatError:
        raise
    except Exception as error:  # whatever a configuration from elsewhere causes in mlx-lm
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = name + " ".join(map(str.strip, str(error).splitlines()[:2]))
        raise ModelError(f"cannot use adapter {adapter.name}: {reason}") from error
    network.eval()
