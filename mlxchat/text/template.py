"""Chat templates: turn messages into the text format that the model was trained on.

And a model's replies: a reply encoded again may yield other tokens than the model wrote. So texts
with known ids are tracked through a template: marks around them show which it leaves unchanged.

Templates come with the model and are untrusted, so they run in Jinja's sandbox. `tokens` decides
which parts of the resulting text may become control tokens.
"""

import datetime
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache, partial
from itertools import groupby, product
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np

from mlxchat.errors import TemplateError, first_line
from mlxchat.text.encoder import TokenIds
from mlxchat.text.reply_format import NO_THOUGHTS, Markers, Place, ReplyFormat
from mlxchat.text.reply_reader import Decoder, Reader, StreamDecoder, joined

Message = Mapping[str, str]

OF_THE_MODEL = "the model's chat template"

# The message fields in which templates look for a thought.
THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning", "thought")

# Only this name is sure to be a field; the others may be content parts or variables.
_READS_FIELD = re.compile(r"""[.'"]reasoning_content\b""")

# Texts to look for in what a template renders, which may escape any other characters.
_MARK, _THOUGHT = "aprobingtext", "aprobingthought"
_QUESTION: Message = {"role": "user", "content": "aprobingquestion"}
_PROBE: Message = {"role": "user", "content": _MARK}

# The tokens at the end of a prompt to search for the marker that begins the reply.
PROMPT_TAIL = 16
# Where a reply begins, as the prompt leaves it.
BEGINNINGS = (Place.START, Place.THOUGHT, Place.ANSWER, Place.HEADER)

NO_SYSTEM_ROLE = (
    "this model's chat template does not accept this system prompt: it becomes part of the first "
    "message"
)


class ChatTemplate:
    """A compiled template and the special tokens' texts that it may use. Messages call it `name`.

    Raises TemplateError if the source is not a Jinja template.
    """

    def __init__(
        self, source: str, special_texts: Mapping[str, str], name: str = OF_THE_MODEL
    ) -> None:
        self.source = source
        self.name = name
        self._special_texts = dict(special_texts)
        # Every prompt asks for the same one.
        self.takes_system = lru_cache(maxsize=16)(self._takes_system)
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            place = _place(error, name)
            raise TemplateError(f"cannot parse {name}{place}: {first_line(error)}") from error
        self._roles_in_parts = set[str]()
        self._find_roles_in_parts()

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Render the messages. Raises TemplateError with the template's own message if it fails.

        `variables` are the template's own, such as `enable_thinking`. Source: the variables and
        functions are those of Hugging Face's `apply_chat_template`.
        """
        try:
            return self._template.render(
                messages=[self._with_parts(each) for each in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_texts,
                **variables,
            )
        except Exception as error:
            place = _place(error, self.name)
            raise TemplateError(f"{self.name}{place} rejects this: {first_line(error)}") from error

    def _with_parts(self, message: Message) -> dict[str, Any]:
        """The message as the template takes it, its content as text or as a list of one part."""
        if message["role"] not in self._roles_in_parts:
            return {**message}
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def _find_roles_in_parts(self) -> None:
        """Find the roles whose text the template writes only in a list, as for images."""
        for role, others in (("user", ()), ("system", (_QUESTION,)), ("assistant", (_QUESTION,))):
            first = [_QUESTION] if role == "assistant" else []
            messages = [*first, {"role": role, "content": _MARK}, *others]
            if _MARK not in self.tried(messages):
                self._roles_in_parts.add(role)
                if _MARK not in self.tried(messages):
                    self._roles_in_parts.remove(role)

    def tried(self, messages: Sequence[Message], *how: Any, **variables: Any) -> str:
        """What `render` returns, and nothing if the template rejects the messages."""
        try:
            return self.render(messages, *how, **variables)
        except TemplateError:
            return ""

    def check(self) -> None:
        """Raise TemplateError if the template rejects a user's message or omits its text."""
        self.render([_PROBE])
        self.check_text()

    def check_text(self) -> None:
        """Raise TemplateError if the template omits a user's text, rather than reject it."""
        if self._omits_text:
            raise TemplateError(
                f"{self.name} does not write the user's messages: give another one with "
                "--chat-template"
            )

    @cached_property
    def _omits_text(self) -> bool:
        rendered = self.tried([_PROBE])
        return bool(rendered) and _MARK not in rendered

    def _takes_system(self, system: str) -> bool:
        """Whether the template renders this system message: some reject or drop an empty one."""
        said = ([{"role": "system", "content": text}, _QUESTION] for text in (system, _MARK))
        rendered, marked = map(self.tried, said)
        return bool(rendered) and _MARK in marked

    def with_system(self, system: str | None, messages: Sequence[Message]) -> list[Message]:
        """Prepend the system text: as a message, or to the first message if it is rejected as one.

        The first message is the user's; models without a system role were trained that way.
        """
        if system is None:
            return list(messages)
        if self.takes_system(system):
            return [{"role": "system", "content": system}, *messages]
        return [{**messages[0], "content": f"{system}\n\n{messages[0]['content']}"}, *messages[1:]]

    def texts_after_answer(self) -> Iterator[str]:
        """Yield the texts that follow an answer: the last one, and one before a question."""
        for more in ([], [_QUESTION]):
            answer = {"role": "assistant", "content": _MARK}
            _, found, after = self.tried([_QUESTION, answer, *more], False).rpartition(_MARK)
            if found:
                yield after

    def thoughts_in(self, format_: ReplyFormat, variables: Mapping[str, Any]) -> "Thoughts":
        """What the template does with the thoughts in earlier replies."""
        if format_ is NO_THOUGHTS or format_.has_channels:
            return Thoughts(inline=format_ is NO_THOUGHTS)

        def rendered(content: str, **fields: str) -> str:
            reply: Message = {"role": "assistant", "content": content, **fields}
            return self.tried([_QUESTION, reply, _QUESTION], **variables)

        tagged = f"{format_.opens}{format_.label}{_THOUGHT}{format_.closes}{_MARK}"
        alone, inline = rendered(_MARK), rendered(tagged)
        _, opens, after = alone.rpartition(format_.opens)
        is_open = opens and after.strip() in ("", format_.label.strip())
        opened = opens + after if is_open else format_.opens + format_.label
        if not alone or inline == alone:
            return Thoughts(True, opened, format_.closes)
        before, _, after = alone.partition(_MARK)
        markers = (*format_.markers,)
        is_enclosed = before.rstrip().endswith(markers) or after.lstrip().startswith(markers)
        in_field = rendered(_MARK, **dict.fromkeys(THOUGHT_FIELDS, _THOUGHT))
        reads_field = _READS_FIELD.search(self.source) is not None
        drops_field = reads_field and bool(in_field) and _THOUGHT not in in_field
        is_verbatim = inline == alone.replace(_MARK, tagged)
        return Thoughts(is_verbatim and not is_enclosed and not drops_field, opened, format_.closes)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How a template takes the thoughts in earlier replies.

    `inline`: within the content, between the format's tags, rather than in a field. `opened`: the
    text that begins a thought, as in the generation prompt if that opens one. `closes`: its end.
    """

    inline: bool
    opened: str = ""
    closes: str = ""


def _place(error: BaseException, name: str) -> str:
    """The line of a user's template; the model's is nowhere to be read."""
    if name == OF_THE_MODEL:
        return ""
    line = getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == "<template>":
            line = frame.lineno
    return f", line {line}" if line else ""


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    # Unlike Jinja's own filter, without escaping for HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """Ignores `{% generation %}`, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


# Replies, and other texts with known ids


class Kind(Enum):
    """The kind of a segment of a reply; a GAP is text between a marker and the text shown."""

    MARKER = auto()
    GAP = auto()
    THOUGHT = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A text, with its ids if they are known."""

    text: str
    ids: TokenIds | None = None
    kind: Kind = Kind.ANSWER


@dataclass(frozen=True, slots=True)
class Replies:
    """How to read one model's replies."""

    markers: Markers
    decoder: Decoder

    @property
    def format(self) -> ReplyFormat:
        return self.markers.format

    def reader(self, prompt: TokenIds | None = None, *, may_think: bool = True) -> Reader:
        """A reader for the reply to `prompt`; with None, for plain text without thoughts. Reads
        thoughts even if it does not expect any (`may_think`)."""
        markers = Markers(NO_THOUGHTS, {}) if prompt is None else self.markers
        place = self.place_after(prompt)
        return Reader(StreamDecoder(self.decoder), markers, place, may_think=may_think)

    def place_after(self, prompt: TokenIds | None) -> Place:
        """The place in which the reply to `prompt` begins, as the template leaves it."""
        markers = self.markers
        if prompt is None or self.format is NO_THOUGHTS:
            return Place.ANSWER
        tail = prompt[-PROMPT_TAIL:].tolist()
        if markers.tags:
            is_open = self.decoder.spelled(tail).rstrip().endswith(self.format.opens)
            return Place.THOUGHT if is_open else Place.START
        places = [place for place, id_ in enumerate(tail) if id_ in markers.roles]
        before, last = [-1, -1, *places][-2:]
        role, text = markers.roles.get(tail[last]), self.decoder.decode(tail[last + 1 :]).strip()
        match role:
            case Place.THOUGHT if text in ("", self.format.label.strip()):
                return Place.THOUGHT
            case Place.BODY if not text and before >= 0:
                header = self.decoder.decode(tail[before + 1 : last])
                return markers.after(role, Place.HEADER, header)
            case Place.HEADER:
                return Place.HEADER
            case _:
                return Place.START

    def split(
        self, text: str, place: Place = Place.START, *, keeps_newlines: bool = False
    ) -> tuple[str, str]:
        """Split a text with tags as plain text, which begins in `place`, into thought and answer.
        Newlines between the two are dropped, unless it `keeps_newlines`."""
        if self.format is NO_THOUGHTS or self.format.has_channels:
            return "", text
        reader = Reader(StreamDecoder(self.decoder), Markers(self.format, {}), place)
        reader.keeps_newlines = keeps_newlines
        return joined([*reader.read(text), *reader.finish()])

    def segments(self, ids: bytes | None, reply: str, thought: str) -> list[Segment]:
        """The reply in segments: as the model wrote it if the `ids` spell exactly that, with
        nothing cut off or left out, else as it would."""
        known = None if ids is None else np.frombuffer(ids, np.int32).tolist()
        written = None if known is None else self._written(known, reply, thought)
        if written is not None:
            return written
        if self.format is NO_THOUGHTS or not thought:
            return [Segment(reply, kind=Kind.ANSWER)]
        return [
            Segment(self.format.opens, kind=Kind.MARKER),
            Segment(self.format.label, kind=Kind.GAP),
            Segment(thought, kind=Kind.THOUGHT),
            Segment(self.format.closes, kind=Kind.MARKER),
            Segment("\n\n", kind=Kind.GAP),
            Segment(reply, kind=Kind.ANSWER),
        ]

    def _written(self, ids: list[int], reply: str, thought: str) -> list[Segment] | None:
        """The segments in the ids; None if they spell anything else."""
        text = self.decoder.spelled(ids)
        beginnings = BEGINNINGS if self.markers.roles else BEGINNINGS[:2]
        for place, keeps_newlines in product(beginnings, (False, True)):
            if self.markers.roles:
                reader = Reader(StreamDecoder(self.decoder), self.markers, place)
                reader.keeps_newlines = keeps_newlines
                found = list(self._read_by(reader, ids))
                if [_text(found, kind) for kind in (Kind.THOUGHT, Kind.ANSWER)] == [thought, reply]:
                    return found
            elif self.split(text, place, keeps_newlines=keeps_newlines) == (thought, reply):
                # Tags that are not tokens may share one with text: one segment for all.
                kind = Kind.GAP if thought else Kind.ANSWER
                return [Segment(text, np.array(ids, np.int32), kind)]
        return None

    def _read_by(self, reader: Reader, ids: list[int]) -> Iterator[Segment]:
        """The tokens by what the reader makes of each, those alike together."""

        def kind_of(id_: int) -> Kind:
            is_marker = reader.role(id_) is not None
            is_shown = any(text for _, text in reader.add(id_))
            if is_marker:
                return Kind.MARKER
            # Half a character is shown later, a control token never.
            is_hidden = not is_shown and not reader.has_pending and self.decoder.decode([id_])
            if is_hidden or reader.place not in (Place.THOUGHT, Place.ANSWER):
                return Kind.GAP
            return Kind.THOUGHT if reader.is_thought else Kind.ANSWER

        for kind, run in groupby(ids, kind_of):
            segment_ids = [*run]
            yield Segment(self.decoder.spelled(segment_ids), np.array(segment_ids, np.int32), kind)


def _text(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)


def enclosed(segments: Sequence[Segment], opened: str, closes: str) -> list[Segment]:
    """The segments with both markers around the thought: the prompt may have written the opening
    one, and an unfinished thought has no closing one."""
    kinds = [each.kind for each in segments]
    if Kind.THOUGHT not in kinds:
        return list(segments)
    from_end = kinds[::-1].index(Kind.THOUGHT)
    has_opening = Kind.MARKER in kinds[: kinds.index(Kind.THOUGHT)]
    has_closing = Kind.MARKER in kinds[len(kinds) - from_end :]
    before = [] if has_opening else [Segment(opened, kind=Kind.MARKER)]
    return [*before, *segments, *([] if has_closing else [Segment(closes, kind=Kind.MARKER)])]


# Renders each segment as the function given has it.
Render = Callable[[Callable[[Segment], str]], str]


def known_segments(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments with ids that it leaves unchanged keep
    these. `mark` is a character that occurs in none."""
    rendered = render(lambda each: each.text)
    found = [Segment(rendered)]
    known = [each for each in segments if each.ids is not None]
    # Marks would keep a template from trimming: leave out first the texts that it could trim.
    untrimmed = [each for each in known if each.text == each.text.strip()]
    for some in (untrimmed, known if len(known) > len(untrimmed) else []):
        parts = split_at(render, some, mark) if some else found
        if "".join(each.text for each in parts) == rendered:
            found = parts
    return found


def split_at(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments that it leaves unchanged, once, are apart
    from what is between them."""
    any_mark = re.compile(f"{mark}[0-9]+{mark}")
    marks = {each: f"{mark}{n}{mark}" for n, each in enumerate(segments)}
    rendered = render(lambda each: f"{marks.get(each, '')}{each.text}{marks.get(each, '')}")
    found: list[Segment] = []
    for each, own in marks.items():
        before, *after = rendered.split(f"{own}{each.text}{own}")
        if len(after) == 1:
            found += [Segment(any_mark.sub("", before)), each]
            (rendered,) = after
    return [*found, Segment(any_mark.sub("", rendered))]
