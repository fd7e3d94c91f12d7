"""Chats saved as they go, in one SQLite database, and everything that can be done with them.

What a conversation is, is for `chat`; its tensors are in `store`. Read `session` first.
"""
