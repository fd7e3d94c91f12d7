"""The rows of a batch: reads prompts from a file or stdin, and writes a line for each result.

Knows no models: `app` runs the rows. Read `read` first: each form of input.
"""
