"""GGUF files: converted once into a model directory that mlx-lm's loader understands.

`import_gguf` is the interface, beside what there is to know of the file that may come installed.
Reading the file, its configuration, tokenizer and weights are a module each. Nothing heavy is
imported until there is something to convert.
"""

from mlxchat.models.gguf.embedded import embedded_gguf, how_to_install
from mlxchat.models.gguf.store import import_gguf

__all__ = ["embedded_gguf", "how_to_install", "import_gguf"]
