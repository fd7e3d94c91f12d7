"""Documents of any size, as passages that can be searched. Knows nothing of tokens and models."""
