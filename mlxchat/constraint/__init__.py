"""What the next token may be: constraints given by a schema, an expression, choices or a grammar.

Knows text and tokens; applying a mask while decoding is left to `engine`.
"""
