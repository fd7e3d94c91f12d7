"""The two loops, prefill and decode, and generation. Tokens in, token records out."""
