"""Prompts from documents of any size: whether they fit in the window."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO

from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded
from mlxchat.app.prompt import encode
from mlxchat.cache.layers import windows
from mlxchat.engine.blocks import larger_than_window
from mlxchat.errors import InputError
from mlxchat.request import Request
from mlxchat.settings import Overflow
from mlxchat.text.document import Document, open_documents
from mlxchat.text.documents import SEPARATOR, Input, has_headings, heading
from mlxchat.text.tokens import Prompt

# At most this share of the window is left for the answer.
ANSWER_SHARE = 4
# Text with more bytes a token does not count as fitting, without being encoded.
MAX_BYTES_A_TOKEN = 16


def opened(
    request: Request, piped: BinaryIO | None, stack: ExitStack, observer: Observer
) -> list[Document]:
    """The request's documents, closed with `stack`. Raises UsageError, InputError."""
    found: list[Document] = []
    needs_pipe = not request.files
    for document in open_documents(request.files, piped, observer.warn, needs_pipe=needs_pipe):
        stack.callback(document.close)
        found.append(document)
    return found


def room_for_prompt(request: Request, window: int) -> int:
    """The tokens that a prompt may have, so that the answer evicts none of it, or a long answer
    not at once."""
    answer = window // ANSWER_SHARE
    return window - (answer if request.max_tokens < 0 else min(answer, request.max_tokens))


def fitting(
    request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
) -> Prompt | None:
    """The prompt with the whole documents, if the window has room for it."""
    window = loaded.settings.max_kv_size
    room = None if window is None else room_for_prompt(request, window)
    size_bytes = sum(each.size_bytes for each in documents)
    if room is not None and size_bytes > room * MAX_BYTES_A_TOKEN:
        return None
    prompt = encode(request, _whole(request, documents), loaded.model.tokenizer, observer)
    return prompt if room is None or len(prompt.ids) <= room else None


def check_overflow(request: Request, prompt: Prompt, loaded: Loaded, observer: Observer) -> None:
    """Warn about a prompt larger than the window, or refuse it with InputError if that is wanted.
    A model with only recurrent layers has no window and evicts nothing."""
    window, tokens = loaded.settings.max_kv_size, len(prompt.ids)
    if window is None or not windows(loaded.cache):
        return
    if request.overflow is Overflow.STOP and tokens > room_for_prompt(request, window):
        raise InputError(
            f"the prompt has {tokens:,} tokens, and the window of {window:,} has room for "
            f"{room_for_prompt(request, window):,} and an answer: enlarge --max-kv-size, or use "
            f"{_alternatives(Overflow.ROLL)}"
        )
    if tokens > window:
        observer.warn(
            f"{larger_than_window(tokens, window)}: the first {loaded.settings.keep:,} and "
            f"the latest stay, {tokens - window:,} are evicted; see {_alternatives()}"
        )


def _alternatives(*first: Overflow) -> str:
    *others, last = [f"--overflow {way}" for way in (*first, Overflow.PASSAGES, Overflow.MAP)]
    return f"{', '.join(others)} or {last}"


def _whole(request: Request, documents: Sequence[Document]) -> Input:
    """The documents and the prompt as one text."""
    headings = has_headings(request.files)
    texts = [(heading(each.name) if headings else "") + each.text() for each in documents]
    assert request.prompt is not None
    return Input(SEPARATOR.join([*texts, request.prompt]))
