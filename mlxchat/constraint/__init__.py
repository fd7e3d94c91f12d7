"""What the next token may be: constraints given by a schema, an expression, choices or a grammar.

Knows text, and checks finished answers; `engine` applies masks. Read `constraint` first.
"""
