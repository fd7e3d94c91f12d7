"""What lasts: snapshots of a cache, transcripts, sessions. Files only; nothing is printed here."""
