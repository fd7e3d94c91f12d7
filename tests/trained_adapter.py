"""Adapters trained by mlx-lm's own trainer on tiny models."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn, optimizers

BASE = "org/tiny-4bit"
ROWS = [
    (list(text.encode()), 0) for text in ("to be or not to be", "a rose is a rose is", "ho " * 9)
]


def train(network: nn.Module, directory: Path, kind: str) -> Path:
    """Train `network`, which changes, and save the adapter as mlx_lm.lora does. `kind` is lora,
    dora or full."""
    from mlx_lm.tuner.trainer import TrainingArgs
    from mlx_lm.tuner.trainer import train as run_trainer
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(0)
    parameters: dict[str, Any] = {"rank": 4, "scale": 5.0, "dropout": 0.0}
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


def rewrite(directory: Path, **changes: Any) -> Path:
    """Change the configuration of an adapter."""
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory
