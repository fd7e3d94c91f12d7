"""What `mlxchat generate` does with its options: settings, model, window, prompt, output."""

from dataclasses import asdict, dataclass
from typing import Any

from mlxchat import __version__, platform
from mlxchat.cache import check_bound, make_cache, positions_bounded
from mlxchat.cli.signals import StopRequest
from mlxchat.documents import piped_stdin, read_input
from mlxchat.errors import CacheError, ExitStatus, UsageError
from mlxchat.events import EventWriter
from mlxchat.generate import Generation, Stats
from mlxchat.models.fit import automatic_window, check_window
from mlxchat.models.load import Model, load_directory
from mlxchat.models.resolve import resolve_model
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings, recommended
from mlxchat.terminal.ask import terminal_question
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress
from mlxchat.terminal.text_output import Stdout
from mlxchat.tokens import Prompt
from mlxchat.units import format_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """The options as they were given; `window` is "auto", "none" or a number of tokens."""

    prompt: str | None
    files: tuple[str, ...]
    system: str | None
    raw: bool
    model: str | None
    offline: bool
    device: str
    dtype: str
    window: str
    keep: int
    prefill_step_size: int
    sampling: dict[str, Any]
    seed: int
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    json_events: bool
    logprobs: int | None
    quiet: bool
    stats: bool | None


def run(request: Request) -> int:
    """Generate, and return the exit status. Raises MlxchatError for all that a user can mend."""
    messages = Messages(request.quiet)
    # Whatever can be refused is refused before anything takes time.
    generation_settings = _generation_settings(request)
    cache_settings = _cache_settings(request)
    _sampling_settings(request, {})
    stdout = Stdout()
    document = read_input(request.prompt, request.files, piped_stdin())
    for notice in document.notices:
        messages.warn(notice)
    platform.require_supported_system()
    for name in platform.untested_versions():
        messages.warn(f"{name} is outside the range that this release was tested with")
    platform.select_device(request.device)

    model = _load(request, cache_settings, messages)
    cache_settings, cache = _make_cache(request, cache_settings, model, messages)
    if cache_settings.max_kv_size is not None and not positions_bounded(cache):
        messages.warn(
            "this model's positions cannot be moved: beyond its trained context quality will fall"
        )
    prompt = _encode(request, model, document.text)
    for notice in prompt.notices:
        messages.warn(notice)
    _warn_of_eviction(len(prompt.ids), cache_settings, messages)

    sampling = _sampling_settings(request, model.generation_config)
    events = EventWriter(model.tokenizer, request.logprobs is not None)
    with StopRequest() as stop, progress("reading", "tokens", request.quiet) as on_prefill:
        generation = Generation(
            model,
            prompt.ids,
            cache,
            sampling=sampling,
            settings=generation_settings,
            prefill_step_size=cache_settings.prefill_step_size,
            on_prefill=on_prefill,
            should_stop=stop.requested,
        )
        if request.json_events:
            stdout.write(events.start(_start_facts(model, prompt, cache_settings, sampling)))
        for token in generation:
            stdout.write(events.token(token) if request.json_events else token.text)
    stats = generation.stats
    if request.json_events:
        stdout.write(events.done(stats, model.name, request.seed))
    stdout.end()
    messages.stats(stats_line(stats), request.stats)
    return stop.status or ExitStatus.OK


def _generation_settings(request: Request) -> GenerationSettings:
    if request.logprobs is not None and not request.json_events:
        raise UsageError("--logprobs needs --json: text has no place for log-probabilities")
    if request.raw and request.system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out")
    return GenerationSettings(
        max_tokens=request.max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        logprobs=(request.logprobs or 0) if request.json_events else None,
    )


def _cache_settings(request: Request) -> CacheSettings:
    """The window as far as it is known before the model is: not yet where it is "auto"."""
    if request.window in ("auto", "none"):
        max_kv_size = None
    else:
        try:
            max_kv_size = int(request.window)
        except ValueError:
            raise UsageError(
                f"--max-kv-size must be auto, none or a number of tokens, got {request.window!r}"
            ) from None
    return CacheSettings(max_kv_size, request.keep, request.prefill_step_size)


def _sampling_settings(request: Request, generation_config: dict[str, Any]) -> SamplingSettings:
    given = {name: value for name, value in request.sampling.items() if value is not None}
    return SamplingSettings(**(recommended(generation_config) | given), seed=request.seed)


def _load(request: Request, settings: CacheSettings, messages: Messages) -> Model:
    resolved = resolve_model(
        request.model,
        offline=request.offline,
        ask=terminal_question(),
        notify=messages.warn,
        show_progress=not request.quiet,
    )
    return load_directory(
        resolved.directory,
        resolved.name,
        dtype=request.dtype,
        notify=messages.warn,
        check=lambda network: check_bound(network, settings.max_kv_size, settings.keep),
    )


def _make_cache(
    request: Request, settings: CacheSettings, model: Model, messages: Messages
) -> tuple[CacheSettings, list[Any]]:
    if request.window != "auto":
        check_window(model, settings.max_kv_size)
        return settings, make_cache(model.network, settings.max_kv_size, settings.keep)
    settings = CacheSettings(automatic_window(model), settings.keep, settings.prefill_step_size)
    try:
        return settings, make_cache(model.network, settings.max_kv_size, settings.keep)
    except CacheError as error:
        messages.warn(f"memory will grow with the text: {error}")
        settings = CacheSettings(None, settings.keep, settings.prefill_step_size)
        return settings, make_cache(model.network)


def _encode(request: Request, model: Model, text: str) -> Prompt:
    with progress("tokenizing", "characters", request.quiet) as on_progress:
        if request.raw:
            return model.tokenizer.raw_prompt(text, on_progress)
        return model.tokenizer.prompt(text, request.system, on_progress)


def _warn_of_eviction(prompt_tokens: int, settings: CacheSettings, messages: Messages) -> None:
    window = settings.max_kv_size
    if window is not None and prompt_tokens > window:
        messages.warn(
            f"the prompt is {prompt_tokens:,} tokens and the window holds {window:,}: the first "
            f"{settings.keep:,} and the latest stay, {prompt_tokens - window:,} are evicted"
        )


def _start_facts(
    model: Model, prompt: Prompt, cache: CacheSettings, sampling: SamplingSettings
) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": model.name,
        "prompt_tokens": len(prompt.ids),
        **asdict(cache),
        **asdict(sampling),
    }


def stats_line(stats: Stats) -> str:
    """The closing figures in one line, for people."""
    return " · ".join(
        [
            f"prompt {stats.prompt_tokens:,} tokens, {stats.prefill_tokens_per_s:,.1f} tok/s",
            f"generated {stats.generated_tokens:,} tokens, {stats.decode_tokens_per_s:,.1f} tok/s",
            f"first token {stats.ttft_s:.2f} s",
            f"KV {stats.kv_tokens:,} tokens, {format_bytes(stats.kv_bytes)}",
            f"evicted {stats.evicted_tokens:,}",
            f"peak memory {format_bytes(stats.peak_memory_bytes)}",
            f"stopped: {stats.finish_reason}",
        ]
    )
