"""GGUF files: converted once into a model directory that mlx-lm's loader understands.

The interface is `import_gguf`, and the functions about the embedded model. Reading the file, its
configuration, tokenizer and weights each have a module. Nothing heavy is imported until a
conversion needs it.
"""

from mlxchat.models.gguf.embedded import embedded_gguf, how_to_install
from mlxchat.models.gguf.store import import_gguf

__all__ = ["embedded_gguf", "how_to_install", "import_gguf"]
