"""Chat and text generation in the terminal with MLX, without a length limit.

The public interface, loaded on first use to keep `mlxchat --help` fast:

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

# ruff: noqa: F401, PLE0604  (names are exported by the table _HOMES)
import sys

# In the program itself, Ctrl-C ends it silently until `cli.main` handles signals.
if "".join(sys.orig_argv[-len(sys.argv) :][:1]).rpartition("/")[2] == "mlxchat":
    # The module itself takes as long to import as the rest of Python.
    from _signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal  # type: ignore

    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, SIG_DFL)

from importlib import import_module
from typing import TYPE_CHECKING

from mlxchat.paths import __version__
from mlxchat.platform import prepare_imports

if TYPE_CHECKING:
    from mlxchat.app.batch_run import open_batch
    from mlxchat.app.begin import begin, resume
    from mlxchat.app.chat import Chat
    from mlxchat.app.observer import Observer
    from mlxchat.app.opening import open_model
    from mlxchat.app.run import Run
    from mlxchat.cache import make_cache
    from mlxchat.chat.conversation import Conversation
    from mlxchat.chat.turn import Forgot
    from mlxchat.constraint.constraint import Constraint
    from mlxchat.engine.blocks import BlockReader
    from mlxchat.engine.generate import generate
    from mlxchat.engine.reply import Reply
    from mlxchat.errors import MlxchatError
    from mlxchat.models.load import load
    from mlxchat.models.model import Model
    from mlxchat.request import (
        Answer,
        BatchInput,
        BatchRequest,
        ChatOptions,
        Overnight,
        Request,
        Setup,
    )
    from mlxchat.request.batch import RowTemplate
    from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
    from mlxchat.store.block_store import DiskBlocks
    from mlxchat.text.parts import Part, encode_parts

# The public names, by the module that has them.
_HOMES = {
    "app.batch_run": ("open_batch",),
    "app.begin": ("begin", "resume"),
    "app.chat": ("Chat",),
    "app.observer": ("Observer",),
    "app.opening": ("open_model",),
    "app.run": ("Run",),
    "cache": ("make_cache",),
    "chat.conversation": ("Conversation",),
    "chat.turn": ("Forgot",),
    "constraint.constraint": ("Constraint",),
    "engine.blocks": ("BlockReader",),
    "engine.generate": ("generate",),
    "engine.reply": ("Reply",),
    "errors": ("MlxchatError",),
    "models.load": ("load",),
    "models.model": ("Model",),
    "request": ("Answer", "BatchInput", "BatchRequest", "ChatOptions", "Overnight", "Request"),
    "request.batch": ("RowTemplate",),
    "request.setup": ("Setup",),
    "settings": ("CacheSettings", "GenerationSettings", "SamplingSettings"),
    "store.block_store": ("DiskBlocks",),
    "text.parts": ("Part", "encode_parts"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]

prepare_imports()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'mlxchat' has no attribute {name!r}")
    return getattr(import_module(f"mlxchat.{_HOME[name]}"), name)
