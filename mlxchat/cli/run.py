"""What `mlxchat generate` does with its options: settings, model, window, prompt, output."""

from dataclasses import asdict, dataclass
from typing import Any

from mlxchat import __version__
from mlxchat.cache import make_cache, positions_bounded
from mlxchat.cli.setup import POSITIONS_RUN_ON, Setup, find_model, fit_window, load_model, start
from mlxchat.cli.signals import StopRequest
from mlxchat.documents import piped_stdin, read_input
from mlxchat.errors import ExitStatus, UsageError
from mlxchat.events import EventWriter
from mlxchat.generate import Generation, Stats
from mlxchat.models.load import Model
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress
from mlxchat.terminal.text_output import Stdout
from mlxchat.tokens import Prompt
from mlxchat.units import format_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """The options as they were given."""

    setup: Setup
    prompt: str | None
    files: tuple[str, ...]
    system: str | None
    raw: bool
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    json_events: bool
    logprobs: int | None
    stats: bool | None


def run(request: Request) -> int:
    """Generate, and return the exit status. Raises MlxchatError for all that a user can mend."""
    setup = request.setup
    messages = Messages(setup.quiet)
    # Whatever can be refused is refused before anything takes time.
    generation_settings = _generation_settings(request)
    setup.cache_settings()
    setup.sampling_settings({})
    stdout = Stdout()
    document = read_input(request.prompt, request.files, piped_stdin())
    for notice in document.notices:
        messages.warn(notice)
    start(setup, messages)
    model = load_model(setup, find_model(setup, messages), messages.warn)
    cache_settings = fit_window(setup, model, messages.warn)
    cache = make_cache(model.network, cache_settings.max_kv_size, cache_settings.keep)
    if cache_settings.max_kv_size is not None and not positions_bounded(cache):
        messages.warn(POSITIONS_RUN_ON)
    prompt = _encode(request, model, document.text)
    for notice in prompt.notices:
        messages.warn(notice)
    _warn_of_eviction(len(prompt.ids), cache_settings, messages)

    sampling = setup.sampling_settings(model.generation_config)
    events = EventWriter(model.tokenizer, request.logprobs is not None)
    with StopRequest() as stop, progress("reading", "tokens", setup.quiet) as on_prefill:
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
        stdout.write(events.done(stats, model.name, setup.seed))
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


def _encode(request: Request, model: Model, text: str) -> Prompt:
    with progress("tokenizing", "characters", request.setup.quiet) as on_progress:
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
