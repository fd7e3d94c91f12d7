"""Shell completion: models, sessions, prompts, prefixes.

It must be quick, so nothing here imports MLX. Errors never write to the line being typed. If there
is no match, the shell completes file names.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from functools import wraps
from io import StringIO
from typing import ParamSpec

VARIABLE = "_MLXCHAT_COMPLETE"
WIDE = 10_000

P = ParamSpec("P")
Names = Iterable[str | tuple[str, str]]


def asked() -> bool:
    """Whether a shell runs this process to complete a line."""
    return os.environ.get(VARIABLE, "").startswith("complete_")


def answer(app: Callable[..., object]) -> None:
    """Answer the shell, and exit. Errors are not shown."""
    # Wrapped help would count as several answers.
    os.environ["COLUMNS"] = str(WIDE)
    with redirect_stderr(StringIO()), suppress(Exception, KeyboardInterrupt):
        app(prog_name="mlxchat")


def quietly(names: Callable[P, Names]) -> Callable[P, list[str | tuple[str, str]]]:
    """No names if there is an error: a command reports it when it runs."""

    @wraps(names)
    def quiet(*arguments: P.args, **named: P.kwargs) -> list[str | tuple[str, str]]:
        with suppress(Exception):
            return [_spelled(name) for name in names(*arguments, **named)]
        return []

    return quiet


def _spelled(name: str | tuple[str, str]) -> str | tuple[str, str]:
    """The name as it must be typed: bash does not quote it, other shells do."""
    if os.environ.get(VARIABLE) != "complete_bash":
        return name
    text = name if isinstance(name, str) else name[0]
    return re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", text)


@quietly
def complete_model(incomplete: str) -> Names:
    """All names of models; the shell completes paths itself."""
    if incomplete.startswith(("/", ".", "~")):
        return []
    from mlxchat.models.catalog import all_names

    return all_names()


@quietly
def complete_model_here(incomplete: str) -> Names:
    """Models on this disk that mlxchat or the Hub keep."""
    from mlxchat.models.catalog import names_here

    return names_here()


@quietly
def complete_session(incomplete: str) -> Names:
    from mlxchat.sessions.database import names_by_use

    return names_by_use()


@quietly
def complete_prompt(incomplete: str) -> Names:
    from mlxchat.config.file import read_user_config

    return sorted(read_user_config().prompts)
