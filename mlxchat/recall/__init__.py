"""Finds the texts that a message needs, and abstains if none fits. Knows nothing of turns, tokens
or models, or of their use. All of it is in `choice`; `words.toml` lists words that say little.
"""
