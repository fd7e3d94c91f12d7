"""A conversation: its turns, the part the model still sees, and the part it had to forget.

Where a conversation is stored is for `sessions`, what of it is shown for `terminal`. Read
`conversation` first.
"""
