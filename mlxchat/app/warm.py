"""Reads a document ahead of time into the prefix cache."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from mlxchat.app.blocks import block_reader
from mlxchat.app.loaded import Loaded, open_model
from mlxchat.app.observer import Observer
from mlxchat.app.prefixes import MIN_TOKENS, Prefixes
from mlxchat.engine.loops import OnHeld, prefill
from mlxchat.engine.pace import Pace, first_step
from mlxchat.errors import CacheError, InputError
from mlxchat.request import Setup
from mlxchat.text.document import name_of
from mlxchat.text.documents import SEPARATOR, read_input
from mlxchat.text.parts import Part, encode_parts
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt


@dataclass(frozen=True, slots=True)
class Warmed:
    """A cached document; `known` of its tokens were cached before."""

    name: str
    tokens: int
    known: int


def warm(
    setup: Setup,
    file: str,
    *,
    block: bool = False,
    system: str | None = None,
    template_args: Mapping[str, Any] | None = None,
    piped: BinaryIO | None = None,
    observer: Observer | None = None,
) -> Warmed:
    """Read the document as a run would, or as a `block` of one. Raises InputError if it is too
    short to cache, CacheError if nothing can be cached."""
    observer = observer or Observer()
    text = read_input(None, (file,), piped, headings=not block).text
    loaded = open_model(setup, observer, blocks=block)
    tokenizer, args, name = loaded.model.tokenizer, template_args or {}, name_of(file)
    if block:
        part = Part(text + SEPARATOR, cache=True, name=name)
        prompt = encode_parts(tokenizer, [part], system, variables=args)
        return Warmed(name, *_read_block(setup, loaded, prompt, observer))
    ids = tokenizer.prompt(text, system, variables=args).ids
    if len(ids) < MIN_TOKENS:
        raise InputError(
            f"{name} has {len(ids):,} tokens: below {MIN_TOKENS:,}, caching saves no time"
        )
    return Warmed(name, len(ids), _read_prefix(setup, loaded, ids, observer, name))


def _read_prefix(setup: Setup, loaded: Loaded, ids: TokenIds, observer: Observer, name: str) -> int:
    """Return how many of its tokens were known."""
    prefixes = Prefixes(setup, _refuse)
    prefixes.label = name
    try:
        window = loaded.settings.max_kv_size
        cached, record = prefixes.begin(loaded.model, loaded.cache, ids, window)
        _read(loaded, ids[cached:], prefill, observer, record)
    finally:
        prefixes.close()
    return cached


def _read_block(
    setup: Setup, loaded: Loaded, prompt: Prompt, observer: Observer
) -> tuple[int, int]:
    """Return the number of tokens of the block, and how many of them were known."""
    if not prompt.blocks:
        raise InputError(prompt.notices[0])
    first, stop = prompt.blocks[0]
    with ExitStack() as stack:
        reader = block_reader(
            setup,
            loaded.model,
            loaded.cache,
            prompt,
            window=loaded.settings.max_kv_size,
            notify=_refuse,
            stack=stack,
        )
        assert reader is not None
        _read(loaded, prompt.ids[:stop], reader, observer)
    return stop - first, reader.reused_tokens


def _read(
    loaded: Loaded,
    ids: TokenIds,
    read: Callable[..., int],
    observer: Observer,
    on_held: OnHeld | None = None,
) -> None:
    with observer.counting("reading", "tokens") as on_progress:
        read(
            loaded.model.network,
            loaded.cache,
            ids,
            step_size=loaded.settings.prefill_step_size,
            pace=Pace(first_step(loaded.model.network)),
            on_progress=on_progress,
            on_held=on_held,
        )


def _refuse(reason: str) -> NoReturn:
    raise CacheError(reason)
