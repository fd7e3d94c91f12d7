"""Finds the texts that a message needs, and abstains if none fits. Knows nothing of turns."""
