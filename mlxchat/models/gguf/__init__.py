"""GGUF files: converted once into a model directory that mlx-lm's loader understands.

`import_gguf` is the whole interface. Reading the file, its configuration, tokenizer and weights
are a module each. Nothing heavy is imported until there is something to convert.
"""

from mlxchat.models.gguf.embedded import embedded_gguf
from mlxchat.models.gguf.store import import_gguf

__all__ = ["embedded_gguf", "import_gguf"]
