"""The rows of a batch: reads prompts from a file or stdin, and writes a line for each result.

It knows no models: `app.batch_run` runs the rows.
"""
