"""The model's memory: keys and values, and which of them a token sees. MLX only; no text, no files.

Which tokens go in, and when, is for `engine` and `chat`. Read `window` first: the visible set; then
`ring` and `positions`. `build` makes the cache of a model.
"""
