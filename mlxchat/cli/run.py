"""What `mlxchat generate` does with its options: settings, model, window, prompt, output."""

from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxchat import __version__
from mlxchat.app.awake import keep_awake
from mlxchat.app.blocks import block_reader, check_model
from mlxchat.app.events import EventWriter
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.ranks import check_ranks, lead_or_follow
from mlxchat.app.setup import POSITIONS_RUN_ON, Setup, fit_window, load_model, start
from mlxchat.cache import Cache, positions_bounded
from mlxchat.cache.layers import windows
from mlxchat.chat.ledger import Ledger, TokenIds
from mlxchat.cli.long_run import (
    Begun,
    Checkpointer,
    FileSink,
    LongOptions,
    Sink,
    Watch,
    go_on,
    pace_of,
)
from mlxchat.cli.setup import find_model
from mlxchat.distributed.ranks import Ranks
from mlxchat.engine.blocks import BlockReader
from mlxchat.engine.generate import Generation, Midway, OnHeld, Progress, Stats, nobody
from mlxchat.engine.pace import Pace
from mlxchat.errors import DeviceError, ExitStatus, SnapshotBroken, UsageError
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, OnLoop, SamplingSettings
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.fingerprint import Fingerprint, ModelPrint
from mlxchat.store.output_file import START, OutputFile
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting
from mlxchat.terminal.signals import StatusRequest, StopRequest, ignore_signals
from mlxchat.terminal.text_output import Stdout
from mlxchat.text.documents import Input, is_stdin_left_unread, name_of, piped_stdin, read_input
from mlxchat.text.parts import Part, encode_parts
from mlxchat.text.template import thinking_variables
from mlxchat.text.thinking import ThoughtsAsText
from mlxchat.text.tokens import Prompt
from mlxchat.units import and_rate, count, format_bytes


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
    quiet: bool = False
    think: str | None = None
    template_args: dict[str, Any] = field(default_factory=dict[str, Any])
    long: LongOptions = field(default_factory=LongOptions)
    blocks: tuple[str, ...] = ()

    @property
    def hides_thoughts(self) -> bool:
        return self.think in ("off", "hide")

    def variables(self) -> dict[str, Any]:
        """What the chat template is given: an argument has the last word."""
        thinking = {} if self.think is None else thinking_variables(self.think != "off")
        return {**thinking, **self.template_args}


def run(request: Request) -> int:
    """Generate, and return the exit status. Raises MlxchatError for all that a user can mend."""
    _check(request)
    return lead_or_follow(lambda ranks: _run(request, ranks), ignore_signals) or ExitStatus.OK


def _run(request: Request, ranks: Ranks | None) -> int:
    check_ranks(ranks, pipeline=request.setup.pipeline, blocks=bool(request.blocks))
    messages = Messages(request.quiet)
    document = read_input(request.prompt, request.files, piped_stdin(), request.blocks)
    for notice in document.notices:
        messages.warn(notice)
    start(request.setup, messages.warn)
    with ExitStack() as stack:
        checkpoint = None
        if request.long.checkpoint is not None:
            checkpoint = Checkpoint.create(Path(request.long.checkpoint))
            stack.callback(checkpoint.close)
        output = _new_output(request.long)
        loaded = _load(request, messages, ranks)
        if is_stdin_left_unread():
            messages.warn(
                "what was piped in is not read, since mlx.launch does not pass on where it ends: "
                "give it with -f FILE"
            )
        prompt = _encode(request, loaded.model, document)
        for notice in prompt.notices:
            messages.warn(notice)
        _warn_of_eviction(len(prompt.ids), loaded, messages)
        if checkpoint is not None:
            messages.note(f"the text goes to {request.long.output_path()}")
            checkpoint.begin(_asked(request, loaded), prompt.ids)
        return _generate(request, messages, loaded, prompt, output, loaded.fresh(), checkpoint)


def resume_run(directory: str, changes: dict[str, Any]) -> int:
    """Go on with the checkpoint in `directory`; `changes` are the options that were given anew,
    by name: those of Request, Setup or LongOptions."""
    led = lead_or_follow(lambda ranks: _resume(directory, changes, ranks), ignore_signals)
    return led or ExitStatus.OK


def _resume(directory: str, changes: dict[str, Any], ranks: Ranks | None) -> int:
    with ExitStack() as stack:
        checkpoint = Checkpoint.open(Path(directory))
        stack.callback(checkpoint.close)
        request = _changed(checkpoint, directory, changes)
        messages = Messages(request.quiet)
        ended = checkpoint.run["ended"]
        if ended is not None and not changes.keys() & MENDS.get(ended, set()):
            messages.warn(f"the run in {directory} has ended already: {ended}")
            return ExitStatus.LOOP if ended == "loop" else ExitStatus.OK
        _check(request)
        check_ranks(ranks, pipeline=request.setup.pipeline)
        prompt = Prompt(checkpoint.prompt())
        start(request.setup, messages.warn)
        loaded = _load(request, messages, ranks)
        begun = go_on(
            checkpoint,
            loaded.model,
            replace(loaded.fresh(), position=START),
            loaded.fingerprint(),
            messages,
        )
        path = request.long.output_path()
        assert path is not None
        messages.note(f"the text goes on in {path}")
        file = OutputFile.open(path, begun.position, request.long.rotate_bytes())
        checkpoint.change(_asked(request, loaded))
        return _generate(request, messages, loaded, prompt, FileSink(file), begun, checkpoint)


# A run that has ended goes on where what ended it is given anew.
MENDS = {"bytes": {"max_bytes"}, "length": {"max_tokens"}, "loop": {"on_loop"}}


def _changed(checkpoint: Checkpoint, directory: str, changes: dict[str, Any]) -> Request:
    """What was asked when the run began, and what of it is asked otherwise now."""
    asked = checkpoint.run["asked"]
    if changes.keys() & {"until", "lasting"}:
        asked["long"]["until_s"] = None
    for part in (asked, asked.get("setup"), asked.get("long")):
        if isinstance(part, dict):
            part |= {name: value for name, value in changes.items() if name in part}
    try:
        long = LongOptions(**asked.pop("long") | {"checkpoint": directory})
        long = replace(long, on_loop=OnLoop(long.on_loop))
        setup = Setup(**asked.pop("setup"))
        asked |= {name: tuple(asked[name]) for name in ("files", "stop", "blocks")}
        return Request(setup=setup, long=long, **asked)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotBroken(
            f"{directory}/run.json does not say what was asked: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model and the empty cache that it is to fill."""

    found: str
    model: Model
    settings: CacheSettings
    sampling: SamplingSettings
    cache: Cache

    def fresh(self) -> Begun:
        """The beginning of a run."""
        window, keep = self.settings.max_kv_size, self._keep()
        return Begun(self.cache, Ledger(window, keep), self.sampling)

    def fingerprint(self) -> Fingerprint:
        return ModelPrint(self.model).of(self.settings.max_kv_size, self._keep(), None)

    def _keep(self) -> int:
        return 0 if self.settings.max_kv_size is None else self.settings.keep


def _load(request: Request, messages: Messages, ranks: Ranks | None) -> _Loaded:
    setup = request.setup
    found = find_model(setup, messages)
    check = check_model if request.blocks else None
    with waiting(f"loading {found.name} …", messages.quiet):
        model = load_model(setup, found, messages.warn, check, ranks)
        settings = fit_window(setup, model, messages.warn)
        cache = model.make_cache(settings.max_kv_size, settings.keep)
    if settings.max_kv_size is not None and not positions_bounded(cache):
        messages.warn(POSITIONS_RUN_ON)
    sampling = setup.sampling_settings(model.generation_config)
    return _Loaded(str(found.directory.resolve()), model, settings, sampling, cache)


def _generate(
    request: Request,
    messages: Messages,
    loaded: _Loaded,
    prompt: Prompt,
    output: Sink,
    begun: Begun,
    checkpoint: Checkpoint | None,
) -> int:
    """The loop over the tokens, and what is told at its end."""
    model, long = loaded.model, request.long
    events = EventWriter(model.tokenizer, request.logprobs is not None)
    with (
        StopRequest() as stop,
        StatusRequest() as status,
        keep_awake() if long.is_long else nullcontext(),
        progress("reading", "tokens", request.quiet) as bar,
        ExitStack() as stack,
    ):
        stop.say = bar.say_anyway
        stop.before_leaving(bar.stop)
        reader = _block_reader(request, loaded, prompt, messages, stack)
        record: OnHeld = nobody
        # Begun again from a damaged checkpoint, a run has to come to the very same text: what was
        # read in other steps is not the same to the last bit.
        if checkpoint is None and reader is None:
            prefixes = Prefixes(request.setup, messages.note)
            stack.callback(prefixes.close)
            begun, record = _with_known_prefix(prefixes, loaded, prompt.ids, begun)
        watch = Watch(stop, status, messages, begun, long)
        written = ThoughtsAsText(hidden=request.hides_thoughts, inside=begun.in_thought)
        checkpointer = None
        if checkpoint is not None:
            assert isinstance(output, FileSink)
            checkpointer = Checkpointer(
                checkpoint,
                long,
                model,
                loaded.fingerprint(),
                begun,
                output.file,
                watch,
                written,
                messages,
            )
        pace = pace_of(model.network, begun, checkpoint)
        beside = _Beside(watch, checkpointer, begun, record, bar, reader, pace)
        generation = _generation(request, loaded, prompt.ids, beside)

        def done_event(stats: Stats) -> str:
            return events.done(stats, model.name, request.setup.seed)

        if request.json_events:
            output.write(events.start(_start_facts(loaded, prompt.ids)))
            stop.before_leaving(lambda: output.write(done_event(generation.stats)))
        try:
            for token in generation:
                # What only an end would show is not shown where another run will go on.
                is_end = token.id is None and generation.midway is not None
                if is_end and checkpointer is not None and watch.stopped:
                    break
                if request.json_events:
                    text = "" if token.thought and request.hides_thoughts else events.token(token)
                else:
                    text = written.add(token.text, token.thought)
                if not watch.fits(token, token.text if request.json_events else text):
                    break
                output.write(text)
        except DeviceError:
            # The text so far is good. The cache is not: the checkpoint before stands.
            output.end()
            raise
        stop.obeyed()
        reason = watch.ended or generation.stats.finish_reason
        stats = replace(generation.stats, finish_reason=reason)
        figures = stats_line(stats)
        if checkpointer is not None:
            figures += checkpointer.leave(generation.midway, stats)
    if request.json_events:
        output.write(done_event(stats))
    output.end()
    messages.stats(figures, request.stats)
    return ExitStatus.LOOP if watch.ended == "loop" else stop.status or ExitStatus.OK


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a generation calls while it goes on."""

    watch: Watch
    checkpointer: Checkpointer | None
    begun: Begun
    record: OnHeld
    on_prefill: Progress
    reader: BlockReader | None
    pace: Pace

    def held(self, step: TokenIds) -> None:
        self.begun.ledger.add(step)
        self.record(step)

    def read(self, done: int, total: int) -> None:
        self.watch.reads(done, total)
        if self.checkpointer is not None:
            self.checkpointer.read(done, total)
        self.on_prefill(done, total)

    def pause(self, midway: Midway) -> SamplingSettings:
        if self.checkpointer is not None:
            self.checkpointer.paused(midway)
        return self.watch.loop.sampling(self.begun.sampling, midway.generated)


def _block_reader(
    request: Request, loaded: _Loaded, prompt: Prompt, messages: Messages, stack: ExitStack
) -> BlockReader | None:
    if not request.blocks:
        return None
    return block_reader(
        request.setup,
        loaded.model,
        loaded.cache,
        prompt,
        window=loaded.settings.max_kv_size,
        notify=messages.warn,
        stack=stack,
    )


def _with_known_prefix(
    prefixes: Prefixes, loaded: _Loaded, prompt: TokenIds, begun: Begun
) -> tuple[Begun, OnHeld]:
    """Begin behind what is known of the prompt, of which nothing is held yet."""
    window = loaded.settings.max_kv_size
    cached, record = prefixes.begin(loaded.model, begun.cache, prompt, window)
    begun.ledger.add(prompt[:cached])
    return replace(begun, prefilled=cached), record


def _generation(request: Request, loaded: _Loaded, prompt: TokenIds, beside: _Beside) -> Generation:
    begun = beside.begun
    how: dict[str, Any] = {
        "settings": _generation_settings(request),
        "prefill_step_size": loaded.settings.prefill_step_size,
        "pace": beside.pace,
        "on_prefill": beside.read,
        "on_held": beside.held,
        "should_stop": beside.watch.should_stop,
        "reply": loaded.model.tokenizer.reader(None if request.raw else prompt),
        "pause_every": request.long.pause_every(),
        "on_pause": beside.pause,
    }
    midway = begun.midway
    if midway is None:
        how |= {"sampling": begun.sampling, "cached_tokens": begun.prefilled}
        how["reader"] = beside.reader
        return Generation(loaded.model, prompt, begun.cache, **how)
    how["sampling"] = beside.watch.loop.sampling(begun.sampling, midway.generated)
    return Generation.resume(loaded.model, midway, begun.cache, **how)


def _check(request: Request) -> None:
    """Whatever can be refused is refused before anything takes time."""
    _generation_settings(request)
    request.setup.check()
    request.long.check(json_events=request.json_events)
    if request.blocks:
        _check_blocks(request)


def _check_blocks(request: Request) -> None:
    if request.long.checkpoint is not None:
        raise UsageError(
            "--block and --checkpoint cannot be combined: give the documents of a run that is to "
            "be resumed with -f"
        )
    if not request.setup.prefix_cache:
        raise UsageError(
            "--block keeps what it reads on the disk: drop --no-prefix-cache, or if it is "
            "configured, add --prefix-cache"
        )


def _new_output(long: LongOptions) -> Sink:
    path = long.output_path()
    return Stdout() if path is None else FileSink(OutputFile.open(path, None, long.rotate_bytes()))


def _asked(request: Request, loaded: _Loaded) -> dict[str, Any]:
    """What a later run needs to be told, with what was chosen for the user."""
    window = loaded.settings.max_kv_size
    model = request.setup.model
    if model is None or Path(model).expanduser().exists():
        model = loaded.found
    setup = replace(request.setup, model=model, window=window)
    deadline = request.long.deadline()
    path = request.long.output_path()
    long = replace(
        request.long,
        output=None if path is None else str(path.resolve()),
        until=None,
        lasting=None,
        until_s=None if deadline is None else deadline.timestamp(),
    )
    return asdict(replace(request, prompt=None, files=(), setup=setup, long=long))


def _generation_settings(request: Request) -> GenerationSettings:
    if request.logprobs is not None and not request.json_events:
        raise UsageError("--logprobs needs --json: text has no place for log-probabilities")
    if request.raw and request.system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out")
    if request.raw and request.variables():
        raise UsageError(
            "--think and --template-arg need the chat template, which --raw leaves out"
        )
    return GenerationSettings(
        max_tokens=request.max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        logprobs=(request.logprobs or 0) if request.json_events else None,
    )


def _encode(request: Request, model: Model, document: Input) -> Prompt:
    tokenizer, text = model.tokenizer, document.text
    with progress("tokenizing", "characters", request.quiet) as on_progress:
        if document.blocks:
            named = zip(document.blocks, request.blocks, strict=True)
            parts = [
                *(Part(block, cache=True, name=name_of(name)) for block, name in named),
                Part(text),
            ]
            return encode_parts(
                tokenizer,
                parts,
                request.system,
                raw=request.raw,
                variables=request.variables(),
                on_progress=on_progress,
            )
        if request.raw:
            return tokenizer.raw_prompt(text, on_progress)
        return tokenizer.prompt(text, request.system, on_progress, variables=request.variables())


def _warn_of_eviction(prompt_tokens: int, loaded: _Loaded, messages: Messages) -> None:
    """A model of recurrent layers alone has no window, and evicts nothing."""
    window = loaded.settings.max_kv_size
    if window is not None and prompt_tokens > window and windows(loaded.cache):
        messages.warn(
            f"the prompt is {prompt_tokens:,} tokens and the window holds {window:,}: the first "
            f"{loaded.settings.keep:,} and the latest stay, {prompt_tokens - window:,} are evicted"
        )


def _start_facts(loaded: _Loaded, prompt: TokenIds) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": loaded.model.name,
        "prompt_tokens": len(prompt),
        **asdict(loaded.settings),
        **asdict(loaded.sampling),
    }


def stats_line(stats: Stats) -> str:
    """The closing figures in one line, for people."""
    parts = [_prompt_figures(stats)]
    if stats.ttft_s:
        generated = count(stats.generated_tokens, "token")
        parts += [
            f"generated {generated}{and_rate(stats.decode_tokens_per_s)}",
            f"first token {stats.ttft_s:.2f} s",
        ]
    parts += [
        f"KV {stats.kv_tokens:,} tokens, {format_bytes(stats.kv_bytes)}",
        f"evicted {stats.evicted_tokens:,}",
        f"peak memory {format_bytes(stats.peak_memory_bytes)}",
        f"stopped: {stats.finish_reason}",
    ]
    return " · ".join(parts)


def _prompt_figures(stats: Stats) -> str:
    parts = [f"prompt {count(stats.prompt_tokens, 'token')}"]
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens:,} of them known")
    if stats.cached_tokens + stats.prefilled_tokens < stats.prompt_tokens:
        parts.append(f"{stats.prefilled_tokens:,} read")
    return ", ".join(parts) + and_rate(stats.prefill_tokens_per_s)
