"""GGUF files: converted once into a model directory that mlx-lm's loader understands.

Reading the file, its configuration, tokenizer and weights each have a module, imported by a
conversion only.
"""

from mlxchat.models.gguf.store import embedded_gguf, how_to_install, import_gguf

__all__ = ["embedded_gguf", "how_to_install", "import_gguf"]
