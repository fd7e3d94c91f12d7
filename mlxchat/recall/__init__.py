"""Finds the texts that a message needs, and abstains if none fits. Knows nothing of turns, tokens
or models; what a found text is used for is for `chat`. All of it is in `choice`; `words.toml` lists
the words that say little.
"""
