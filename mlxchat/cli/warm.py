"""What `mlxchat cache warm` does: prefill a document, for the prefix cache alone."""

from typing import NoReturn

from mlxchat.cache import make_cache
from mlxchat.cli.prefix import LEAST_TOKENS, Prefixes
from mlxchat.cli.setup import Setup, find_model, fit_window, load_model, start
from mlxchat.documents import piped_stdin, read_input
from mlxchat.errors import CacheError, ExitStatus, InputError
from mlxchat.generate import prefill
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress


def warm_document(setup: Setup, file: str, system: str | None) -> int:
    """Read the document as `generate` would. Raises InputError where it is too short to keep,
    CacheError where nothing can be kept."""
    messages = Messages(setup.quiet)
    setup.cache_settings()
    document = read_input(None, (file,), piped_stdin() if file == "-" else None)
    start(setup, messages)
    model = load_model(setup, find_model(setup, messages), messages.warn)
    settings = fit_window(setup, model, messages.warn)
    ids = model.tokenizer.prompt(document.text, system).ids
    if len(ids) < LEAST_TOKENS:
        raise InputError(
            f"{file} is {len(ids):,} tokens: below {LEAST_TOKENS:,} it is read again as quickly"
        )
    cache = make_cache(model.network, settings.max_kv_size, settings.keep)
    prefixes = Prefixes(setup, _refuse)
    try:
        cached, record = prefixes.begin(model, cache, ids, settings.max_kv_size)
        with progress("reading", "tokens", setup.quiet) as on_progress:
            prefill(
                model.network,
                cache,
                ids[cached:],
                step_size=settings.prefill_step_size,
                on_progress=on_progress,
                on_held=record,
            )
    finally:
        prefixes.close()
    messages.note(f"{file}: {len(ids):,} tokens, {cached:,} of them were known already")
    return ExitStatus.OK


def _refuse(reason: str) -> NoReturn:
    raise CacheError(reason)
