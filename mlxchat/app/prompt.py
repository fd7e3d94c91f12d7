"""The prompt of a request: its documents as one text, and as tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

from mlxchat.app.observer import Observer
from mlxchat.chat.rendering import Rendering
from mlxchat.chat.state import State
from mlxchat.request import Request
from mlxchat.request.generate import Asking
from mlxchat.text.document import name_of
from mlxchat.text.documents import SEPARATOR, Input, read_input
from mlxchat.text.tokens import Part, Prompt, Tokenizer

# Where a template has the input.
PLACE = "{input}"


def read(request: Request, piped: BinaryIO | None) -> Input:
    """The documents and the prompt as one text. Raises InputError."""
    return read_into(
        request.template,
        request.prompt,
        request.files,
        piped,
        request.blocks,
        headings=not request.raw,
    )


def read_into(
    template: str | None,
    prompt: str | None,
    files: Sequence[str],
    piped: BinaryIO | None,
    blocks: Sequence[str] = (),
    *,
    headings: bool = True,
) -> Input:
    """What `read_input` reads, in its place in the template, if any, else after it. Raises
    UsageError if there is nothing to read, unless the template is a text of its own."""
    is_text = bool(template) and PLACE not in (template or "")
    found = read_input(prompt, files, piped, blocks, headings=headings, may_be_empty=is_text)
    if not template:
        return found
    if PLACE in template:
        return replace(found, text=template.replace(PLACE, found.text))
    return replace(found, text=SEPARATOR.join(each for each in (template, found.text) if each))


def count_pinned(request: Asking, tokenizer: Tokenizer) -> int:
    """The tokens before the documents, such as the system prompt, which a window must not evict.

    Raises TemplateError.
    """
    if request.raw:
        return 0
    return Rendering(tokenizer, request.variables(), {}).count_pinned(State(request.system))


def encode(request: Request, document: Input, tokenizer: Tokenizer, observer: Observer) -> Prompt:
    """The tokens of the text that `request` read."""
    text = document.text
    with observer.counting("tokenizing", "characters") as on_progress:
        if document.blocks:
            named = zip(document.blocks, request.blocks, strict=True)
            blocks = [Part(block, cache=True, name=name_of(name)) for block, name in named]
            return tokenizer.encode_parts(
                [*blocks, Part(text)],
                request.system,
                raw=request.raw,
                variables=request.variables(),
                on_progress=on_progress,
            )
        if request.raw:
            return tokenizer.raw_prompt(text, on_progress)
        return tokenizer.prompt(text, request.system, on_progress, variables=request.variables())
