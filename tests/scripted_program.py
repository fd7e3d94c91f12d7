"""Runs `mlxchat` with models that say what `script.json` in their directory contains.

    python -m tests.scripted_program -m MODEL …

The rest of the program, and the cache, are real.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

from mlxchat.app import opening
from mlxchat.cli import main
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from tests.scripted_model import follow_script

if TYPE_CHECKING:
    # The program starts faster without it.
    import pytest


def load_scripted(directory: Path, *args: Any, **options: Any) -> Model:
    model = load_directory(directory, *args, **options)
    follow_script(model.network, json.loads((directory / "script.json").read_text()))
    return model


# A script has one token for each step.
WITHOUT_DRAFTS = {"MLXCHAT_CHAT_LOOKUP": "false", "MLXCHAT_GENERATE_LOOKUP": "false"}


def say_scripts(patch: "pytest.MonkeyPatch") -> None:
    """Let models in this process follow their scripts."""
    patch.setattr(opening, "load_directory", load_scripted)
    for name, value in WITHOUT_DRAFTS.items():
        patch.setenv(name, value)


if __name__ == "__main__":
    opening.load_directory = load_scripted
    os.environ.update(WITHOUT_DRAFTS)
    main()
