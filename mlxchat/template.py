"""Chat templates: messages in, the text that the model was trained to see out.

Templates come with the model, so they are untrusted: they run in Jinja's sandbox. Which of the
resulting text may become control tokens is the tokenizer's business: see `tokens`.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from mlxchat.errors import TemplateError

Message = Mapping[str, str]


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

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Write the messages out. Raises TemplateError with the template's own words if it refuses.

        Source: the variables and functions are those of Hugging Face's `apply_chat_template`.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_texts,
            )
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise TemplateError(f"the model's chat template refuses this: {error}") from error

    def render_with_system(self, prompt: str, system: str | None) -> tuple[str, bool]:
        """Write out one user message, after a system message if there is one.

        Returns the text and whether the template knows a system role. Where it does not, the
        system text goes before the user's, as such models were trained.
        """
        user = {"role": "user", "content": prompt}
        if system is None:
            return self.render([user]), True
        try:
            return self.render([{"role": "system", "content": system}, user]), True
        except TemplateError:
            return self.render([{"role": "user", "content": f"{system}\n\n{prompt}"}]), False


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
