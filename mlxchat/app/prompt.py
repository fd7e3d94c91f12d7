"""The prompt of a request: its documents as one text, as tokens, whether the window has room for
them, how the answer begins, and the constraint on it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat.app.opening import Loaded
from mlxchat.cache.layers import windows
from mlxchat.chat.rendering import Rendering
from mlxchat.chat.state import State
from mlxchat.constraint.constraint import GBNF, NOT_GBNF, Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.prefill import larger_than_window
from mlxchat.errors import CacheError, InputError, UsageError
from mlxchat.request import Answer, Request
from mlxchat.request.generate import Asking
from mlxchat.request.written import allows_thinking
from mlxchat.settings import Overflow
from mlxchat.text.documents import (
    SEPARATOR,
    Document,
    Input,
    has_headings,
    heading,
    name_of,
    open_documents,
    read_input,
)
from mlxchat.text.tokens import Part, Prompt, Tokenizer
from mlxchat.units import Observer, count

# Where a template has the input; the other name is that of a batch's rows.
PLACES = ("{input}", "{text}")
# At most this share of the window is left for the answer.
ANSWER_SHARE = 4
# Text with more bytes a token does not count as fitting, without being encoded.
MAX_BYTES_A_TOKEN = 32
# Text that is encoded in pieces may have more tokens than in one.
SPARE_TOKENS = 2
BEFORE_SCHEMA = "Answer in JSON that follows this JSON Schema:\n"


def read(
    request: Request, piped: BinaryIO | None, stack: ExitStack, observer: Observer
) -> Input | list[Document]:
    """The documents and the prompt as one text; or the documents, closed with `stack`, if not all
    of them may be read. Raises UsageError, InputError."""
    if request.overflow in (Overflow.PASSAGES, Overflow.MAP):
        needs_pipe = not request.files
        found: list[Document] = []
        for each in open_documents(request.files, piped, observer.warn, needs_pipe=needs_pipe):
            stack.callback(each.close)
            found.append(each)
            if each.notice is not None:
                observer.warn(each.notice)
        return found
    whole = read_into(
        request.template,
        request.prompt,
        request.files,
        piped,
        request.blocks,
        headings=not request.raw,
    )
    for notice in whole.notices:
        observer.warn(notice)
    return whole


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
    place = next((each for each in PLACES if each in (template or "")), None)
    is_text = bool(template) and place is None
    found = read_input(prompt, files, piped, blocks, headings=headings, may_be_empty=is_text)
    if not template:
        return found
    if place is not None:
        text = template.replace(place, found.text)
    else:
        text = SEPARATOR.join(each for each in (template, found.text) if each)
    return replace(found, text=text, documents=0)


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


def room_for_prompt(request: Request, window: int) -> int:
    """The tokens that a prompt may have, so that the answer evicts none of it, or not at once."""
    answer = window // ANSWER_SHARE
    return window - (answer if request.max_tokens < 0 else min(answer, request.max_tokens))


def no_room(bare: int, window: int, what: str) -> CacheError:
    """The error for a question of this many tokens."""
    return CacheError(
        f"the question and the template take {bare:,} of the window's {window:,} tokens, and the "
        f"rest is too small for {what}: --max-kv-size must be larger"
    )


def fitting(
    request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
) -> Prompt | None:
    """The prompt with the whole documents, if the window has room for it."""
    window = loaded.settings.max_kv_size
    room = None if window is None else room_for_prompt(request, window)
    if room is not None and sum(each.size_bytes for each in documents) > room * MAX_BYTES_A_TOKEN:
        return None
    headings = has_headings(request.files)
    texts = [(heading(each.name) if headings else "") + each.text() for each in documents]
    whole = Input(SEPARATOR.join([*texts, request.prompt or ""]))
    prompt = encode(request, whole, loaded.model.tokenizer, observer)
    return prompt if room is None or len(prompt.ids) <= room else None


def check_overflow(request: Request, prompt: Prompt, loaded: Loaded, observer: Observer) -> None:
    """Warn about a prompt larger than the window, or refuse it with InputError if that is wanted.
    A model with only recurrent layers has no window and evicts nothing."""
    window, tokens = loaded.settings.max_kv_size, len(prompt.ids)
    if window is None or not windows(loaded.cache):
        return
    see = f", or see --overflow {Overflow.PASSAGES} or --overflow {Overflow.MAP}"
    ways = "" if request.blocks or request.raw else see
    if request.overflow is Overflow.STOP and tokens > room_for_prompt(request, window):
        raise InputError(
            f"the prompt has {tokens:,} tokens, and the window of {window:,} has room for "
            f"{room_for_prompt(request, window):,} and an answer: enlarge --max-kv-size or use "
            f"--overflow {Overflow.ROLL}{ways}"
        )
    if tokens > window:
        observer.warn(
            f"{larger_than_window(tokens, window)}: the first {loaded.settings.keep:,} and the "
            f"last stay, {count(tokens - window, 'is', 'are')} evicted; enlarge --max-kv-size{ways}"
        )


# How the answer begins, and the constraint on it.


def constraint_of(answer: Answer) -> Constraint | None:
    """The constraint, if any. Raises UsageError if it is invalid or its file cannot be read."""
    given: dict[str, Any] = {name: getattr(answer, name) for name in answer.constraints()}
    if "schema_multi" in given:
        return Constraint.from_schema(given["schema_multi"], multi=True)
    if "grammar" in given:
        given["grammar"] = _read_grammar(given["grammar"])
    return constraint_in(given, may_be_file=True)


def constraint_in(fields: Mapping[str, Any], *, may_be_file: bool = False) -> Constraint | None:
    """The constraint in the fields of a turn or a row: "schema" is a JSON Schema, its text, or the
    short form, but no file (fields may come from a stranger); "choice" is a list, others are texts.

    Other fields are ignored, unless they look misspelled. Raises UsageError.
    """
    kinds = ("schema", "regex", "choice", "grammar")
    for name in fields.keys() - {*kinds, "prefill"}:
        for meant in get_close_matches(name.removesuffix("_multi"), (*kinds, "prefill"), 1, 0.75):
            raise UsageError(f"{name} is no field here: did you mean {meant}?")
    given = [name for name in kinds if name in fields]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot be combined")
    (name,) = given
    match name, fields[name]:
        case "schema", str() | dict() | bool() as schema:
            return Constraint.from_schema(schema, may_be_file=may_be_file)
        case "regex", str(pattern):
            return Constraint.from_regex(pattern)
        case "grammar", str(grammar):
            return Constraint.from_grammar(grammar)
        case "choice", list() | tuple() as choices if all(isinstance(c, str) for c in choices):
            return Constraint.from_choices(choices)
        case _:
            kinds = {"schema": "an object or text", "choice": "a list of texts"}
            raise UsageError(f"{name} must be {kinds.get(name, 'text')}")


def with_schema(system: str | None, constraint: Constraint | None) -> str | None:
    """The system prompt with the constraint's schema, if any, instead of one that it ends with."""
    own, has_schema, _ = (system or "").partition(BEFORE_SCHEMA)
    own = (own.rstrip() or None) if has_schema else system
    if constraint is None:
        return own
    schema = BEFORE_SCHEMA + json.dumps(constraint.schema, ensure_ascii=False)
    return f"{own}\n\n{schema}" if own else schema


def begin_answer(
    request: Asking, asked: Prompt, constraint: Constraint | None, tokenizer: Tokenizer
) -> tuple[Prompt, str, dict[str, Any]]:
    """The prompt with the beginning of the answer, if the request has one; the text of that; and
    the arguments of `Reply` that read and constrain the rest."""
    prompt = tokenizer.with_beginning(asked, request.answer.prefill, newlines=constraint is None)
    reader, text = tokenizer.reader(), ""
    if not request.raw:
        reader, _, text = tokenizer.reader_after(prompt)
    constrained = constraint and Constrained(
        constraint,
        tokenizer,
        # It decides how the reply begins: with a thought, for example.
        None if request.raw else prompt,
        may_think=allows_thinking(request.variables()),
    )
    return prompt, text, {"reader": reader, "constrained": constrained}


def _read_grammar(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        # llama.cpp's option takes the grammar itself.
        if GBNF.search(str(path)):
            raise UsageError(f"--grammar must be a file; {NOT_GBNF}") from error
        raise UsageError(f"--grammar: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--grammar: {path} is not UTF-8 text") from error
