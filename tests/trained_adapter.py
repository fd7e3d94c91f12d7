"""Adapters trained by mlx-lm's own trainer on tiny models, in mlx-lm's layout and in PEFT's."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn, optimizers
from mlx.utils import tree_flatten

BASE = "org/tiny-4bit"
ROWS = [
    (list(text.encode()), 0) for text in ("to be or not to be", "a rose is a rose is", "ho " * 9)
]


def train(
    network: nn.Module,
    directory: Path,
    kind: str,
    *,
    rank: int = 4,
    scale: float = 5.0,
    keys: list[str] | None = None,
    seed: int = 0,
) -> Path:
    """Train `network`, which changes, and save the adapter as mlx_lm.lora does. `kind` is lora,
    dora or full."""
    from mlx_lm.tuner.trainer import TrainingArgs
    from mlx_lm.tuner.trainer import train as run_trainer
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(seed)
    parameters: dict[str, Any] = {"rank": rank, "scale": scale, "dropout": 0.0}
    if keys is not None:
        parameters["keys"] = keys
    layers: Any = network.layers
    network.freeze()
    if kind == "full":
        layers[-1].unfreeze()
    else:
        linear_to_lora_layers(network, len(layers), parameters, use_dora=kind == "dora")
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "fine_tune_type": kind,
        "model": BASE,
        "num_layers": len(layers),
        "lora_parameters": None if kind == "full" else parameters,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    args = TrainingArgs(
        batch_size=len(ROWS),
        iters=3,
        adapter_file=str(directory / "adapters.safetensors"),
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_trainer(network, optimizers.Adam(learning_rate=0.02), ROWS, args=args)
    return directory


def as_peft(adapter: Path, directory: Path, **changes: Any) -> Path:
    """The same low-rank adapter in PEFT's layout. `changes` are made to its configuration."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    parameters = config["lora_parameters"]
    stored: dict[str, mx.array] = {}
    names = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
    arrays: Any = mx.load(str(adapter / "adapters.safetensors"))
    for name, array in arrays.items():
        path, _, parameter = name.rpartition(".")
        stored[f"base_model.model.{path}.{names[parameter]}"] = array.T
    directory.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(directory / "adapter_model.safetensors"), stored, {"format": "pt"})
    described = {
        "peft_type": "LORA",
        "base_model_name_or_path": BASE,
        "r": parameters["rank"],
        "lora_alpha": parameters["scale"] * parameters["rank"],
        "use_dora": config["fine_tune_type"] == "dora",
        "bias": "none",
        "target_modules": sorted({name.split(".")[-2] for name in arrays}),
        **changes,
    }
    (directory / "adapter_config.json").write_text(json.dumps(described))
    return directory


def rewrite(directory: Path, **changes: Any) -> Path:
    """Change the configuration of an adapter."""
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def parameters_of(network: nn.Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(network.parameters())
    return dict(flat)
