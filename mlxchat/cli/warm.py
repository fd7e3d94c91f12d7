"""What `mlxchat cache warm` does: prefill a document, for what is kept of it alone."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from mlx import nn

from mlxchat.app.blocks import block_reader, check_model
from mlxchat.app.prefixes import LEAST_TOKENS, Prefixes
from mlxchat.app.setup import Setup, fit_window, load_model, start
from mlxchat.cache import Cache
from mlxchat.chat.ledger import TokenIds
from mlxchat.cli.setup import find_model
from mlxchat.engine.generate import OnHeld, nobody, prefill
from mlxchat.engine.pace import Pace
from mlxchat.errors import CacheError, ExitStatus, InputError
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting
from mlxchat.text.documents import SEPARATOR, STDIN, name_of, piped_stdin, read_input
from mlxchat.text.parts import Part, encode_parts


@dataclass(frozen=True, slots=True)
class _Ready:
    """A document, and the model with the empty cache that is to read it."""

    name: str
    text: str
    model: Model
    settings: CacheSettings
    cache: Cache
    messages: Messages


def _ready(
    setup: Setup, file: str, quiet: bool, check: Callable[[nn.Module], None] | None = None
) -> _Ready:
    messages = Messages(quiet)
    setup.cache_settings()
    document = read_input(None, (file,), piped_stdin() if file == STDIN else None)
    start(setup, messages.warn)
    found = find_model(setup, messages)
    with waiting(f"loading {found.name} …", quiet):
        model = load_model(setup, found, messages.warn, check)
        settings = fit_window(setup, model, messages.warn)
        cache = model.make_cache(settings.max_kv_size, settings.keep)
    return _Ready(name_of(file), document.text, model, settings, cache, messages)


def warm_document(
    setup: Setup, file: str, system: str | None, template_args: Mapping[str, Any], *, quiet: bool
) -> int:
    """Read the document as `generate` would. Raises InputError where it is too short to keep,
    CacheError where nothing can be kept."""
    ready = _ready(setup, file, quiet)
    ids = ready.model.tokenizer.prompt(ready.text, system, variables=template_args).ids
    if len(ids) < LEAST_TOKENS:
        raise InputError(
            f"{ready.name} is {len(ids):,} tokens: below {LEAST_TOKENS:,} it is read again as "
            "quickly"
        )
    prefixes = Prefixes(setup, _refuse)
    try:
        cached, record = prefixes.begin(ready.model, ready.cache, ids, ready.settings.max_kv_size)
        _read(ready, ids[cached:], prefill, record)
    finally:
        prefixes.close()
    ready.messages.note(f"{ready.name}: {len(ids):,} tokens, {cached:,} of them were known already")
    return ExitStatus.OK


def warm_block(
    setup: Setup, file: str, system: str | None, template_args: Mapping[str, Any], *, quiet: bool
) -> int:
    """Read the document as a block of `generate`'s. Raises what `warm_document` raises."""
    ready = _ready(setup, file, quiet, check_model)
    part = Part(ready.text + SEPARATOR, cache=True, name=ready.name)
    prompt = encode_parts(ready.model.tokenizer, [part], system, variables=template_args)
    if not prompt.blocks:
        raise InputError(prompt.notices[0])
    first, stop = prompt.blocks[0]
    window = ready.settings.max_kv_size
    with ExitStack() as stack:
        reader = block_reader(
            setup, ready.model, ready.cache, prompt, window=window, notify=_refuse, stack=stack
        )
        assert reader is not None
        _read(ready, prompt.ids[:stop], reader)
    known = "which was known already" if reader.reused_tokens else "kept"
    ready.messages.note(f"{ready.name}: a block of {stop - first:,} tokens, {known}")
    return ExitStatus.OK


def _read(ready: _Ready, ids: TokenIds, read: Callable[..., int], on_held: OnHeld = nobody) -> None:
    with progress("reading", "tokens", ready.messages.quiet) as on_progress:
        read(
            ready.model.network,
            ready.cache,
            ids,
            step_size=ready.settings.prefill_step_size,
            pace=Pace.of(ready.model.network),
            on_progress=on_progress,
            on_held=on_held,
        )


def _refuse(reason: str) -> NoReturn:
    raise CacheError(reason)
