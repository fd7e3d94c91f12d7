"""What other programs' options are called here, as the page `switching` has it.

The page is the only list: it is read when someone types a name that is not ours.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlxchat.manual import read_page

PAGE = "switching"

PROGRAM = re.compile(r"## From (.+)")
ROW = re.compile(r"\| (`.+?) \| (.+?) \|")
MISSING = re.compile(r"- (.+): ((?:`[^`]+`(?:, )?)+)")
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
CODE = re.compile(r"`([^`]+)`")
# Two dashes, or what llm writes before a model's option.
BEFORE_NAME = re.compile(r"^-\w |^--")

# The hint to use an option of ours.
OPTION = re.compile(r"use --([\w-]+)")
# What comes before a command's name.
COMMAND = re.compile(r"^(?:llm |ollama |mlx_lm\.)")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Options of another program, and ours in Markdown; if `is_missing`, the reason for none."""

    program: str
    names: tuple[str, ...]
    ours: str
    is_missing: bool

    @property
    def hint(self) -> str:
        """For an error, without markup and remarks."""
        if self.is_missing:
            return f"mlxchat has none: {self._plain(self.ours)}"
        return f"use {self._plain(self.ours.partition(';')[0])}"

    @staticmethod
    def _plain(markdown: str) -> str:
        return LINK.sub(r"\1", markdown).replace("`", "")


def equivalents() -> Iterator[Equivalent]:
    """Everything on the page, in order."""
    program = ""
    for line in read_page(PAGE).splitlines():
        if heading := PROGRAM.fullmatch(line):
            program = heading[1]
        elif program and (row := ROW.fullmatch(line)):
            yield Equivalent(program, tuple(CODE.findall(row[1])), row[2], is_missing=False)
        elif program and (missing := MISSING.fullmatch(line)):
            yield Equivalent(program, tuple(CODE.findall(missing[2])), missing[1], is_missing=True)


def hint_for(name: str) -> str | None:
    """What to use instead of another program's option; None if no program has it.

    If programs mean different things by the name, the hint says which.
    """
    return _hint(each for each in equivalents() if _key(name) in map(_key, each.names))


def option_for(name: str) -> str | None:
    """Our option's name without dashes, if that is what to use instead."""
    found = OPTION.match(hint_for(name) or "")
    return found[1] if found else None


def hint_for_command(word: str) -> str | None:
    """The same for a command of another program, such as `run`."""
    return _hint(
        each
        for each in equivalents()
        if any(COMMAND.sub("", name) == word for name in each.names if COMMAND.match(name))
    )


def _hint(found: Iterable[Equivalent]) -> str | None:
    hints: dict[str, list[str]] = {}
    for each in found:
        hints.setdefault(each.hint, []).append(each.program)
    if len(hints) <= 1:
        return next(iter(hints), None)
    return "; ".join(f"from {' and '.join(programs)}, {hint}" for hint, programs in hints.items())


def _key(name: str) -> str:
    """The name as people may vary it: `--num_ctx`, `num_ctx` and `-o num_ctx` are one."""
    return BEFORE_NAME.sub("", name).replace("_", "-")
