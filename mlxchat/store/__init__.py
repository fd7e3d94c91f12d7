"""Persistent data: snapshots of a cache, transcripts, sessions. Files only; prints nothing."""
