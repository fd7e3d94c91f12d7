"""Text to token ids and back. Only a chat template can make control tokens; text never does.

Works on a loaded `tokenizers` backend; finding its files is left to `models`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from mlxchat.errors import TemplateError
from mlxchat.text.encoder import Encoder, announce, unused_marks
from mlxchat.text.replies import Kind, Replies, Segment
from mlxchat.text.reply_format import NO_THOUGHTS, UNNAMED, Role, infer_format, is_announced
from mlxchat.text.reply_reader import Markers, Reader
from mlxchat.text.spans import Known, Spans, TokenIds
from mlxchat.text.stream_decoder import StreamDecoder
from mlxchat.text.template import NO_SYSTEM_ROLE, ChatTemplate, Message
from mlxchat.text.template_probe import THOUGHT_FIELDS, Probed, enclosed, probe, texts_after_answer
from mlxchat.text.thinking import joined
from mlxchat.text.token_bytes import token_bytes
from mlxchat.units import Progress


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids `(T,)` ready for prefill, and notices about how they were made.

    `blocks` are the spans of ids, in order, to be cached for other prompts; the first `head` ids
    are what the template writes before all of them. The last ids may be a `beginning` of the reply.
    """

    ids: TokenIds
    notices: tuple[str, ...] = ()
    head: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    beginning: "Beginning | None" = None

    @property
    def asked(self) -> TokenIds:
        """The ids before the reply."""
        return self.ids[: len(self.ids) - len(self.begun)]

    @property
    def begun(self) -> TokenIds:
        """The ids of the reply."""
        return self.ids[:0] if self.beginning is None else self.beginning.ids


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a reply that the user wrote. The first `header` of its ids, which are no
    text, begin the answer."""

    ids: TokenIds
    header: int

    @property
    def answer_ids(self) -> list[int]:
        return self.ids[self.header :].tolist()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. A reply may have a `thought` in addition to its content;
    `ids` are the tokens of both as the model wrote them, markers included."""

    role: str
    content: str
    ids: TokenIds | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A message as passed to a template: the texts of its content, and of its thought if that goes
    into a separate field."""

    role: str
    content: tuple[Known, ...]
    thought: tuple[Known, ...] = ()

    def message(self, texts: Iterator[str]) -> Message:
        """The message with the next of `texts` in place of its own."""
        thought = "".join(next(texts) for _ in self.thought)
        content = "".join(next(texts) for _ in self.content)
        fields = dict.fromkeys(THOUGHT_FIELDS, thought) if thought else {}
        return {"role": self.role, "content": content, **fields}


class Tokenizer:
    """A model's vocabulary, its chat template (None if it has none) and its end tokens."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self._special_ids = frozenset(
            id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.template = template
        self._files_eos_ids = frozenset(eos_ids)
        source = template.source if template is not None else ""
        self.replies = self._find_replies(source)
        self._encoder = Encoder(backend, source, self.replies.markers.roles)
        self._probed: dict[str, Probed] = {}
        # A conversation is rendered repeatedly, with the same replies.
        self._segments = lru_cache(maxsize=1024)(self.replies.segments)

    def _find_replies(self, source: str) -> Replies:
        added = {t.content: (id_, t) for id_, t in self._backend.get_added_tokens_decoder().items()}
        format_ = NO_THOUGHTS if self.template is None else infer_format(added, source)
        are_tokens = format_.needs <= added.keys()
        found = {text: added[text] for text in format_.markers if are_tokens and text in added}
        roles = {id_: format_.markers[text] for text, (id_, _) in found.items()}
        special = frozenset(i for text, (i, t) in found.items() if t.special or "|" in text)
        markers = Markers(format_, roles, special, is_announced(format_, source))
        return Replies(markers, self.decode, self._spelled, self.stream_decoder)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn: those named in the model's files, those its template writes
        after an answer, and those of its reply format."""
        roles = self.replies.markers.roles
        named = self.replies.format.ends if roles else ()
        ends = {self._backend.token_to_id(text) for text in named}
        after = () if self.template is None else texts_after_answer(self.template)
        ends |= {self._first_control(text, roles) for text in after}
        # A token that also closes a thought does not end the turn by itself.
        closing = {id_ for id_, role in roles.items() if role is Role.END}
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

    def message(
        self,
        texts: Sequence[str],
        system: str | None = None,
        on_progress: Progress | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
    ) -> list[TokenIds]:
        """Render the concatenated texts as the user's message, and encode each on its own.

        Returns the ids of what the template writes before them, then those of each text; the last
        includes what the template writes after it. Raises what `chat` raises, and TemplateError if
        the template does not write each text unchanged, once.
        """
        template = self._require_template()
        variables = variables or {}
        mark, span = unused_marks("".join([system or "", *texts, json.dumps(variables)]))
        cut = [self._encoder.cut(text, mark) for text in texts]
        cut_system = None if system is None else self._encoder.cut(system, mark)
        content = span + span.join([*cut, ""])
        written = template.with_system(cut_system, [{"role": "user", "content": content}])
        head, *pieces = template.render(written, **self._cut_in(variables, mark)).split(span)
        if pieces[:-1] != cut:
            raise TemplateError("the model's chat template does not leave message text unchanged")
        pieces[-2:] = ["".join(pieces[-2:])]
        return [
            self._encoder.encode_cut(piece, mark, on_progress, begins=number == 0)
            for number, piece in enumerate([head, *pieces])
        ]

    def chat(
        self,
        messages: Sequence[ChatMessage],
        system: str | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        on_progress: Progress | None = None,
    ) -> Prompt:
        """Render a conversation and encode it up to the beginning of the next reply.

        Replies given with ids keep them if the template writes their text unchanged, since encoding
        the text again may split it differently. `variables` are the template's own. Raises
        TemplateError if the model has no chat template or the template rejects the messages.
        """
        template = self._require_template()
        variables = variables or {}
        texts = chain.from_iterable((m.content, m.thought) for m in messages)
        whole = "".join([system or "", *texts, json.dumps(variables)])
        announce(whole, on_progress)
        mark, span = unused_marks(whole)
        given = self._cut_in(variables, mark)
        cut_system = None if system is None else self._encoder.cut(system, mark)
        written = [self._written(message, mark, given) for message in messages]
        known = list(chain.from_iterable((*each.thought, *each.content) for each in written))

        def render(texts: Iterable[str]) -> str:
            rest = iter(texts)
            as_written = [each.message(rest) for each in written]
            return template.render(template.with_system(cut_system, as_written), **given)

        rendered = render(each.text for each in known)
        segments = [Known(rendered)]
        # Marks would keep a template from trimming: leave out first the texts that it could trim.
        untrimmed = [each if each.text == each.text.strip() else Known(each.text) for each in known]
        for candidates in (untrimmed, known):
            spans = Spans(span, candidates)
            found = spans.split(render(spans.marked()))
            if "".join(segment.text for segment in found) == rendered:
                segments = found
        encoded = [
            self._encoder.encode_cut(each.text, mark, on_progress, begins=number == 0)
            if each.ids is None
            else each.ids
            for number, each in enumerate(segments)
        ]
        ids = np.concatenate(encoded)
        if len(ids) == 0:
            raise TemplateError("the model's chat template renders an empty prompt")
        return Prompt(ids, self.system_notices(system))

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

    def _written(self, message: ChatMessage, mark: str, variables: Mapping[str, Any]) -> _Rendered:
        """The message in the form this template expects."""
        if message.role != "assistant":
            return _Rendered(message.role, (Known(self._encoder.cut(message.content, mark)),))
        probed = self._probe(variables)
        own = self._own_controls(message)
        ids = message.ids
        is_tagged = not probed.inline and not self.replies.markers.roles
        if ids is not None and is_tagged and self._spelled(ids.tolist()) != message.content:
            # Its tags are plain text, so ids cannot distinguish them from the rest.
            ids = None
        segments = self._segments(
            None if ids is None else ids.tobytes(), message.content, message.thought
        )
        if probed.inline:
            segments = enclosed(segments, probed)
            return _Rendered(
                message.role, tuple(self._known(segment, mark, own) for segment in segments)
            )
        thought, content = (
            tuple(self._known(segment, mark, own) for segment in segments if segment.kind is kind)
            for kind in (Kind.THOUGHT, Kind.ANSWER)
        )
        return _Rendered(message.role, content, thought)

    def _known(self, segment: Segment, mark: str, own: Collection[str]) -> Known:
        if segment.kind is Kind.MARKER:
            return Known(segment.text)
        ids = None if segment.ids is None else np.array(segment.ids, np.int32)
        return Known(self._encoder.cut(segment.text, mark, own), ids)

    def _probe(self, variables: Mapping[str, Any]) -> Probed:
        key = json.dumps(variables, sort_keys=True, default=str)
        if key not in self._probed:
            self._probed[key] = probe(self._require_template(), self.replies.format, variables)
        return self._probed[key]

    def reader(self, prompt: TokenIds | None = None, *, may_think: bool = True) -> Reader:
        """A reader for the reply to `prompt`; without one, for text without thoughts.

        Reads thoughts even if it does not expect any (`may_think`)."""
        return self.replies.reader(prompt, may_think=may_think)

    def header_of_answer(self, prompt: TokenIds | None) -> TokenIds:
        """The tokens that begin an answer without a thought, if the prompt leaves its header to the
        model."""
        return self._encoder.encode_piece(self.replies.header_of_answer(prompt))

    @property
    def thinks(self) -> bool:
        """Whether the model's tokens or its template support thoughts."""
        if self.template is None:
            return False
        return self.replies.format is not UNNAMED or "think" in self.template.source

    def system_notices(self, system: str | None) -> tuple[str, ...]:
        """Notices about how the template treats a system prompt."""
        refused = system is not None and not self._require_template().takes_system(system)
        return (NO_SYSTEM_ROLE,) if refused else ()

    def _require_template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError("this model has no chat template: use --raw to continue plain text")
        if self.template.omits_text:
            raise TemplateError(
                f"{self.template.name} does not write the user's messages: give another "
                "one with --chat-template"
            )
        return self.template

    def _spelled(self, ids: Iterable[int]) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def _own_controls(self, message: ChatMessage) -> Collection[str]:
        """Control tokens that the model wrote into the reply as tokens rather than letter by
        letter: the template has to find them there."""
        if message.ids is None:
            return ()
        ids, text = message.ids.tolist(), message.thought + message.content
        controls = self._encoder.control_ids
        own = set(ids) & controls.keys() - self.replies.markers.roles.keys()
        return {controls[id_] for id_ in own if text.count(controls[id_]) == ids.count(id_)}

    def raw_prompt(self, text: str, on_progress: Progress | None = None) -> Prompt:
        """Encode `text` as it is, after the model's beginning-of-text token, if any."""
        opening = self._backend.encode("", add_special_tokens=True).ids
        opening = [id_ for id_ in opening if id_ not in self.eos_ids]
        return Prompt(np.concatenate([np.array(opening, np.int32), self.encode(text, on_progress)]))

    def encode(
        self, text: str, on_progress: Progress | None = None, *, begins: bool = True
    ) -> TokenIds:
        """Token ids `(T,)` of plain text, in which nothing is a control token; `begins` is False
        if it continues other text."""
        return self._encoder.encode(text, on_progress, begins=begins)

    def encode_reply(self, reply: str, thought: str, prompt: TokenIds) -> TokenIds:
        """Token ids of a reply, as this model might have written it after the prompt, to be
        continued: a thought without a reply is left open."""
        format_ = self.replies.format
        if not thought or format_ is NO_THOUGHTS:
            return self.beginning(reply, prompt).ids if reply else np.empty(0, np.int32)
        opens = "" if self.reader(prompt).is_thought else format_.opens + format_.label
        pieces = [self._encoder.encode_piece(opens), self.encode(thought, begins=False)]
        if reply:
            closes = format_.closes + ("" if format_.has_channels else "\n\n")
            pieces += [self._encoder.encode_piece(closes), self.encode(reply, begins=False)]
        return np.concatenate(pieces)

    def beginning(self, text: str, prompt: TokenIds, *, newlines: bool = True) -> Beginning:
        """An answer's beginning after the prompt. It has no thought: one that the prompt opens is
        closed first, without the usual `newlines` if these would count as part of the answer."""
        format_ = self.replies.format
        header = self.replies.header_of_answer(prompt)
        if self.reader(prompt).is_thought:
            blank = "\n\n" if newlines and not format_.has_channels else ""
            header = format_.closes + blank
        ids = self._encoder.encode_piece(header) if header else np.empty(0, np.int32)
        answer = self.encode(text, begins=format_ is NO_THOUGHTS)
        return Beginning(np.concatenate([ids, answer]), len(ids))

    def with_beginning(self, prompt: Prompt, text: str | None, *, newlines: bool = True) -> Prompt:
        """The prompt with the beginning of the answer, if any."""
        if not text:
            return prompt
        beginning = self.beginning(text, prompt.ids, newlines=newlines)
        ids = np.concatenate([prompt.ids, beginning.ids])
        return replace(prompt, ids=ids, beginning=beginning)

    def reader_after(self, prompt: Prompt) -> tuple[Reader, str]:
        """A reader for the rest of the reply that the prompt has begun, and the answer so far."""
        reader = self.reader(prompt.asked)
        pieces = [piece for id_ in prompt.begun.tolist() for piece in reader.add(id_)]
        return reader, joined(pieces)[1]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, without control tokens."""
        # The library shows those of which it holds a normalized text.
        shown = [id_ for id_ in ids if id_ not in self._special_ids]
        return self._backend.decode(shown, skip_special_tokens=True)

    def token_bytes(self) -> list[bytes]:
        """The bytes of each id, which may be part of a character."""
        return token_bytes(self._backend)

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text contains: control tokens, markers of thoughts, ends of turns."""
        return self._special_ids | self._encoder.control_ids.keys() | self.eos_ids

    def is_silent(self, id_: int) -> bool:
        """Whether `decode` omits the token whatever its context."""
        return id_ in self._special_ids or self._backend.id_to_token(id_) is None

    def text_of(self, id_: int) -> str:
        """One token as readable text, control tokens included."""
        return self._encoder.control_ids.get(id_) or self._backend.decode(
            [id_], skip_special_tokens=False
        )

    def definition(self) -> str:
        """Everything that decides how text becomes tokens, for comparison."""
        return self._backend.to_str()

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self.decode, self.is_silent)
