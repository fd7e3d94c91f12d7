"""Text and tokens: rendering and encoding prompts, reading replies. Knows nothing of models."""
