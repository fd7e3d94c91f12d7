"""Where converted models lie: found by a stat, made once, under a lock, and never half.

A conversion writes into `.partial-…` beside its final directory and is renamed into place when
every file is on disk. What is in a model and in its files is `convert`'s business.
"""

import filecmp
import shutil
from contextlib import suppress
from pathlib import Path

from mlxchat.errors import ModelBroken, ModelError
from mlxchat.files import alone, reported_as, sync_directory
from mlxchat.models.gguf.source import Source, identify
from mlxchat.progress import Notify

PARTIAL = ".partial-"
WEIGHTS = "model.safetensors"
WAITING = "waiting for another mlxchat that is converting a model"


def import_gguf(path: Path, models_dir: Path, notify: Notify) -> Path:
    """Convert a GGUF file once into a model directory below models_dir and return that directory.

    `notify` gets a line when a conversion begins or another process's is waited for, and nothing
    when the directory is there already. Two processes may call this at once.

    Raises ModelNotFound for a path that is no file, ModelBroken for a file that is damaged,
    ModelUnsupported for one that is sound but beyond us, ModelError if models_dir cannot be
    written. No directory is left behind by any of them.
    """
    source = identify(path)
    directory = models_dir / source.directory_name()
    # Failures to read the GGUF file are ModelBroken by then: what is left is ours to write.
    with reported_as(ModelError, f"store a converted model in {models_dir}"):
        if directory.is_dir():
            return directory
        models_dir.mkdir(parents=True, exist_ok=True)
        with alone(models_dir, lambda: notify(WAITING)):
            if not directory.is_dir():
                notify(f"converting {path.name} once, into {directory}")
                _convert_into_place(source, directory)
    return directory


def _convert_into_place(source: Source, directory: Path) -> None:
    """Convert into a partial directory and rename it; needs the lock."""
    from mlxchat.models.gguf.convert import convert

    _remove_partial(directory.parent)
    partial = directory.parent / f"{PARTIAL}{directory.name}"
    partial.mkdir()
    try:
        convert(source, partial)
        if identify(source.path) != source:
            raise ModelBroken(f"{source.path} changed while it was being converted: try again")
        _share_weights(partial)
        sync_directory(partial)
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(directory.parent)


def _share_weights(partial: Path) -> None:
    """Let weights that another conversion has as well lie on the disk once.

    A file that has moved is another source, as the embedded model is in each new environment.
    """
    own, link = partial / WEIGHTS, partial / f"{PARTIAL}{WEIGHTS}"
    for other in partial.parent.glob(f"[!.]*/{WEIGHTS}"):
        # Not every file system has hard links, and somebody may be removing that model now.
        with suppress(OSError):
            if filecmp.cmp(own, other, shallow=False):
                link.hardlink_to(other)
                link.replace(own)
                return


def _remove_partial(models_dir: Path) -> None:
    # We hold the lock that every conversion holds, so whoever made these is dead.
    for partial in models_dir.glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)
