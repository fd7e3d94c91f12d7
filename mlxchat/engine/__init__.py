"""Prefill, decode, sampling, and rows side by side. Tokens in, tokens out.

Who reads the text, and what is saved of it, is for `chat` and `app`. Read `generate` first.
"""
