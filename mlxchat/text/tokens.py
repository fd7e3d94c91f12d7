"""Text to token ids and back. Only a chat template can make control tokens; text never does.

Works on a loaded `tokenizers` backend; finding its files is left to `models`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from mlxchat.errors import TemplateError
from mlxchat.text.encoder import Encoder, TokenIds, token_bytes, unused_marks
from mlxchat.text.reply_format import NO_THOUGHTS, Place, find_markers
from mlxchat.text.reply_reader import Decoder, Reader, StreamDecoder, joined
from mlxchat.text.template import (
    NO_SYSTEM_ROLE,
    THOUGHT_FIELDS,
    ChatTemplate,
    Kind,
    Message,
    Replies,
    Segment,
    Thoughts,
    enclosed,
    known_segments,
    split_at,
)
from mlxchat.units import Progress

# A shorter block is read as quickly as it is joined.
MIN_BLOCK_TOKENS = 64

NO_IDS = np.empty(0, np.int32)

# The end of a thought that is cut off. Without it, many models go on thinking in the answer.
CUT_OFF = "\n\nI have thought long enough and will give my answer now."


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids `(T,)` ready for prefill, and notices about how they were made.

    `blocks` are the spans of ids, in order, to be cached for other prompts; the first `head` ids
    are what the template writes before all of them. The last `written` ids are the beginning of the
    reply; of these, the last `answer` are text of the answer.
    """

    ids: TokenIds
    notices: tuple[str, ...] = ()
    head: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    written: int = 0
    answer: int = 0

    @property
    def asked(self) -> TokenIds:
        """The ids before the reply."""
        return self.ids[: len(self.ids) - self.written]

    @property
    def begun(self) -> TokenIds:
        """The ids of the reply."""
        return self.ids[len(self.ids) - self.written :]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. A reply may have a `thought` in addition to its content;
    `ids` are the tokens that the model wrote for both, markers included."""

    role: str
    content: str
    ids: TokenIds | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Text in the user's message. `cache` makes it a block, which notices call `name`."""

    text: str
    cache: bool = False
    name: str = "a block"


# The role of a message, and the texts of each of its fields for the template.
_Written = tuple[str, dict[str, list[Segment]]]


class Tokenizer:
    """A model's vocabulary, its chat template (None if it has none) and its end tokens."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self._decoder = Decoder(backend)
        self.decode = self._decoder.decode
        self.template = template
        self._files_eos_ids = frozenset(eos_ids)
        source = template.source if template is not None else ""
        added = {} if template is None else backend.get_added_tokens_decoder()
        self.replies = Replies(find_markers(added, source), self._decoder)
        self.reader = self.replies.reader
        self._encoder = Encoder(backend, source, self.replies.markers.roles)
        self.encode = self._encoder.encode
        self._thoughts: dict[str, Thoughts] = {}
        # A conversation is rendered repeatedly, with the same replies.
        self._segments = lru_cache(maxsize=1024)(self.replies.segments)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn: by the model's files, its template, and its reply format."""
        roles = self.replies.markers.roles
        named = self.replies.format.ends if roles else ()
        ends = {self._backend.token_to_id(text) for text in named}
        after = () if self.template is None else self.template.texts_after_answer()
        ends |= {self._first_control(text, roles) for text in after}
        # A token that also closes a thought does not end the turn by itself.
        closing = {id_ for id_, role in roles.items() if role is Place.END}
        return (self._files_eos_ids | {id_ for id_ in ends if id_ is not None}) - closing

    def _first_control(self, text: str, left_out: Collection[int]) -> int | None:
        """The control token at the beginning of the text, skipping any that are left out."""
        controls = self._encoder.control_ids.items()
        found = {each: id_ for id_, each in controls if text.startswith(each)}
        longest = max(found, key=len, default="")
        if found.get(longest) not in left_out:
            return found.get(longest)
        return self._first_control(text.removeprefix(longest), left_out)

    def prompt(
        self,
        text: str,
        system: str | None = None,
        on_progress: Progress | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Render `text` as the user's message and encode it up to the beginning of the reply.

        `on_progress(done, total)` counts characters. Raises what `chat` raises.
        """
        message = ChatMessage("user", text)
        return self.chat([message], system, variables=variables, on_progress=on_progress)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        system: str | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        on_progress: Progress | None = None,
    ) -> Prompt:
        """Render a conversation and encode it up to the beginning of the next reply.

        Replies whose ids spell them keep these if the template writes their text unchanged, since
        encoding it again may split it differently. `variables` are the template's own. Raises
        TemplateError if the model has no chat template or the template rejects the messages.
        """
        own = chain.from_iterable((m.content, m.thought) for m in messages)
        render, mark, span = self._renderer(system, variables, own)
        written = [self._written(message, mark, variables or {}) for message in messages]
        texts = chain.from_iterable(texts for _, fields in written for texts in fields.values())

        def rendered(text_of: Callable[[Segment], str]) -> str:
            said = [
                {"role": role, **{name: "".join(map(text_of, f)) for name, f in fields.items()}}
                for role, fields in written
            ]
            return render(said)

        segments = known_segments(rendered, dict.fromkeys(texts), span)
        ids = np.concatenate(self._encoded(segments, mark, on_progress))
        if len(ids) == 0:
            raise TemplateError(f"{self._require_template().name} renders an empty prompt")
        return Prompt(ids, self._system_notices(system))

    def encode_parts(
        self,
        parts: Sequence[Part],
        system: str | None = None,
        *,
        raw: bool = False,
        variables: Mapping[str, Any] | None = None,
        on_progress: Progress | None = None,
    ) -> Prompt:
        """Encode the parts as the user's message, or with `raw` as plain text; each on its own, so
        that a block has the same ids in every prompt.

        A block that is too short is treated as ordinary text, with a notice. `on_progress(done,
        total)` counts the characters of a part. Raises what `chat` raises, and TemplateError if the
        template does not write each block unchanged, once.
        """
        texts = [part.text for part in parts]
        if raw:
            # What a template that adds nothing would render.
            render, (mark, span) = (lambda said: said[0]["content"]), unused_marks("".join(texts))
        else:
            render, mark, span = self._renderer(system, variables, texts)
        begin = Segment("", NO_IDS)
        segments = {
            Segment(
                self._encoder.cut(part.text, mark),
                self.encode(part.text, on_progress, begins=False) if part.cache else None,
            ): part
            for part in parts
        }

        def rendered(text_of: Callable[[Segment], str]) -> str:
            content = text_of(begin) + mark.join(map(text_of, segments))
            return render([{"role": "user", "content": content}])

        blocks = {each: part for each, part in segments.items() if part.cache}
        found = split_at(rendered, [begin, *blocks], span)
        if not {begin, *blocks}.issubset(found):
            raise TemplateError(f"{self._require_template().name} does not leave text unchanged")
        notices = [] if raw else [*self._system_notices(system)]
        ids = self.raw_prompt("").ids if raw else NO_IDS
        head, places = 0, list[tuple[int, int]]()
        for each, more in zip(found, self._encoded(found, mark, on_progress), strict=True):
            start, ids = len(ids), np.concatenate([ids, more])
            if each is begin:
                head = start
            elif each in blocks and len(more) < MIN_BLOCK_TOKENS:
                tokens = f"{len(more)} tokens, fewer than {MIN_BLOCK_TOKENS}"
                notices.append(f"{blocks[each].name} is not kept as a block: it has {tokens}")
            elif each in blocks:
                places.append((start, len(ids)))
        return Prompt(ids, tuple(notices), head=head, blocks=tuple(places))

    def _encoded(
        self, segments: Iterable[Segment], mark: str, on_progress: Progress | None
    ) -> list[TokenIds]:
        """The ids of each segment of a text; those without ids are cut with the mark."""
        encoded: list[TokenIds] = []
        for each in segments:
            encoded.append(
                self._encoder.encode_cut(each.text, mark, on_progress, not any(map(len, encoded)))
                if each.ids is None
                else each.ids
            )
        return encoded

    def _renderer(
        self, system: str | None, variables: Mapping[str, Any] | None, texts: Iterable[str]
    ) -> tuple[Callable[[Sequence[Message]], str], str, str]:
        """A function that renders messages after the system text, and two characters that occur in
        none of the `texts`: one to cut control tokens with, as in `system` and `variables`."""
        template = self._require_template()
        mark, span = unused_marks("".join([system or "", json.dumps(variables or {}), *texts]))
        given = self._cut_in(variables or {}, mark)
        cut_system = None if system is None else self._encoder.cut(system, mark)

        def render(messages: Sequence[Message]) -> str:
            return template.render(template.with_system(cut_system, messages), **given)

        return render, mark, span

    def _cut_in(self, value: Any, mark: str) -> Any:
        """The template's variables, cut like other text: their values are the user's."""
        match value:
            case str():
                return self._encoder.cut(value, mark)
            case Mapping():
                return {name: self._cut_in(each, mark) for name, each in value.items()}
            case list() | tuple():
                return [self._cut_in(each, mark) for each in value]
            case _:
                return value

    def _written(self, message: ChatMessage, mark: str, variables: Mapping[str, Any]) -> _Written:
        """The message in the form this template expects."""
        if message.role != "assistant":
            return message.role, {"content": [Segment(self._encoder.cut(message.content, mark))]}
        key = json.dumps(variables, sort_keys=True, default=str)
        if key not in self._thoughts:
            template, format_ = self._require_template(), self.replies.format
            self._thoughts[key] = template.thoughts_in(format_, variables)
        thoughts, ids = self._thoughts[key], message.ids
        is_tagged = not thoughts.inline and not self.replies.markers.roles
        if ids is not None and is_tagged and self._decoder.spelled(ids.tolist()) != message.content:
            # Its tags are plain text, so ids cannot distinguish them from the rest.
            ids = None
        written = None if ids is None else ids.tobytes()
        segments = self._segments(written, message.content, message.thought)

        def known(*kinds: Kind) -> list[Segment]:
            return [
                Segment(each.text)
                if each.kind is Kind.MARKER
                else Segment(self._encoder.cut(each.text, mark), each.ids)
                for each in segments
                if each.kind in kinds
            ]

        if thoughts.inline:
            segments = enclosed(segments, thoughts.opened, thoughts.closes)
            return message.role, {"content": known(*Kind)}
        thought = known(Kind.THOUGHT)
        fields = dict.fromkeys(THOUGHT_FIELDS, thought) if thought else {}
        return message.role, {**fields, "content": known(Kind.ANSWER)}

    def header_of_answer(self, prompt: TokenIds | None) -> TokenIds:
        """The tokens that begin an answer without a thought, if the model writes its header."""
        is_left = self.replies.place_after(prompt) is Place.HEADER
        return self._encoder.encode_piece(self.replies.format.begins if is_left else "")

    @property
    def thinks(self) -> bool:
        """Whether the model's tokens or its template support thoughts."""
        if self.template is None:
            return False
        return self.replies.format is not NO_THOUGHTS or "think" in self.template.source

    def _system_notices(self, system: str | None) -> tuple[str, ...]:
        """Notices about how the template treats a system prompt."""
        refused = system is not None and not self._require_template().takes_system(system)
        return (NO_SYSTEM_ROLE,) if refused else ()

    def _require_template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError("this model has no chat template: use --raw to continue plain text")
        self.template.check_text()
        return self.template

    def raw_prompt(self, text: str, on_progress: Progress | None = None) -> Prompt:
        """Encode `text` as it is, after the model's beginning-of-text token, if any."""
        opening = self._backend.encode("", add_special_tokens=True).ids
        opening = [id_ for id_ in opening if id_ not in self.eos_ids]
        return Prompt(np.concatenate([np.array(opening, np.int32), self.encode(text, on_progress)]))

    def with_beginning(
        self, prompt: Prompt, text: str | None, *, thought: str = "", newlines: bool = True
    ) -> Prompt:
        """The prompt with the beginning of a reply, if any, as this model might have written it. A
        thought without an answer is left open. Without a thought, one that the prompt opens is
        closed first. After a thought come the usual `newlines`, unless the answer has them."""
        format_, in_thought = self.replies.format, self.reader(prompt.ids).is_thought
        before, answer = list[TokenIds](), NO_IDS
        if thought and format_ is not NO_THOUGHTS:
            opens = "" if in_thought else format_.opens + format_.label
            before += [self._encoder.encode_piece(opens), self.encode(thought, begins=False)]
            in_thought = True
        if text:
            closes = format_.closes + ("\n\n" if newlines and not format_.has_channels else "")
            header = self.header_of_answer(prompt.ids)
            before.append(self._encoder.encode_piece(closes) if in_thought else header)
            answer = self.encode(text, begins=format_ is NO_THOUGHTS)
        written = np.concatenate([NO_IDS, *before, answer])
        ids = np.concatenate([prompt.ids, written])
        return replace(prompt, ids=ids, written=len(written), answer=len(answer))

    @cached_property
    def closings(self) -> tuple[list[int], list[int]] | None:
        """The tokens that close a thought and begin the answer: after an empty thought, and after
        one that is cut off. None if no tokens do, as in a model without thoughts."""
        format_, encode = self.replies.format, self._encoder.encode_piece
        if format_ is NO_THOUGHTS:
            return None
        words = self.encode(CUT_OFF + "\n" * (not format_.has_channels), begins=False)
        cut_off = [*words.tolist(), *encode(format_.closes).tolist()]
        found = encode(format_.label + format_.closes).tolist(), cut_off
        return found if all(map(self._close_a_thought, found)) else None

    def _close_a_thought(self, ids: Iterable[int]) -> bool:
        reader = Reader(StreamDecoder(self._decoder), self.replies.markers, Place.THOUGHT)
        for id_ in ids:
            reader.add(id_)
        return reader.place is Place.ANSWER

    def reader_after(self, prompt: Prompt) -> tuple[Reader, str, str]:
        """A reader for the rest of the reply that the prompt has begun, and the thought and the
        answer so far: it holds back half a character or half a tag until the rest arrives."""
        reader = self.reader(prompt.asked)
        pieces = [piece for id_ in prompt.begun.tolist() for piece in reader.add(id_)]
        return reader, *joined(pieces)

    def token_bytes(self) -> list[bytes]:
        """The bytes of each id, which may be part of a character."""
        return token_bytes(self._backend)

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text contains: control tokens, markers of thoughts, ends of turns."""
        return self._decoder.special_ids | self._encoder.control_ids.keys() | self.eos_ids

    def text_of(self, id_: int) -> str:
        """One token as readable text, control tokens included."""
        return self._encoder.control_ids.get(id_) or self._decoder.spelled([id_])

    def definition(self) -> str:
        """Everything that decides how text becomes tokens, for comparison."""
        return self._backend.to_str()
