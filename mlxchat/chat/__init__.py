"""A conversation: its turns, the part the model still sees, and the part it had to forget.

`sessions` stores conversations, `terminal` shows them. Read `conversation` first.
"""
