"""The loops: prefill, decode, and a generation with its end. Tokens in, token records out."""
