"""From a model's name to a model in memory: resolve, hub, gguf, load, describe."""
