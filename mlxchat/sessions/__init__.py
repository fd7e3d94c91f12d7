"""Chats saved as they go, in one SQLite database, and everything that can be done with them."""
