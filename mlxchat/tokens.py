"""Text to token ids and back. Only a chat template can make control tokens; text never does.

Works on what the `tokenizers` library loaded; which files that comes from is `models`' business.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from mlxchat.errors import InputError, TemplateError
from mlxchat.template import NO_SYSTEM_ROLE, ChatTemplate

TokenIds = np.ndarray  # one dimension, int32
Progress = Callable[[int, int], None]

# Characters given to the tokenizer at once: its own bookkeeping takes some 150 bytes a token, so
# that a document of 100 MB in one piece would take gigabytes.
CHUNK_CHARS = 1 << 18

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
    """One message of a conversation; `ids` are the tokens of a reply as the model wrote them."""

    role: str
    content: str
    ids: TokenIds | None = None


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
        self.eos_ids = frozenset(eos_ids)
        source = template.source if template is not None else ""
        # What stands for unknown characters is flagged special as well, but text may contain it.
        unknown = getattr(backend.model, "unk_token", None)
        self._control_ids = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if _is_control(token.content, token.special, source) and token.content != unknown
        }
        self._control = _Literals(self._control_ids.values())
        self._anchor = self._encode_piece("\n")

    def prompt(
        self, text: str, system: str | None = None, on_progress: Progress | None = None
    ) -> Prompt:
        """Render `text` as the user's message and encode it up to where the reply begins.

        `on_progress(done, total)` counts characters. Raises what `chat` raises.
        """
        return self.chat([ChatMessage("user", text)], system, on_progress=on_progress)

    def message(
        self,
        texts: Sequence[str],
        system: str | None = None,
        on_progress: Progress | None = None,
    ) -> list[TokenIds]:
        """Render the texts, one behind the other, as the user's message, and encode each by itself.

        Returns the ids of what the template writes before them, and of each text, the last one with
        what comes behind it. Raises what `chat` raises, and TemplateError where the template does
        not write each text out as it is, once.
        """
        template = self._require_template()
        mark, span = _unused_marks("".join([system or "", *texts]))
        cut = [self._control.cut(text, mark) for text in texts]
        cut_system = None if system is None else self._control.cut(system, mark)
        content = span + span.join([*cut, ""])
        written = template.with_system(cut_system, [{"role": "user", "content": content}])
        head, *pieces = template.render(written).split(span)
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
        mark, span = _unused_marks("".join([system or "", *(m.content for m in messages)]))
        cut = [self._control.cut(m.content, mark, self._own_controls(m)) for m in messages]
        cut_system = None if system is None else self._control.cut(system, mark)

        def render(contents: Sequence[str]) -> str:
            written = [
                {"role": message.role, "content": content}
                for message, content in zip(messages, contents, strict=True)
            ]
            return template.render(template.with_system(cut_system, written), **(variables or {}))

        rendered = render(cut)
        parts: list[tuple[str, TokenIds | None]] = [(rendered, None)]
        # A template that trims what it is given shows so in the replies that can be trimmed.
        known = [m.ids for m in messages]
        untrimmed = [m.ids if m.content == m.content.strip() else None for m in messages]
        for ids in (untrimmed, known):
            spans = _Spans(span, ids)
            found = spans.split(render(spans.marked(cut)), cut)
            if "".join(text for text, _ in found) == rendered:
                parts = found
        ids = self._encode_parts(parts, mark, on_progress)
        if len(ids) == 0:
            raise TemplateError("the model's chat template renders this to nothing")
        return Prompt(ids, self.system_notices(system))

    def system_notices(self, system: str | None) -> tuple[str, ...]:
        """What the user should know of what becomes of a system text."""
        refused = system is not None and not self._require_template().has_system_role
        return (NO_SYSTEM_ROLE,) if refused else ()

    def _require_template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError("this model has no chat template: use --raw to continue plain text")
        return self.template

    def spells(self, ids: TokenIds, text: str) -> bool:
        """Whether the ids, control tokens and all, are no more and no less than `text`."""
        return self._backend.decode(ids.tolist(), skip_special_tokens=False) == text

    def _own_controls(self, message: ChatMessage) -> Collection[str]:
        """Control tokens that the model itself wrote into a reply, such as those around a thought:
        the template has to find them there."""
        if message.ids is None:
            return ()
        return {self._control_ids[i] for i in set(message.ids.tolist()) & self._control_ids.keys()}

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

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, control tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def text_of(self, id_: int) -> str:
        """One token as people read it, control tokens included."""
        return self._control_ids.get(id_) or self._backend.decode([id_], skip_special_tokens=False)

    def definition(self) -> str:
        """All that decides how text becomes tokens, to be compared."""
        return self._backend.to_str()

    def stream_decoder(self) -> "StreamDecoder":
        return StreamDecoder(self)

    def _encode_parts(
        self,
        parts: Sequence[tuple[str, TokenIds | None]],
        mark: str,
        on_progress: Progress | None,
    ) -> TokenIds:
        encoded = [np.empty(0, np.int32)]
        for number, (text, ids) in enumerate(parts):
            begins = number == 0
            encoded.append(
                self._encode_cut(text, mark, on_progress, begins) if ids is None else ids
            )
        return np.concatenate(encoded)

    def _encode_cut(
        self, text: str, mark: str, on_progress: Progress | None, begins: bool = True
    ) -> TokenIds:
        """Encode text whose marks say where a control token's text was cut in two."""
        done = 0
        encoded: list[TokenIds] = [np.empty(0, np.int32)]
        for part_number, part in enumerate(text.split(mark)):
            for chunk_number, chunk in enumerate(_chunks(part)):
                first = begins and part_number == chunk_number == 0
                encode = self._encode_piece if first else self._encode_anchored
                encoded.append(encode(chunk))
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done, len(text))
        ids = np.concatenate(encoded)
        self._check_no_disguise(ids, text)
        return ids

    def _encode_piece(self, text: str) -> TokenIds:
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
        self._pending.append(id_)
        text = self._pending_text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        final = len(self._pending) - self._UNFINISHED_TOKENS
        return self._show(final, self._pending_text(final)) if final > 0 else ""

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
        # Tokens without text (control tokens) wait for the next one, but not for ever.
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


class _Spans:
    """Marks around the replies whose ids are known, to see what a template makes of each."""

    def __init__(self, mark: str, ids: Sequence[TokenIds | None]) -> None:
        self._mark = mark
        self._ids = ids
        self._any = re.compile(f"{mark}/?[0-9]+{mark}")

    def marked(self, contents: Sequence[str]) -> list[str]:
        return [
            content if ids is None else f"{self._opening(i)}{content}{self._closing(i)}"
            for i, (content, ids) in enumerate(zip(contents, self._ids, strict=True))
        ]

    def split(self, rendered: str, contents: Sequence[str]) -> list[tuple[str, TokenIds | None]]:
        """Rendered text in parts, with their ids where a reply was written out as it is."""
        parts: list[tuple[str, TokenIds | None]] = []
        for i, ids in enumerate(self._ids):
            whole = f"{self._opening(i)}{contents[i]}{self._closing(i)}"
            if ids is None or rendered.count(whole) != 1:
                continue
            before, rendered = rendered.split(whole)
            parts += [(self._any.sub("", before), None), (contents[i], ids)]
        return [*parts, (self._any.sub("", rendered), None)]

    def _opening(self, i: int) -> str:
        return f"{self._mark}{i}{self._mark}"

    def _closing(self, i: int) -> str:
        return f"{self._mark}/{i}{self._mark}"


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
