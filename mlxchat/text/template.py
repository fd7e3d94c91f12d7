"""Chat templates: messages in, the text that the model was trained to see out.

Templates come with the model, so they are untrusted: they run in Jinja's sandbox. Which of the
resulting text may become control tokens is the tokenizer's business: see `tokens`.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from mlxchat.errors import TemplateError

Message = Mapping[str, str]

NO_SYSTEM_ROLE = "this model's chat template has no system role: the system text leads the prompt"


class ChatTemplate:
    """A compiled template and the special tokens' texts that it may write.

    Raises TemplateError where the source is no Jinja template.
    """

    def __init__(self, source: str, special_texts: Mapping[str, str]) -> None:
        self.source = source
        self._special_texts = dict(special_texts)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template cannot be read: {error}") from error

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Write the messages out. Raises TemplateError with the template's own words if it refuses.

        `variables` are the template's own, such as `enable_thinking`. Source: the variables and
        functions are those of Hugging Face's `apply_chat_template`.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_texts,
                **variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise TemplateError(f"the model's chat template refuses this: {error}") from error

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the template writes a system message out, rather than refuse or drop it."""
        mark = "a system text"
        messages = [{"role": "system", "content": mark}, {"role": "user", "content": "a"}]
        try:
            return mark in self.render(messages)
        except TemplateError:
            return False

    def with_system(self, system: str | None, messages: Sequence[Message]) -> list[Message]:
        """The messages behind a system message, or behind its text where there is no such role.

        There the text leads the first message, which is the user's, as such models were trained.
        """
        if system is None:
            return list(messages)
        if self.has_system_role:
            return [{"role": "system", "content": system}, *messages]
        first = {**messages[0], "content": f"{system}\n\n{messages[0]['content']}"}
        return [first, *messages[1:]]


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks, for training, what an assistant wrote; here it only stands."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Not Jinja's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
