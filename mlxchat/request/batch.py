"""Many prompts at once: where the rows come from, how each is generated, where results go."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from mlxchat.errors import UsageError
from mlxchat.options import INPUT_FORMS, between, check_options, option, same_as
from mlxchat.request.generate import Asking, Overnight
from mlxchat.settings import GenerationSettings

# Unlike a generation that is watched, a row must end.
DEFAULT_MAX_TOKENS = 2_048
MAX_ROWS = 1_024

# A brace of a row's template: doubled, around a field, or alone.
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")

# Files that are tables without --csv.
TABLES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """A prompt with `fields` in braces, filled in from each row: `Classify: {input}`.

    `{{` and `}}` are literal braces. A field is a name and nothing else: no attribute, index or
    format is ever evaluated, and the values are never searched for fields.
    """

    text: str
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "RowTemplate":
        """Raises UsageError for a single brace, an empty name, and a template without fields."""
        parts = [(match[0], match[1]) for match in _PART.finditer(text)]
        names = [name.strip() for _, name in parts if name is not None]
        if brace := next((part for part, _ in parts if part in ("{", "}")), ""):
            raise UsageError(f"--template has a single {brace}: write {brace * 2} for it")
        if "" in names:
            raise UsageError("--template has an empty field: name it in the braces, as in {input}")
        if not names:
            raise UsageError("--template must contain a field of the row, such as {input}")
        return cls(text, tuple(dict.fromkeys(names)))

    def fill(self, values: Mapping[str, str]) -> str:
        """The prompt of a row. Raises KeyError for a field that has no value."""
        return _PART.sub(
            lambda match: match[0][0] if match[1] is None else values[match[1].strip()], self.text
        )


@dataclass(frozen=True, slots=True)
class BatchInput:
    """JSON Lines, or as `lines`, `csv`, a `pattern` of files or the file's name say.

    `path` None is standard input.
    """

    path: Path | None = None
    lines: bool = option(False, "Read plain text, one prompt per line", common=True)
    csv: bool = option(False, "Read a table with a header", common=True)
    pattern: str | None = option(
        None,
        "Read each file that matches the quoted PATTERN, only one",
        name="files",
        common=True,
        metavar="PATTERN",
    )
    template: RowTemplate | None = option(
        None,
        "Prompt with fields of the row, such as 'Classify: {input}'",
        short="t",
        common=True,
        parse=RowTemplate.parse,
    )

    @property
    def form(self) -> str:
        """The form of the rows: the option that is given, or what the file's name says."""
        given = [name for name in INPUT_FORMS if getattr(self, name)]
        is_table = self.path is not None and self.path.suffix.lower() in TABLES
        return given[0] if given else "csv" if is_table else "json"

    def __post_init__(self) -> None:
        check_options(self)
        if self.path is not None:
            object.__setattr__(self, "path", Path(self.path))
        if self.pattern is not None and self.path is not None:
            raise UsageError(f"{self.path} and --files cannot be combined: quote the pattern")


@dataclass(frozen=True, slots=True)
class BatchRequest(Asking):
    """Rows, and the options of each that has not its own.

    `output` None is standard output; a file that exists is continued. `rows` run side by side;
    None means as many as fit in memory.
    """

    input: BatchInput = field(default_factory=BatchInput)
    output: Path | None = same_as(
        Overnight, "output", help="Write results to a file, or continue it", if_unset="stdout"
    )
    rows: int | None = option(
        None,
        "Rows to run side by side",
        common=True,
        metavar="ROWS",
        must=between(1, MAX_ROWS),
        if_unset="as many as fit",
    )
    _: KW_ONLY
    max_tokens: int = same_as(
        GenerationSettings, "max_tokens", default=DEFAULT_MAX_TOKENS, if_unset=None
    )
    lookup: bool | None = same_as(GenerationSettings, "lookup", if_unset="on if rows run alone")
    logprobs: int | None = same_as(
        GenerationSettings, "logprobs", help="Log-probabilities of the K likeliest tokens"
    )

    def __post_init__(self) -> None:
        check_options(self, self.setup, self.answer)
        if self.setup.pipeline or self.answer.extract:
            wrong = "--pipeline" if self.setup.pipeline else "--extract"
            raise UsageError(f"{wrong} is not available in a batch")
