"""The store of converted models: each is converted once, under a lock, and found with a stat.

A conversion writes into `.partial-…` next to its final directory, which it is renamed to when every
file is on the disk. `convert` decides what the files contain.
"""

import filecmp
import shutil
from contextlib import suppress
from pathlib import Path

from mlxchat.errors import ModelBroken, ModelError
from mlxchat.files import check_not_lfs_pointer, exclusive, reported_as, sync_directory
from mlxchat.models.gguf.source import Source, identify
from mlxchat.progress import Notify

PARTIAL = ".partial-"
WEIGHTS = "model.safetensors"
WAITING = "waiting for another mlxchat that is converting a model"


def import_gguf(path: Path, models_dir: Path, notify: Notify) -> Path:
    """Convert a GGUF file once into a model directory below models_dir; return that directory.

    `notify` is called with a line when a conversion begins or another process's is waited for, but
    not if the directory exists. Several processes may call this at the same time.

    Raises ModelNotFound if `path` is not a file, ModelBroken if it is damaged, ModelUnsupported if
    it cannot be converted, ModelError if models_dir cannot be written. None of these leaves a
    directory.
    """
    source = identify(path)
    directory = models_dir / source.directory_name()
    # Failures to read the GGUF file are already ModelBroken: any OSError comes from writing.
    with reported_as(ModelError, f"store a converted model in {models_dir}"):
        if directory.is_dir():
            return directory
        check_not_lfs_pointer(path)
        models_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(models_dir, lambda: notify(WAITING)):
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
    """Store weights only once if another conversion has the same ones.

    A file that was moved counts as another source, as does the embedded model in each environment.
    """
    own, link = partial / WEIGHTS, partial / f"{PARTIAL}{WEIGHTS}"
    for other in partial.parent.glob(f"[!.]*/{WEIGHTS}"):
        # Some file systems have no hard links, and another process may be removing that model.
        with suppress(OSError):
            if filecmp.cmp(own, other, shallow=False):
                link.hardlink_to(other)
                link.replace(own)
                return


def _remove_partial(models_dir: Path) -> None:
    # We hold the lock of all conversions, so the processes that made these are dead.
    for partial in models_dir.glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)
