"""From a model's name to a model in memory: its files, weights and tokenizer.

The only importer of the Hub and of mlx-lm's loading. What is generated with it is for `engine`.
Read `resolve` first, then `load`; `gguf` converts other files.
"""
