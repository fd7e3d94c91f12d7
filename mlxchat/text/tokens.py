"""Text to token ids and back. Only a chat template can make control tokens; text never does.

Works on what the `tokenizers` library loaded; which files that comes from is `models`' business.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from mlxchat.errors import InputError, TemplateError
from mlxchat.progress import Progress
from mlxchat.text.replies import Kind, Replies, Segment
from mlxchat.text.reply_format import UNNAMED, Role, infer_format
from mlxchat.text.reply_reader import Markers, Reader
from mlxchat.text.spans import Known, Spans, TokenIds
from mlxchat.text.template import NO_SYSTEM_ROLE, ChatTemplate, Message
from mlxchat.text.template_probe import THOUGHT_FIELDS, Probed, probe, texts_after_answer
from mlxchat.wording import Field

# Characters given to the tokenizer at once: its own bookkeeping takes some 150 bytes a token, so
# that a document of 100 MB in one piece would take gigabytes.
CHUNK_CHARS = 1 << 18

# A chat encodes its turns again and again: of the latest chunks at least this long, so many are
# remembered with their ids, 30 million characters in all.
LONG_CHARS = 1 << 14
LONG_REMEMBERED = 128

# Unicode's noncharacters are for internal use and never text: they mark cuts and spans.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# What control tokens look like, where neither their flag nor the chat template tells.
_CONTROL_SHAPE = re.compile(
    r"<\|.*\|>|<｜.*｜>|</?(?:think|thinking|tool_call|tool_response|tools)>"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids `(T,)` ready for prefill, and what the user should know of how they were made.

    `blocks` are the spans of ids, in order, that are to be kept for other prompts, and the first
    `head` ids are what the template writes before all of them.
    """

    ids: TokenIds
    notices: tuple[str, ...] = ()
    head: int = 0
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. A reply may have a `thought` besides its content; `ids` are
    the tokens of both as the model wrote them, markers included."""

    role: str
    content: str
    ids: TokenIds | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class _Written:
    """A message as a template is given it: the texts of its content, and of its thought if that
    goes into a field of its own."""

    role: str
    content: tuple[Known, ...]
    thought: tuple[Known, ...] = ()

    def message(self, texts: Iterator[str]) -> Message:
        """With the next of `texts` in place of its own."""
        thought = "".join(next(texts) for _ in self.thought)
        content = "".join(next(texts) for _ in self.content)
        fields = dict.fromkeys(THOUGHT_FIELDS, thought) if thought else {}
        return {"role": self.role, "content": content, **fields}


class Tokenizer:
    """A model's vocabulary, its chat template (None where it has none) and its end tokens."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self.template = template
        self._files_eos_ids = frozenset(eos_ids)
        source = template.source if template is not None else ""
        # What stands for unknown characters is flagged special as well, but text may contain it.
        unknown = getattr(backend.model, "unk_token", None)
        self._encode_long = lru_cache(maxsize=LONG_REMEMBERED)(self._encode_now)
        self._replies = self._find_replies(source)
        markers = () if self._replies.markers is None else self._replies.markers.roles
        self._control_ids = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if id_ in markers
            or (_is_control(token.content, token.special, source) and token.content != unknown)
        }
        self._control = _Literals(self._control_ids.values())
        self._special_ids = frozenset(
            id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._anchor = self._encode_piece("\n")
        self._probed: dict[str, Probed] = {}
        # A conversation is rendered again and again with the same replies.
        self._segments = lru_cache(maxsize=1024)(self._segments_of)

    def _find_replies(self, source: str) -> Replies:
        added = {t.content: (id_, t) for id_, t in self._backend.get_added_tokens_decoder().items()}
        format_ = None if self.template is None else infer_format(added, source)
        markers = None
        if format_ is not None and format_.needs <= added.keys():
            found = {text: added[text] for text in format_.markers if text in added}
            roles = {id_: format_.markers[text] for text, (id_, _) in found.items()}
            never_text = {i for text, (i, t) in found.items() if t.special or "|" in text}
            markers = Markers(format_, roles, frozenset(never_text))
        return Replies(format_, markers, self.decode, self._spelled, self.stream_decoder)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn: those that the model's files name, those that its template
        writes after an answer, and those of its reply format."""
        format_, markers = self._replies.format, self._replies.markers
        named = () if format_ is None or markers is None else format_.ends
        ends = {self._backend.token_to_id(text) for text in named}
        roles = {} if markers is None else markers.roles
        after = () if self.template is None else texts_after_answer(self.template)
        ends |= {self._first_control(text, roles) for text in after}
        # What closes a thought as well ends no turn by itself.
        closing = {id_ for id_, role in roles.items() if role is Role.END}
        return (self._files_eos_ids | {id_ for id_ in ends if id_ is not None}) - closing

    def _first_control(self, text: str, left_out: Collection[int]) -> int | None:
        """The control token that the text begins with, behind any that are left out."""
        found = [id_ for id_, content in self._control_ids.items() if text.startswith(content)]
        if not found:
            return None
        longest = max(found, key=lambda id_: len(self._control_ids[id_]))
        if longest not in left_out:
            return longest
        return self._first_control(text[len(self._control_ids[longest]) :], left_out)

    def prompt(
        self,
        text: str,
        system: str | None = None,
        on_progress: Progress | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Render `text` as the user's message and encode it up to where the reply begins.

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
        """Render the texts, one behind the other, as the user's message, and encode each by itself.

        Returns the ids of what the template writes before them, and of each text, the last one with
        what comes behind it. Raises what `chat` raises, and TemplateError where the template does
        not write each text out as it is, once.
        """
        template = self._require_template()
        variables = variables or {}
        mark, span = _unused_marks("".join([system or "", *texts, json.dumps(variables)]))
        cut = [self._control.cut(text, mark) for text in texts]
        cut_system = None if system is None else self._control.cut(system, mark)
        content = span + span.join([*cut, ""])
        written = template.with_system(cut_system, [{"role": "user", "content": content}])
        head, *pieces = template.render(written, **self._cut_in(variables, mark)).split(span)
        if pieces[:-1] != cut:
            raise TemplateError("the model's chat template does not write texts out as they are")
        pieces[-2:] = ["".join(pieces[-2:])]
        return [
            self._encode_cut(piece, mark, on_progress, begins=number == 0)
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
        """Render a conversation and encode it up to where the next reply begins.

        Replies that come with their ids, and that the template writes out as they are, get those
        ids: encoded again, their text may come apart at other places. `variables` are the
        template's own. Raises TemplateError where the model has no chat template or its template
        refuses.
        """
        template = self._require_template()
        variables = variables or {}
        texts = chain.from_iterable((m.content, m.thought) for m in messages)
        whole = "".join([system or "", *texts, json.dumps(variables)])
        _announce(whole, on_progress)
        mark, span = _unused_marks(whole)
        given = self._cut_in(variables, mark)
        cut_system = None if system is None else self._control.cut(system, mark)
        written = [self._written(message, mark, given) for message in messages]
        known = list(chain.from_iterable((*each.thought, *each.content) for each in written))

        def render(texts: Iterable[str]) -> str:
            rest = iter(texts)
            as_written = [each.message(rest) for each in written]
            return template.render(template.with_system(cut_system, as_written), **given)

        rendered = render(each.text for each in known)
        segments = [Known(rendered)]
        # A template that trims what it is given shows so in the replies that can be trimmed.
        untrimmed = [each if each.text == each.text.strip() else Known(each.text) for each in known]
        for candidates in (untrimmed, known):
            spans = Spans(span, candidates)
            found = spans.split(render(spans.marked()))
            if "".join(segment.text for segment in found) == rendered:
                segments = found
        ids = self._encode_segments(segments, mark, on_progress)
        if len(ids) == 0:
            raise TemplateError("the model's chat template renders this to nothing")
        return Prompt(ids, self.system_notices(system))

    def _cut_in(self, value: Any, mark: str) -> Any:
        """The template's variables, cut like other text: what is in them is the user's."""
        match value:
            case str():
                return self._control.cut(value, mark)
            case Mapping():
                return {name: self._cut_in(each, mark) for name, each in value.items()}
            case list() | tuple():
                return [self._cut_in(each, mark) for each in value]
            case _:
                return value

    def _written(self, message: ChatMessage, mark: str, variables: Mapping[str, Any]) -> _Written:
        """The message as this template takes it."""
        if message.role != "assistant":
            return _Written(message.role, (Known(self._control.cut(message.content, mark)),))
        probed = self._probe(variables)
        own = self._own_controls(message)
        ids = message.ids
        is_tagged = not probed.inline and self._replies.markers is None
        if ids is not None and is_tagged and self._spelled(ids.tolist()) != message.content:
            # Its tags are text, which ids cannot distinguish.
            ids = None
        segments = self._segments(
            None if ids is None else ids.tobytes(), message.content, message.thought
        )
        if probed.inline:
            segments = _enclosed(segments, probed)
            return _Written(
                message.role, tuple(self._known(segment, mark, own) for segment in segments)
            )
        thought, content = (
            tuple(self._known(segment, mark, own) for segment in segments if segment.kind is kind)
            for kind in (Kind.THOUGHT, Kind.ANSWER)
        )
        return _Written(message.role, content, thought)

    def _segments_of(self, ids: bytes | None, reply: str, thought: str) -> Sequence[Segment]:
        written = None if ids is None else np.frombuffer(ids, np.int32)
        return self._replies.segments(written, reply, thought)

    def _known(self, segment: Segment, mark: str, own: Collection[str]) -> Known:
        if segment.kind is Kind.MARKER:
            return Known(segment.text)
        ids = None if segment.ids is None else np.array(segment.ids, np.int32)
        return Known(self._control.cut(segment.text, mark, own), ids)

    def _probe(self, variables: Mapping[str, Any]) -> Probed:
        key = json.dumps(variables, sort_keys=True, default=str)
        if key not in self._probed:
            self._probed[key] = probe(self._require_template(), self._replies.format, variables)
        return self._probed[key]

    def reader(self, prompt: TokenIds | None = None) -> Reader:
        """What reads the reply to the prompt; without one, a text in which nothing is a thought."""
        return self._replies.reader(prompt)

    def split(self, text: str) -> tuple[str, str]:
        """The thought and the answer in a text that holds both, with tags as plain text."""
        return self._replies.split(text)

    @property
    def thinks(self) -> bool:
        """Whether the model's tokens or its template know of thoughts."""
        if self.template is None:
            return False
        return self._replies.format is not UNNAMED or "think" in self.template.source

    def system_notices(self, system: str | None) -> tuple[str, ...]:
        """What the user should know of what becomes of a system text."""
        refused = system is not None and not self._require_template().has_system_role
        return (NO_SYSTEM_ROLE,) if refused else ()

    def _require_template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError(
                "this model has no chat template: use ",
                Field("raw", True),
                " to continue plain text",
            )
        return self.template

    def spells(self, ids: TokenIds, reply: str, thought: str = "") -> bool:
        """Whether the ids, control tokens and all, are no more and no less than the reply and its
        thought, beside the markers of the model's reply format."""
        return self._replies.spells(ids, reply, thought)

    def _spelled(self, ids: Iterable[int]) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def _own_controls(self, message: ChatMessage) -> Collection[str]:
        """Control tokens that the model itself wrote into a reply, and did not spell in letters:
        the template has to find them there."""
        if message.ids is None:
            return ()
        ids = message.ids.tolist()
        markers = self._replies.markers
        own = set(ids) & self._control_ids.keys() - (markers.roles.keys() if markers else set())
        text = message.thought + message.content
        return {
            content
            for id_, content in ((id_, self._control_ids[id_]) for id_ in own)
            if text.count(content) == ids.count(id_)
        }

    def raw_prompt(self, text: str, on_progress: Progress | None = None) -> Prompt:
        """Encode `text` alone, behind the token that the model begins every text with, if any."""
        opening = self._backend.encode("", add_special_tokens=True).ids
        opening = [id_ for id_ in opening if id_ not in self.eos_ids]
        return Prompt(np.concatenate([np.array(opening, np.int32), self.encode(text, on_progress)]))

    def encode(
        self, text: str, on_progress: Progress | None = None, *, begins: bool = True
    ) -> TokenIds:
        """Token ids `(T,)` of plain text, in which nothing is a control token; `begins` False where
        it goes on from other text."""
        mark, _ = _unused_marks(text)
        return self._encode_cut(self._control.cut(text, mark), mark, on_progress, begins)

    def encode_reply(self, reply: str, thought: str, prompt: TokenIds) -> TokenIds:
        """Token ids of a reply to the prompt as this model might have written it, to be continued:
        a thought without a reply is not closed."""
        format_, begun = self._replies.format, self.reader(prompt)
        if format_ is None:
            return self.encode(reply)
        pieces = [np.empty(0, np.int32)]
        if thought:
            opens = "" if begun.is_thought else format_.opens + format_.label
            pieces += [self._encode_piece(opens), self.encode(thought, begins=False)]
        if reply or not thought:
            blank = "" if format_.has_channels else "\n\n"
            between = format_.closes + blank if thought else format_.begins
            pieces += [self._encode_piece(between), self.encode(reply, begins=False)]
        return np.concatenate(pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, control tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def is_silent(self, id_: int) -> bool:
        """Whether `decode` leaves the token out, whatever tokens are around it."""
        return id_ in self._special_ids or self._backend.id_to_token(id_) is None

    def text_of(self, id_: int) -> str:
        """One token as people read it, control tokens included."""
        return self._control_ids.get(id_) or self._backend.decode([id_], skip_special_tokens=False)

    def definition(self) -> str:
        """All that decides how text becomes tokens, to be compared."""
        return self._backend.to_str()

    def stream_decoder(self) -> "StreamDecoder":
        return StreamDecoder(self)

    def _encode_segments(
        self,
        segments: Sequence[Known],
        mark: str,
        on_progress: Progress | None,
    ) -> TokenIds:
        encoded = [np.empty(0, np.int32)]
        for number, segment in enumerate(segments):
            text, ids, begins = segment.text, segment.ids, number == 0
            encoded.append(
                self._encode_cut(text, mark, on_progress, begins) if ids is None else ids
            )
        return np.concatenate(encoded)

    def _encode_cut(
        self, text: str, mark: str, on_progress: Progress | None, begins: bool = True
    ) -> TokenIds:
        """Encode text whose marks say where a control token's text was cut in two."""
        done = 0
        _announce(text, on_progress)
        encoded: list[TokenIds] = [np.empty(0, np.int32)]
        for piece_number, piece in enumerate(text.split(mark)):
            for chunk_number, chunk in enumerate(_chunks(piece)):
                first = begins and piece_number == chunk_number == 0
                encode = self._encode_piece if first else self._encode_anchored
                encoded.append(encode(chunk))
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done, len(text))
        ids = np.concatenate(encoded)
        self._check_no_disguise(ids, text)
        return ids

    def _encode_piece(self, text: str) -> TokenIds:
        """Token ids that must not be written into: they may be remembered."""
        return self._encode_now(text) if len(text) < LONG_CHARS else self._encode_long(text)

    def _encode_now(self, text: str) -> TokenIds:
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def _encode_anchored(self, text: str) -> TokenIds:
        """Encode text that goes on: some tokenizers put a space before whatever comes first."""
        ids = self._encode_piece("\n" + text)
        n = len(self._anchor)
        if np.array_equal(ids[:n], self._anchor):
            return ids[n:]
        return self._encode_piece(text)

    def _check_no_disguise(self, ids: TokenIds, text: str) -> None:
        """A tokenizer that normalizes could still read a control token out of look-alikes."""
        found = int(np.isin(ids, list(self._control_ids)).sum())
        if found > self._control.count(text):
            raise InputError(
                "the text disguises one of the model's control tokens (look-alike characters), "
                "which cannot be told from a real one: remove it"
            )


class StreamDecoder:
    """Text of tokens as they come, in complete characters only.

    The text of a token can depend on the ones before it, so each is decoded behind its
    predecessors and what those alone give is taken off. Source: the prefix method of Hugging
    Face's text-generation-inference.
    """

    # A UTF-8 character has four bytes at most and a token one at least: of an unfinished character
    # there can be three tokens, and whatever came before them is final.
    _UNFINISHED_TOKENS = 3
    _MOST_PENDING = 8

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._pending: list[int] = []

    def add(self, id_: int) -> str:
        """Take one more token and return the text that is complete now, often empty."""
        if self._tokenizer.is_silent(id_):
            # A character goes on after it, and it must not count as one of its tokens.
            return ""
        self._pending.append(id_)
        text = self._pending_text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        final = self._final(text)
        return self._show(final, self._pending_text(final)) if final > 0 else ""

    def _final(self, text: str) -> int:
        """How many pending tokens, whose whole text is `text`, can be shown without a cut through
        a character: their own text must begin it."""
        most = len(self._pending) - self._UNFINISHED_TOKENS
        for n in range(most, 0, -1):
            if text.startswith(self._pending_text(n)):
                return n
        return most if most > self._MOST_PENDING else 0

    @property
    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that it looks back at, and those whose text is not complete."""
        return tuple(self._shown), tuple(self._pending)

    def restore(self, shown: Sequence[int], pending: Sequence[int]) -> None:
        """Go on from a `state`."""
        self._shown, self._pending = list(shown), list(pending)

    def finish(self) -> str:
        """Text of whatever is still incomplete, replacement characters and all."""
        n = len(self._pending)
        return self._show(n, self._pending_text(n))

    def _pending_text(self, n: int) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._pending[:n])[len(before) :]

    def _show(self, n: int, text: str) -> str:
        # Tokens without text wait for the next one, but not for ever.
        if text or n > self._MOST_PENDING:
            self._shown = self._pending[:n]
            self._pending = self._pending[n:]
        return text


class _Literals:
    """A set of texts to be found in others, quickly even where there are thousands of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = {text for text in texts if text}
        self._lengths = sorted({len(text) for text in self._texts})
        first = "".join(sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def starts(self, text: str) -> Iterator[int]:
        """Each index at which one of the texts begins, overlapping ones included."""
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            if any(text[start : start + length] in self._texts for length in self._lengths):
                yield start

    def count(self, text: str) -> int:
        return sum(1 for _ in self.starts(text))

    def cut(self, text: str, mark: str, spared: Collection[str] = ()) -> str:
        """Put `mark` behind the first character of each occurrence, so that none is left whole but
        those `spared`."""
        pieces: list[str] = []
        done = 0
        for start in self.starts(text):
            if any(text.startswith(each, start) for each in spared):
                continue
            pieces.append(text[done : start + 1])
            done = start + 1
        return mark.join([*pieces, text[done:]])


def _is_control(content: str, special: bool, template_source: str) -> bool:
    """Whether an added token steers the model, as opposed to runs of spaces, HTML tags and such."""
    if special:
        return True
    if not content.strip():
        return False
    return content in template_source or _CONTROL_SHAPE.fullmatch(content) is not None


def _enclosed(segments: Sequence[Segment], probed: Probed) -> list[Segment]:
    """The segments with both markers around the thought: the prompt may have written the first, and
    a thought that was cut off has no second."""
    thoughts = [number for number, segment in enumerate(segments) if segment.kind is Kind.THOUGHT]
    if not thoughts:
        return list(segments)
    first, last = thoughts[0], thoughts[-1]
    begun = [] if any(p.kind is Kind.MARKER for p in segments[:first]) else _literal(probed.opened)
    is_closed = any(segment.kind is Kind.MARKER for segment in segments[last:])
    return [*begun, *segments, *([] if is_closed else _literal(probed.closes))]


def _literal(text: str) -> list[Segment]:
    return [Segment(Kind.MARKER, text)]


def _announce(text: str, on_progress: Progress | None) -> None:
    """Report that nothing is done yet of what will take more than a moment."""
    if on_progress is not None and len(text) > CHUNK_CHARS:
        on_progress(0, len(text))


def _unused_marks(text: str) -> tuple[str, str]:
    """Two characters that do not occur in the text."""
    unused = [mark for mark in _MARKS if mark not in text]
    if len(unused) < 2:
        raise InputError("the text holds nearly all of Unicode's noncharacters: it is not text")
    return unused[0], unused[1]


def _chunks(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = _cut_before(text, start, start + CHUNK_CHARS)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def _cut_before(text: str, start: int, end: int) -> int:
    """Where to cut at or before `end`: a place where every pre-tokenizer in use ends a piece.

    That is behind a line's end that is followed by no space, or else between two words; in a text
    without lines and words it is anywhere.
    """
    newline = text.rfind("\n", start, end)
    while newline >= start:
        if not text[newline + 1].isspace():
            return newline + 1
        newline = text.rfind("\n", start, newline)
    space = text.rfind(" ", start + 1, end)
    while space > start:
        if text[space - 1].isalnum() and text[space + 1].isalnum():
            return space
        space = text.rfind(" ", start + 1, space)
    return end
