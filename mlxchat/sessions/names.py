"""The names of sessions. Light, because shell completion imports it."""

import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

from mlxchat.errors import SessionError

MAX_NAME_CHARS = 100
_NAME = re.compile(r"\w(?:[\w .-]*[\w-])?")


def check_name(name: str) -> None:
    """Raises SessionError, describing valid names, for an invalid one."""
    if not is_name(name):
        raise SessionError(
            f"invalid session name {name[:MAX_NAME_CHARS]!r}: use letters, digits, spaces and "
            f"-_., at most {MAX_NAME_CHARS} characters, starting with a letter or digit and not "
            "ending with a space or dot"
        )


def is_name(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) is not None


def folded(name: str) -> str:
    """Equal for names that differ only in case or in the encoding of accents: they are the same."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def already_exists(name: str) -> SessionError:
    return SessionError(f"session {name!r} already exists: choose another name")


def not_found(name: str, names: Iterable[str]) -> SessionError:
    """The error for a missing session, with the name most like it."""
    near = get_close_matches(name, list(names), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SessionError(f"no session named {name!r}{hint}")
