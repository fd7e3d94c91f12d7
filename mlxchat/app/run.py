"""One generation with everything it needs: the model's window, known prefixes, blocks, an output
file, checkpoints, limits.

The caller shows the tokens that it iterates over; only the output file is written here.
"""

import io
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

from mlxchat.app.answer import begin_answer, is_whole, value_of
from mlxchat.app.checkpoints import Checkpointer, Reached
from mlxchat.app.events import EventWriter
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded, block_reader, known_prefixes
from mlxchat.app.sections import SectionReader
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.blocks import BlockReader
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.ends import RESUMABLE, Asked, Deadline, End, first_reason
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import OnHeld, Pace, ShouldStop, first_step
from mlxchat.engine.reply import Reply, ResumePoint, Stats
from mlxchat.engine.sampling import Token
from mlxchat.errors import MlxchatError, OutputError
from mlxchat.models.model import Model
from mlxchat.passages.quote import Read
from mlxchat.platform import keep_awake
from mlxchat.request import Request
from mlxchat.settings import OnLoop
from mlxchat.store.output_file import OutputFile
from mlxchat.store.snapshot import Written
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.reply_reader import ThoughtsAsText
from mlxchat.text.tokens import Prompt
from mlxchat.units import Progress, count

# With it, no text of the measurements looped: scripts/bench/loops.py.
USUAL_MULTIPLIER = 0.4


@dataclass(eq=False)
class Run:
    """Generates once, token by token. Use it as a context, which closes the output properly.

    A run left before its end can be resumed from its latest checkpoint, which its `saver` wrote.
    The `prompt` may have `passages` of larger documents; it is None until a `reader` has read them.
    `loop` shows whether the text repeats itself, `saved` is about the last checkpoint, once the run
    has ended.
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
    open_files: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        begun = Reached() if self.saver is None else self.saver.begun
        self.loop = begun.detector()
        self.saved: Written | None = None
        hidden = self.request.hides_thoughts
        self._thoughts = ThoughtsAsText(hidden=hidden, inside=begun.in_thought)
        self._events = EventWriter(self.model.tokenizer, self.request.logprobs is not None)
        self._answer = io.StringIO()
        self._tokens: Generator[Token] | None = None
        self._reply: Reply | None = None
        self._last_character = ""
        self._stopped: str | None = None
        self._is_over = False
        self._error: MlxchatError | None = None

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def stats(self) -> Stats:
        """The figures so far; once the run has ended, `finish_reason` is the reason. `complete` is
        also whether the answer has the code block to extract, and False if the documents were not
        read to their end."""
        if self._reply is None:
            # Stopped before there was a prompt.
            complete = None if self.reader is None else False
            return Stats(self._stopped or "interrupted", complete=complete)
        stats = self._reply.stats
        if not self.request.answer.extract:
            return stats
        is_complete = is_whole(self._answer.getvalue(), stats.finish_reason)
        return replace(stats, complete=is_complete)

    @property
    def checkpointed(self) -> Reached | None:
        """What the latest checkpoint has reached."""
        return None if self.saver is None else self.saver.saved

    @property
    def value(self) -> Any:
        """The answer parsed as JSON, if it was constrained by a schema and is complete."""
        is_complete = self.stats.complete
        return value_of(self.constraint, self._answer.getvalue()) if is_complete else None

    def __iter__(self) -> Iterator[Token]:
        return self.tokens()

    def write(self, **how: Any) -> None:
        """Generate to the end, with the options of `tokens`."""
        for _ in self.tokens(**how):
            pass

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
        """
        assert self._tokens is None, "a run generates once"
        self._tokens = self._generate(should_stop, on_prefill, on_over)
        return self._tokens

    def ending(self) -> str:
        """What the output still gets if the run ends now: the last event, the answers from sections
        that were read, the code to extract, or the end of the line. Of an answer that is not over,
        only the event."""
        request, text = self.request, ""
        if request.events:
            return self._last_event() if self._last_character else ""
        if self._reply is None and self.reader is not None:
            text = self.reader.so_far()
        elif not self._is_over and self._error is None:
            return ""
        elif request.answer.extract:
            text = extract_code(self._answer.getvalue())
        # The file of a run with a checkpoint contains only the text: another process may continue
        # the run, and must produce the same bytes as a single one.
        has_line = (text[-1:] or self._last_character) not in ("", "\n")
        return f"{text}\n" if has_line and self.saver is None else text

    def _last_event(self) -> str:
        stats = self.stats
        return self._events.done(
            stats,
            self.model.name,
            self.request.setup.seed,
            error=stats.problem if self._error is None else str(self._error),
            value=self.value,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self.open_files:
            if self._tokens is not None:
                self._tokens.close()
            if self.file is not None and isinstance(error, KeyboardInterrupt):
                self.file.write(self.ending())

    def _generate(
        self, should_stop: ShouldStop, on_prefill: Progress, on_over: Callable[[], object]
    ) -> Generator[Token]:
        overnight = self.request.overnight
        deadline_s = overnight.deadline_s(time.time())
        ends: list[End] = [] if deadline_s is None else [Deadline(deadline_s)]
        ends.append(Asked(should_stop))
        try:
            with keep_awake() if overnight.keeps_awake else nullcontext(), ExitStack() as stack:
                if self.reader is not None:
                    yield from self._read(self.reader, ends, on_prefill)
                if self.prompt is not None:
                    yield from self._written(self.prompt, ends, on_prefill, stack)
                on_over()
                if self.saver is not None and self._reply is not None:
                    reached = self._reached(self._reply.resume_point)
                    self.saved = self.saver.leave(reached, str(self._reply.finish_reason))
            self._is_over = True
        except OutputError:
            raise
        except MlxchatError as error:
            # The text so far is good. The cache is not: the previous checkpoint stays valid.
            self._error = error
            yield self._end()
            raise
        yield self._end()

    def _end(self) -> Token:
        token = self._output(Token(None), self.ending())
        if self.file is not None:
            self.file.end()
        return token

    def _read(
        self, reader: SectionReader, ends: list[End], on_prefill: Progress
    ) -> Iterator[Token]:
        """Read what the prompt is made from."""

        def should_stop() -> bool:
            self._stopped = first_reason(ends, None)
            return self._stopped is not None

        if self.request.events:
            yield self._start(None)
        for answered in reader.read(should_stop, on_prefill):
            if self.request.events:
                yield self._output(Token(None), self._events.section(answered.place, answered.text))
        self.prompt = reader.prompt
        if self.prompt is None:
            read = count(len(reader.answers), "section")
            self.observer.warn(f"stopped after reading {read}")

    def _written(
        self, asked: Prompt, ends: list[End], on_prefill: Progress, stack: ExitStack
    ) -> Iterator[Token]:
        request, loaded = self.request, self.loaded
        prompt, begun_text, how = begin_answer(
            request, asked, self.constraint, self.model.tokenizer
        )
        reader, cached, record = self._begin_cache(prompt, stack)
        reply = self._reply = self._begin_reply(prompt, cached, how)
        # A code block would never be complete.
        endless = request.ignore_eos and not request.answer.extract
        stops_loops = request.overnight.action_on_loop(endless=endless) is OnLoop.STOP
        ends = [*ends, Asked(lambda: stops_loops and self.loop.looping, "loop")]
        saver = self.saver

        def read(done: int, total: int) -> None:
            if saver is not None:
                saver.read(done, total)
            on_prefill(done, total)

        if request.events and self.reader is None:
            yield self._start(len(prompt.ids))
        if request.events and self.passages is not None:
            yield self._output(Token(None), self._events.passages(self.passages))
        pace = Pace(first_step(self.model.network))
        first = [Token(None, begun_text)] if begun_text else []
        while True:
            stretch = generate(
                reply,
                tokens=-1 if saver is None else saver.tokens_to_next(reply.generated),
                ends=ends,
                step_size=loaded.settings.prefill_step_size,
                pace=pace,
                reader=reader,
                on_prefill=read,
                on_held=record,
            )
            for token in chain(first, stretch):
                is_end = token.id is None and reply.resume_point is not None
                if is_end and saver is not None and reply.finish_reason in RESUMABLE:
                    # Text that appears only at the end: another run continues without it.
                    break
                if token.id is not None:
                    self._watch_loop(token.id, reply.generated, stops=stops_loops)
                text = self._text_of(token)
                if not token.thought:
                    self._answer.write(token.text)
                yield self._output(token, "" if request.answer.extract else text)
                if self._has_code(token):
                    reply.finish_reason = "stop"
                    break
            if saver is None or reply.finish_reason is not None:
                return
            saver.save(self._reached(reply.here()))
            first = []

    def _begin_cache(
        self, prompt: Prompt, stack: ExitStack
    ) -> tuple[BlockReader | None, int, OnHeld | None]:
        """What reads the prompt's blocks, if it has any; the number of tokens that the cache has
        now; and what records the rest."""
        request, cache, window = self.request, self.loaded.cache, self.loaded.settings.max_kv_size
        warn = self.observer.warn
        reader = block_reader(
            request.setup, self.model, cache, prompt, window=window, notify=warn, stack=stack
        )
        # Pages from the disk were computed in other steps, which changes the last bits: a run with
        # checkpoints that starts again should differ as little as possible.
        if self.saver is not None:
            return None, self.saver.begun.prefilled, self.saver.ledger.add
        if reader is not None:
            return reader, 0, None
        prefixes = known_prefixes(request.setup, self.model, self.observer.note)
        if prefixes is None:
            return None, 0, None
        stack.callback(prefixes.close)
        return None, *prefixes.begin(cache, prompt.ids, window)

    def _begin_reply(self, prompt: Prompt, cached: int, how: dict[str, Any]) -> Reply:
        """The reply to the prompt, or the rest of it."""
        model, saver, settings = self.model, self.saver, self.request.generation_settings()
        how |= {"sampling": self.loaded.sampling, "settings": settings}
        if saver is not None and (point := saver.begun.resume_point):
            return Reply.resume(model, point, self.loaded.cache, **how)
        drafter = None if saver is not None else make_drafter(model, settings)
        if drafter is not None:
            drafter.history.extend(prompt.ids[:cached])
        how |= {"cached_tokens": cached, "drafter": drafter}
        return Reply(model, prompt.ids, self.loaded.cache, **how)

    def _reached(self, point: ResumePoint | None) -> Reached:
        if point is None:
            return Reached()
        inside = self._thoughts.inside
        return Reached(resume_point=point, loop=self.loop.state(), in_thought=inside)

    def _start(self, prompt_tokens: int | None) -> Token:
        loaded, facts = self.loaded, {"prompt_tokens": prompt_tokens}
        line = self._events.start(self.model.name, facts, loaded.settings, loaded.sampling)
        return self._output(Token(None), line)

    def _output(self, token: Token, text: str) -> Token:
        """The token with the text that the output gets, which is in the file already."""
        if self.file is not None:
            self.file.write(text)
        self._last_character = text[-1:] or self._last_character
        return token._replace(text=text)

    def _text_of(self, token: Token) -> str:
        if not self.request.events:
            return self._thoughts.add(token.text, token.thought)
        return "" if token.thought and self.request.hides_thoughts else self._events.token(token)

    def _has_code(self, token: Token) -> bool:
        """Whether the code to extract is complete with this token."""
        wanted = self.request.answer.extract and "\n" in token.text and not token.thought
        return wanted and is_settled(self._answer.getvalue())

    def _watch_loop(self, id_: int, tokens: int, *, stops: bool) -> None:
        was_looping = self.loop.looping
        self.loop.add(id_)
        if was_looping or not self.loop.looping:
            return
        share = f"{self.loop.share:.0%} of the latest tokens repeat earlier ones"
        text = f"the text repeats itself at token {tokens:,}: {share}"
        if stops:
            text += "; stopped (--on-loop warn continues)"
        if self.loaded.sampling.dry_multiplier == 0:
            text += f"; --dry-multiplier {USUAL_MULTIPLIER} prevents that from the start"
        self.observer.warn(text)
