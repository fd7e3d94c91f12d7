"""One generation with all it needs: a window, known prefixes, blocks, an output file, checkpoints.

The `ends` in `Run` stop it, `Run._output` writes it, a Checkpointer saves it.
"""

import io
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mlxchat.app.checkpoints import Checkpointer
from mlxchat.app.events import EventWriter, value_of
from mlxchat.app.opening import Loaded, block_reader, known_prefixes
from mlxchat.app.overflow import SectionReader
from mlxchat.app.prompt import begin_answer
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.generate import after_reading, generate
from mlxchat.engine.prefill import OnHeld, Pace, ShouldStop, first_step, prefill
from mlxchat.engine.reply import (
    RESUMABLE,
    End,
    FinishReason,
    LoopDetector,
    Reply,
    ResumePoint,
    Stats,
    asked,
    first_reason,
    led,
)
from mlxchat.engine.sampling import Token
from mlxchat.errors import MlxchatError, OutputError, UsageError
from mlxchat.models.model import Model
from mlxchat.passages.search import Read
from mlxchat.platform import keep_awake
from mlxchat.request import Request
from mlxchat.settings import GenerationSettings, OnLoop
from mlxchat.store.output_file import OutputFile
from mlxchat.store.snapshot import Written
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.tokens import Prompt
from mlxchat.units import Observer, Progress, count

# The tags for thoughts in plain text, whatever the model's own markers.
OPENS_THOUGHT, CLOSES_THOUGHT = "<think>", "</think>\n\n"

NO_CODE = "the answer has no code block, so nothing is written; without --extract, all of it is"

# With it, no text of the measurements looped: scripts/bench/loops.py.
USUAL_MULTIPLIER = 0.4


class TextWriter:
    """Turns a reply into plain text, with thoughts in tags unless it `hides_thoughts`. If it
    `extracts`, only the first code block is text, at the end, and `has_code` once it is complete.
    `in_thought` continues a text that stopped within a thought."""

    def __init__(
        self, *, hides_thoughts: bool, extracts: bool = False, in_thought: bool = False
    ) -> None:
        self._hides_thoughts, self._extracts = hides_thoughts, extracts
        self._in_thought = in_thought and not hides_thoughts
        self._answer = io.StringIO()
        self.has_code = False

    @property
    def answer(self) -> str:
        return self._answer.getvalue()

    def token(self, token: Token) -> str:
        """The text to write for a token."""
        text = token.text
        if not token.thought:
            self._answer.write(text)
            if self._extracts and "\n" in text:
                self.has_code = is_settled(self.answer)
        if not text or self._extracts or (token.thought and self._hides_thoughts):
            return ""
        if token.thought is not self._in_thought:
            self._in_thought = token.thought
            text = f"{OPENS_THOUGHT if token.thought else CLOSES_THOUGHT}{text}"
        return text

    def end(self) -> str:
        """The text to write when the reply has ended."""
        return extract_code(self.answer) if self._extracts else ""

    def judged(self, stats: Stats) -> Stats:
        """The figures of the reply; `complete` is whether it has all of the code to extract."""
        if not self._extracts:
            return stats
        has_ended = stats.finish_reason in ("stop", "stop_text")
        if has_ended and not extract_code(self.answer):
            return replace(stats, complete=False, problem=NO_CODE)
        if is_settled(self.answer):
            return replace(stats, complete=True, finish_reason="stop")
        return replace(stats, complete=has_ended)


@dataclass(eq=False)
class Run(AbstractContextManager["Run"]):
    """Generates once, token by token. Use it as a context, which closes the output properly.

    A run left before its end can be resumed from its latest checkpoint, which its `saver` wrote.
    The output goes to the `file`, or to `write_text`. The `prompt` may have `passages` of larger
    documents; it is None until a `reader` has read them. `saved` is the last checkpoint in the end.
    """

    request: Request
    loaded: Loaded
    observer: Observer
    file: OutputFile | None = None
    saver: Checkpointer | None = None
    prompt: Prompt | None = None
    reader: SectionReader | None = None
    passages: Read | None = None
    constraint: Constraint | None = None
    write_text: Callable[[str], object] = lambda text: None
    open_files: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        request, point = self.request, self.resume_point
        self.saved: Written | None = None
        hides, extracts = request.hides_thoughts, request.answer.extract
        in_thought = point is not None and point.in_thought
        self._text = TextWriter(hides_thoughts=hides, extracts=extracts, in_thought=in_thought)
        with_top = request.logprobs is not None
        self._events = EventWriter(self.model.tokenizer, with_top=with_top, hides_thoughts=hides)
        self._reply: Reply | None = None
        self._last_character = ""
        self._stopped: FinishReason | None = None
        self._is_begun = self._is_over = self._has_ending = False
        self._error: MlxchatError | None = None

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where a resumed run continues, if it has begun to write."""
        return None if self.saver is None else self.saver.begun.resume_point

    @property
    def stats(self) -> Stats:
        """The figures so far; once the run has ended, `finish_reason` is the reason. `complete` is
        also whether there is code to extract, and whether the input was read to its end."""
        if self._reply is None:
            # Stopped before there was a prompt.
            stats = Stats("interrupted") if self.reader is None else self.reader.stats
            complete = None if self.reader is None else False
            return replace(stats, finish_reason=self._stopped or "interrupted", complete=complete)
        stats = self._text.judged(self._reply.stats)
        # What was read of it is in the checkpoint, if there is one.
        is_unread = stats.finish_reason == "time" and not stats.ttft_s and self.saver is None
        return replace(stats, complete=False) if self._lacks_answer or is_unread else stats

    @property
    def _lacks_answer(self) -> bool:
        """Whether it was stopped before the answer that is made from those from sections."""
        has_begun = self._reply is not None and self._reply.first_token_s > 0
        return self.reader is not None and not has_begun

    @property
    def value(self) -> Any:
        """The answer parsed as JSON, if it was constrained by a schema and is complete."""
        answer = self._events.answer if self.request.events else self._text.answer
        return value_of(self.constraint, answer) if self.stats.complete else None

    def __iter__(self) -> Iterator[Token]:
        return self.tokens()

    def write(self, **how: Any) -> None:
        """Generate to the end, with the options of `tokens`."""
        deque(self.tokens(**how), maxlen=0)

    def tokens(
        self,
        *,
        should_stop: ShouldStop = lambda: False,
        on_prefill: Progress = lambda done, total: None,
        on_over: Callable[[], object] = lambda: None,
    ) -> Iterator[Token]:
        """Generate, once. The text of each token is what the output gets, and is in the output file
        before it is returned. What belongs to no token, such as the last event, has no id.

        `should_stop` is called before each token and each prefill step, `on_over` after the last
        token, before the last checkpoint. Raises DeviceError if the device fails, and RanksError if
        another rank is lost: the text so far is kept, and the previous checkpoint stays valid.
        UsageError the second time.
        """
        if self._is_begun:
            raise UsageError("a run generates once: begin another one")
        self._is_begun = True
        overnight = self.request.overnight
        deadline_s = overnight.deadline_s(time.time()) or math.inf
        # The wall clock, because a machine may sleep.
        limits = [asked(lambda: time.time() >= deadline_s, "time"), asked(should_stop)]
        ends = [led(self.model.ranks.lead, limits)]
        is_long = overnight.checkpoint is not None or deadline_s < math.inf
        try:
            with keep_awake() if is_long else nullcontext(), ExitStack() as stack:
                if self.reader is not None:
                    yield from self._read(self.reader, ends)
                    counting = self.observer.counting("part 3 of 3:", "tokens")
                    on_prefill = stack.enter_context(counting)
                if self.prompt is not None:
                    yield from self._written(self.prompt, ends, on_prefill, stack)
                on_over()
                if self.prompt is None and self.reader is not None:
                    read = count(len(self.reader.answers), "section")
                    self.observer.warn(f"stopped after reading {read}")
                if self.saver is not None and self._reply is not None:
                    reason = str(self._reply.finish_reason)
                    # The state goes with text that a longer run has, too.
                    goes_on = reason in RESUMABLE or (reason == "length" and not self._has_ending)
                    point = self._reply.resume_point if goes_on else None
                    self.saved = self.saver.leave(point, reason)
            self._is_over = True
        except OutputError:
            raise
        except MlxchatError as error:
            # The text so far is good. The cache is not: the previous checkpoint stays valid.
            self._error = error
            has_text = self._last_character or self.resume_point is not None
            if isinstance(error, UsageError) and self.saver is not None and not has_text:
                # No other process could do it either.
                self.saver.checkpoint.discard()
            yield self._end()
            raise
        yield self._end()

    def ending(self) -> str:
        """What the output still gets if the run ends now: the last event, the answers from sections
        that were read, the code to extract, or the end of the line; until it is over, the event."""
        request, stats, text = self.request, self.stats, ""
        if self.reader is not None and self._lacks_answer:
            self._events.so_far = self.reader.so_far()
        if request.events:
            problem = stats.problem if self._error is None else str(self._error)
            name, seed = self.model.name, request.setup.seed
            done = self._events.done(stats, name, seed, error=problem, value=self.value)
            return done if self._last_character else ""
        if self._lacks_answer and not request.answer.extract:
            text = self._events.so_far
        elif not self._is_over and self._error is None:
            return ""
        elif request.answer.extract:
            text = self._text.end()
        # The file of a run with a checkpoint contains only the text: another process may continue
        # the run, and must produce the same bytes as a single one.
        has_line = (text[-1:] or self._last_character) not in ("", "\n")
        return f"{text}\n" if has_line and self.saver is None else text

    def write_ending(self) -> None:
        """Write what the output still gets if the run ends now."""
        self._write(self.ending())

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if isinstance(error, KeyboardInterrupt):
                self.write_ending()
        finally:
            self.open_files.__exit__(kind, error, trace)

    def _end(self) -> Token:
        token = self._output(Token(None), self.ending())
        # A new one that has nothing, not even an empty answer, goes when it is closed.
        is_answered = self._error is None and not self.request.answer.extract
        if self.file is not None and (is_answered or self._last_character):
            self.file.end()
        return token

    def _read(self, reader: SectionReader, ends: list[End]) -> Iterator[Token]:
        """Read what the prompt is made from."""

        def should_stop() -> bool:
            self._stopped = first_reason(ends, None)
            return self._stopped is not None

        if self.request.events:
            yield self._start(None)
        for place, answer in reader.read(should_stop):
            if self.request.events:
                yield self._output(Token(None), self._events.section(place, answer))
        self.prompt = reader.prompt

    def _written(
        self, asked_prompt: Prompt, ends: list[End], on_prefill: Progress, stack: ExitStack
    ) -> Iterator[Token]:
        request, saver = self.request, self.saver
        tokenizer = self.model.tokenizer
        prompt, begun_text, how = begin_answer(request, asked_prompt, self.constraint, tokenizer)
        reply, reader, record = self._begin(prompt, how, stack)
        self._reply = reply
        writer = self._events if request.events else self._text

        def read(done: int, total: int) -> None:
            # With the last token, which is computed with the first one of the answer.
            on_prefill(done + (done == total), total + 1)
            if saver is not None:
                saver.read(done, total)

        if request.events and self.reader is None:
            yield self._start(len(prompt.ids))
        if request.events and self.passages is not None:
            yield self._output(Token(None), self._events.passages(self.passages))
        ends = [*ends, self._loop_end(reply)]
        pace = Pace(first_step(self.model.network), self.model.ranks.lead)
        first = [Token(None, begun_text)] if begun_text else []
        while True:
            stretch = generate(
                reply,
                tokens=-1 if saver is None else saver.every - reply.generated % saver.every,
                ends=ends,
                step_size=self.loaded.settings.prefill_step_size,
                pace=pace,
                reader=reader,
                on_prefill=read,
                on_held=record,
            )
            for token in after_reading(first, stretch):
                is_end = token.id is None and reply.resume_point is not None
                if is_end and saver is not None and reply.finish_reason in RESUMABLE:
                    # Text that appears only at the end: another run continues without it.
                    break
                self._has_ending = self._has_ending or is_end
                yield self._output(token, writer.token(token))
                if writer.has_code:
                    reply.finish_reason = "stop"
                    break
            if saver is None or reply.finish_reason is not None:
                return
            saver.save(reply.here())
            first = []

    def _loop_end(self, reply: Reply) -> End:
        """Stops a text that repeats itself, or reports it."""
        request, point = self.request, self.resume_point
        # A code block would never be complete.
        endless = request.ignore_eos and not request.answer.extract
        on_loop = request.overnight.on_loop or (OnLoop.WARN if endless else OnLoop.STOP)
        stops = on_loop is OnLoop.STOP
        detector = LoopDetector()
        for id_ in () if point is None else deque(point.latest, point.generated):
            detector.add(id_)
        # A resumed run says what it does about a loop that began before it.
        was_looping = False

        def see(token: Token | None) -> FinishReason | None:
            nonlocal was_looping
            detector(token)
            if detector.looping and not was_looping:
                share = f"{detector.share:.0%} of the latest tokens repeat earlier ones"
                text = f"the text repeats itself at token {reply.generated:,}: {share}"
                if stops:
                    text += "; stopped (--on-loop warn continues)"
                if self.loaded.sampling.dry_multiplier == 0:
                    text += f"; --dry-multiplier {USUAL_MULTIPLIER} prevents that from the start"
                if stops:
                    # After the end of the text.
                    self.open_files.callback(self.observer.warn, text)
                else:
                    self.observer.warn(text)
            was_looping = detector.looping
            return "loop" if stops and detector.looping else None

        return see

    def _begin(
        self, prompt: Prompt, how: dict[str, Any], stack: ExitStack
    ) -> tuple[Reply, Callable[..., int] | None, OnHeld | None]:
        """The reply to the prompt, or its rest; what reads that; and what records tokens."""
        request, model, cache = self.request, self.model, self.loaded.cache
        window, cached, record = self.loaded.settings.max_kv_size, 0, None
        logprobs = (request.logprobs or 0) if request.events else None
        settings = replace(GenerationSettings.of(request), logprobs=logprobs)
        how |= {"sampling": self.loaded.sampling, "settings": settings}
        if self.saver is not None:
            # Pages from the disk were computed in other steps, which changes the last bits: a run
            # with checkpoints that starts again should differ as little as possible.
            begun, record = self.saver.begun, self.saver.ledger.add
            if begun.resume_point is not None:
                how |= {"prompt_tokens": len(prompt.ids)}
                return Reply.resume(model, begun.resume_point, cache, **how), None, record
            rest = partial(prefill, after=begun.prefilled)
            how |= {"cached_tokens": begun.prefilled}
            return Reply(model, prompt.ids, cache, **how), rest, record
        warn = self.observer.warn
        reader = block_reader(model, cache, prompt, window=window, notify=warn, stack=stack)
        if reader is None and (known := known_prefixes(request.setup, model, self.observer.note)):
            stack.callback(known.close)
            cached, record = known.begin(cache, prompt.ids, window)
        drafter = make_drafter(model, how["settings"])
        if drafter is not None:
            drafter.history.extend(prompt.ids[:cached])
        how |= {"cached_tokens": cached, "drafter": drafter}
        rest = reader or partial(prefill, after=cached)
        return Reply(model, prompt.ids, cache, **how), rest, record

    def _start(self, prompt_tokens: int | None) -> Token:
        loaded, facts = self.loaded, {"prompt_tokens": prompt_tokens}
        line = self._events.start(self.model.name, facts, loaded.settings, loaded.sampling)
        return self._output(Token(None), line)

    def _output(self, token: Token, text: str) -> Token:
        """The token with the text that the output gets, which is written already."""
        self._write(text)
        self._last_character = text[-1:] or self._last_character
        return token._replace(text=text)

    def _write(self, text: str) -> None:
        (self.write_text if self.file is None else self.file.write)(text)
