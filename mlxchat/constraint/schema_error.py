"""What is wrong with a schema, with its place."""

from typing import NoReturn

from mlxchat.constraint.json_path import Path, spell


class SchemaError(ValueError):
    """What is wrong with a schema, in one line that names the place."""


def refuse(path: Path, reason: str) -> NoReturn:
    raise SchemaError(f"{spell(path)}: {reason}")
