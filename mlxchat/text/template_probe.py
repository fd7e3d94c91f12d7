"""Find out what a chat template does with a reply, by rendering one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxchat.errors import TemplateError
from mlxchat.text.replies import Kind, Segment
from mlxchat.text.reply_format import NO_THOUGHTS, ReplyFormat
from mlxchat.text.template import ChatTemplate, Message

# The message fields in which templates look for a thought.
THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning", "thought")

# Only this name is sure to be a field; the others may be content parts or variables.
_READS_FIELD = re.compile(r"""[.'"]reasoning_content\b""")

_THOUGHT, _ANSWER = "a-probing-thought", "a-probing-answer"


@dataclass(frozen=True, slots=True)
class Probed:
    """What a template does with thoughts.

    `inline`: whether it takes them within the content, between the format's tags, rather than in a
    field. `opened`: the text that begins a thought, as in the generation prompt if that opens one.
    `closes`: the closing tag.
    """

    inline: bool
    opened: str = ""
    closes: str = ""


def probe(template: ChatTemplate, format_: ReplyFormat, variables: Mapping[str, Any]) -> Probed:
    """Find out what the template does with the thoughts in earlier replies."""
    if format_ is NO_THOUGHTS or format_.has_channels:
        return Probed(inline=format_ is NO_THOUGHTS)
    raw = f"{format_.opens}{format_.label}{_THOUGHT}{format_.closes}{_ANSWER}"
    alone, inline = (_rendered(template, content, variables) for content in (_ANSWER, raw))
    opened = _opened(alone or "", format_)
    if alone is None or inline == alone:
        return Probed(True, opened, format_.closes)
    is_verbatim = inline == alone.replace(_ANSWER, raw)
    drops = is_enclosed(alone, format_) or _drops_field(template, variables)
    return Probed(is_verbatim and not drops, opened, format_.closes)


def _drops_field(template: ChatTemplate, variables: Mapping[str, Any]) -> bool:
    """Whether the template has a field for thoughts but omits them from earlier replies."""
    if not _READS_FIELD.search(template.source):
        return False
    rendered = _rendered(template, _ANSWER, variables, dict.fromkeys(THOUGHT_FIELDS, _THOUGHT))
    return rendered is not None and _THOUGHT not in rendered


def _opened(rendered: str, format_: ReplyFormat) -> str:
    _, opens, after = rendered.rpartition(format_.opens)
    is_open = opens and after.strip() in ("", format_.label.strip())
    return opens + after if is_open else format_.opens + format_.label


def is_enclosed(rendered: str, format_: ReplyFormat) -> bool:
    """Whether the template itself adds the format's markers to an answer."""
    before, _, after = rendered.partition(_ANSWER)
    before, after = before.rstrip(), after.lstrip()
    return any(before.endswith(each) or after.startswith(each) for each in format_.markers)


def texts_after_answer(template: ChatTemplate) -> Iterator[str]:
    """Yield the texts that follow an answer: the last one, and one before a question."""
    question = {"role": "user", "content": "a-probing-question"}
    answer = {"role": "assistant", "content": _ANSWER}
    for messages in ([question, answer], [question, answer, question]):
        try:
            rendered = template.render(messages, add_generation_prompt=False)
        except TemplateError:
            continue
        _, found, after = rendered.rpartition(_ANSWER)
        if found:
            yield after


def enclosed(segments: Sequence[Segment], probed: Probed) -> list[Segment]:
    """The segments with both markers around the thought: the prompt may have written the opening
    one, and an unfinished thought has no closing one."""
    thoughts = [number for number, segment in enumerate(segments) if segment.kind is Kind.THOUGHT]
    if not thoughts:
        return list(segments)
    first, last = thoughts[0], thoughts[-1]
    markers = [number for number, each in enumerate(segments) if each.kind is Kind.MARKER]
    opens = [Segment(Kind.MARKER, probed.opened)] if not markers or markers[0] > first else []
    closes = [Segment(Kind.MARKER, probed.closes)] if not markers or markers[-1] < last else []
    return [*opens, *segments, *closes]


def _rendered(
    template: ChatTemplate,
    content: str,
    variables: Mapping[str, Any],
    fields: Mapping[str, str] | None = None,
) -> str | None:
    question: Message = {"role": "user", "content": "a-probing-question"}
    reply: Message = {"role": "assistant", "content": content, **(fields or {})}
    try:
        return template.render([question, reply, question], **variables)
    except TemplateError:
        return None
