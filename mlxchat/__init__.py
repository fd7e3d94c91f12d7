"""Chat and text generation in the terminal with MLX, without a length limit.

The public interface, which `app/public.py` lists, loaded on first use to keep `--help` fast:

    model = mlxchat.load("smollm2")
    cache = mlxchat.make_cache(model.network, max_kv_size=512, keep=4)
    prompt = model.tokenizer.prompt("Hello")
    for token in mlxchat.generate(mlxchat.Reply(model, prompt.ids, cache)):
        print(token.text, end="", flush=True)

`mlxchat.app` does what the commands do, checkpoints and the prefix cache included:

    request = mlxchat.Request(mlxchat.Setup("smollm2", window=512), "Hello", max_tokens=100)
    with mlxchat.begin(request) as run:
        for piece in run:
            print(piece.text, end="", flush=True)

Importing this package loads OpenBLAS, if installed, and makes mlx-lm's modules importable without
transformers. Both must happen before MLX is imported: see `platform.prepare_imports`.
"""

# ruff: noqa: F401
import sys

# In the program itself, Ctrl-C ends it silently until `cli.main` handles signals.
if "".join(sys.orig_argv[-len(sys.argv) :][:1]).rpartition("/")[2] == "mlxchat":
    # The module itself takes as long to import as the rest of Python.
    from _signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal  # type: ignore

    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, SIG_DFL)

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mlxchat.paths import __version__
from mlxchat.platform import prepare_imports

if TYPE_CHECKING:
    from mlxchat.app.public import *  # noqa: F403

prepare_imports()


def __getattr__(name: str) -> object:
    """Public names, loaded on first use. A module is imported by Python itself."""
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        raise AttributeError(f"module 'mlxchat' has no attribute {name!r}")
    return getattr(import_module("mlxchat.app.public"), name)


def __dir__() -> list[str]:
    return [each for each in dir(import_module("mlxchat.app.public")) if not each.startswith("_")]
