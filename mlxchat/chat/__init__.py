"""A conversation: what was said, what of it is held, and what had to be forgotten."""
