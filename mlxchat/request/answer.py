"""The form of the answer: a constraint, or the code block to extract."""

from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import UsageError
from mlxchat.options import NOT_EMPTY, Panel, check_options, option
from mlxchat.request.pairs import CONSTRAINTS, refuse_pairs


@dataclass(frozen=True, slots=True)
class Answer:
    """The form of the answer, and how much of it is written.

    At most one of `schema`, `schema_multi`, `regex`, `choice` and `grammar` constrains it.
    `extract` writes only the first fenced code block. `prefill` is the
    answer's beginning, which the model continues.
    """

    schema: str | None = option(
        None,
        "Answer in JSON by a schema, its file, or names",
        Panel.ANSWER,
        common=True,
        metavar="SCHEMA",
    )
    schema_multi: str | None = option(
        None, "As a schema, but for a list of items", Panel.ANSWER, metavar="SCHEMA"
    )
    regex: str | None = option(None, "Answer with text that matches", Panel.ANSWER, metavar="REGEX")
    choice: tuple[str, ...] = option(
        (), "Answer with this or another choice; repeatable", Panel.ANSWER, metavar="TEXT"
    )
    grammar: Path | None = option(None, "Answer by a grammar in Lark's format", Panel.ANSWER)
    schema_prompt: bool = option(
        False, "Add the schema to the system prompt", Panel.ANSWER, negatable=False
    )
    prefill: str | None = option(
        None, "Begin the answer with this text", Panel.ANSWER, metavar="TEXT", must=NOT_EMPTY
    )
    extract: bool = option(
        False, "Write only the first code block", Panel.ANSWER, short="x", negatable=False
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_pairs(self)
        if self.schema_prompt and not {"schema", "schema_multi"} & set(self.constraints()):
            raise UsageError("--schema-prompt needs --schema")

    def constraints(self) -> list[str]:
        """The fields that constrain the answer."""
        return [name for name in CONSTRAINTS if getattr(self, name) not in (None, ())]
