"""One generation with everything it needs: the model's window, known prefixes, blocks, an output
file, checkpoints, limits.

It draws nothing: callers iterate over its tokens, or have them written to a sink.
"""

import io
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Self

from mlxchat.about import __version__
from mlxchat.app.answer import is_whole, value_of
from mlxchat.app.blocks import block_reader
from mlxchat.app.checkpoints import Checkpointer
from mlxchat.app.events import EventWriter
from mlxchat.app.limits import Limits, Reached, RunState
from mlxchat.app.observer import Observer, Sink
from mlxchat.app.opening import Loaded
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.sections import SectionReader
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.generate import Generation, Stats
from mlxchat.engine.pace import Pace, first_step
from mlxchat.engine.prefill import OnHeld, ShouldStop
from mlxchat.engine.reply import Token
from mlxchat.errors import MlxchatError, OutputError
from mlxchat.models.model import Model
from mlxchat.passages.quote import Read
from mlxchat.platform import keep_awake
from mlxchat.progress import Progress
from mlxchat.request import Request
from mlxchat.request.template_args import allows_thinking
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.output_file import OutputFile
from mlxchat.store.state_file import Written
from mlxchat.text.document import name_of
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.thinking import ThoughtsAsText
from mlxchat.text.tokens import Prompt


class Run:
    """Generates once, token by token. Use it as a context, which closes the output properly.

    A run left before its end can be resumed from its latest checkpoint.
    """

    def __init__(
        self,
        request: Request,
        loaded: Loaded,
        prompt: Prompt | None,
        begun: RunState,
        *,
        sink: Sink,
        reader: SectionReader | None = None,
        passages: Read | None = None,
        constraint: Constraint | None = None,
        checkpoint: Checkpoint | None,
        observer: Observer,
        open_files: ExitStack,
    ) -> None:
        self.saved: Written | None = None
        self._request = request
        self._loaded = loaded
        # Not known before the reader has read.
        self._prompt = prompt
        self._reader = reader
        self._begun = begun
        self._sink = sink
        self._passages = passages
        self._constraint = constraint
        self._checkpoint = checkpoint
        self._observer = observer
        self._open_files = open_files
        self._events = EventWriter(loaded.model.tokenizer, request.logprobs is not None)
        self._tokens: Generator[Token] | None = None
        self._generation: Generation | None = None
        self._limits: Limits | None = None
        self._saver: Checkpointer | None = None
        self._thoughts = ThoughtsAsText(hidden=request.hides_thoughts, inside=begun.at.in_thought)
        self._answer = io.StringIO()
        self._last_character = ""
        self._has_events = False
        self._is_over = False
        self._error: MlxchatError | None = None

    @property
    def model(self) -> Model:
        return self._loaded.model

    @property
    def limits(self) -> Limits:
        """The progress, between two tokens or inside `should_stop`."""
        assert self._limits is not None, "not begun"
        return self._limits

    @property
    def stats(self) -> Stats:
        """The figures so far; once the run has ended, `finish_reason` is the reason."""
        # Stopped before there was a prompt.
        stopped = Stats("interrupted")
        stats = stopped if self._generation is None else self._generation.stats
        return replace(stats, finish_reason=self.limits.ended or stats.finish_reason)

    @property
    def stopped_reading(self) -> str | None:
        """How far the documents were read, if that was stopped."""
        is_stopped = self._reader is not None and self._generation is None
        return self._reader.stopped_at() if self._reader and is_stopped else None

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer is one that the constraint describes, or has the code block to
        extract; None if it is any text. False if the documents were not read to their end."""
        if self._generation is None:
            return None if self._reader is None else False
        if not self._request.answer.extracts:
            return self._generation.is_complete
        return is_whole(self._request.answer, self._answer.getvalue(), self.stats.finish_reason)

    @property
    def problem(self) -> str | None:
        """Why an answer that was not cut off is none that the constraint describes."""
        return None if self._generation is None else self._generation.problem

    @property
    def value(self) -> Any:
        """The answer parsed as JSON, if it was constrained by a schema and is complete."""
        return value_of(self._constraint, self._answer.getvalue()) if self.is_complete else None

    def __iter__(self) -> Iterator[Token]:
        return self.tokens()

    def write(self, **how: Any) -> None:
        """Generate to the end, with the options of `tokens`."""
        for _ in self.tokens(**how):
            pass

    def tokens(
        self,
        *,
        should_stop: ShouldStop | None = None,
        on_prefill: Progress = lambda done, total: None,
        on_over: Callable[[], object] = lambda: None,
    ) -> Iterator[Token]:
        """Generate, once. The text of each token, as it is written, is in the output before it is
        returned. Events that belong to no token have no id.

        `should_stop` is called before each token and each prefill step, `on_over` after the last
        token, before the last checkpoint. Raises DeviceError if the device fails, and RanksError if
        another rank is lost: the text so far is kept, and the previous checkpoint stays valid.
        """
        assert self._tokens is None, "a run generates once"
        self._tokens = self._generate(should_stop, on_prefill, on_over)
        return self._tokens

    def write_end(self) -> None:
        """Write the last event, if events are written and there was a first one."""
        if self._has_events:
            seed = self._request.setup.seed
            error = self.problem if self._error is None else str(self._error)
            self._sink.write(
                self._events.done(
                    self.stats,
                    self.model.name,
                    seed,
                    error=error,
                    complete=self.is_complete,
                    value=self.value,
                )
            )

    def finish(self) -> None:
        """End the output, after the last token."""
        self.write_end()
        if self._request.answer.extracts:
            is_last = self._request.answer.extract_last
            self._write(extract_code(self._answer.getvalue(), last=is_last))
        if self._lacks_newline():
            self._sink.write("\n")
        self._sink.end()

    def _lacks_newline(self) -> bool:
        """Whether the last line of the text needs an end, for programs that read lines.

        The file of a run with a checkpoint contains only the text: another process may continue the
        run, and must produce the same bytes as a single one.
        """
        if self._request.events or not self._request.newline or self._checkpoint is not None:
            return False
        has_room = self._limits is not None and self._limits.has_room(1)
        return self._last_character not in ("", "\n") and has_room

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._open_files:
            if self._tokens is not None:
                self._tokens.close()
            if self._is_over:
                self.finish()

    def _generate(
        self, should_stop: ShouldStop | None, on_prefill: Progress, on_over: Callable[[], object]
    ) -> Generator[Token]:
        with ExitStack() as stack:
            if self._request.overnight.keeps_awake:
                stack.enter_context(keep_awake())
            overnight = self._request.overnight
            # A code block would never be complete.
            endless = self._request.ignore_eos and not self._request.answer.extracts
            on_loop = overnight.action_on_loop(endless=endless)
            self._limits = Limits(self._begun, overnight, on_loop, should_stop, self._observer.warn)
            try:
                yield from self._read(on_prefill)
                if self._prompt is not None:
                    yield from self._written(self._prompt, on_prefill, stack)
            except OutputError:
                # The end could not be written either.
                raise
            except MlxchatError as error:
                # The text so far is good. The cache is not: the previous checkpoint stays valid.
                self._error = error
                self.finish()
                raise
            except KeyboardInterrupt:
                self.write_end()
                raise
            on_over()
            if self._saver is not None and self._generation is not None:
                self.saved = self._saver.leave(self._generation.resume_point, self.stats)
            if self._reader is not None and self.stats.finish_reason != "interrupted":
                self._reader.end()
            self._is_over = True

    def _read(self, on_prefill: Progress) -> Iterator[Token]:
        """Read what the prompt is made from, if it is not known; stopped, what there is becomes
        the output."""
        reader = self._reader
        if reader is None:
            return
        if self._request.events:
            yield self._event(self._events.start(_start_facts(self._loaded, None)))
        for answered in reader.read(self.limits.should_stop, on_prefill):
            if self._request.events:
                yield self._event(self._events.section(answered.place, answered.text))
        self._prompt = reader.prompt
        if self._prompt is None and not self._request.events:
            text = reader.so_far()
            self._write(text)
            yield Token(text, None)

    def _event(self, text: str) -> Token:
        self._sink.write(text)
        self._has_events = True
        return Token(text, None)

    def _written(self, asked: Prompt, on_prefill: Progress, stack: ExitStack) -> Iterator[Token]:
        tokenizer, limits = self.model.tokenizer, self.limits
        # With the beginning of the answer, if the request has one.
        prompt = tokenizer.with_beginning(
            asked, self._request.answer.prefill, newlines=self._constraint is None
        )
        reply, begun = tokenizer.reader(), ""
        if not self._request.raw:
            reply, begun = tokenizer.reader_after(prompt)
        generation = self._generation = self._begun_with(prompt, reply, on_prefill, stack)
        if self._request.events and self._reader is None:
            yield self._event(self._events.start(_start_facts(self._loaded, prompt.ids)))
        if self._request.events and self._passages is not None:
            yield self._event(self._events.passages(self._passages))
        for token in chain([Token(begun, None)] if begun else [], generation):
            # Text that appears only at the end is withheld if another run continues.
            is_end = token.id is None and generation.resume_point is not None
            if is_end and self._saver is not None and limits.stopped:
                break
            text = self._text_of(token)
            if not limits.take(token, token.text if self._request.events else text):
                break
            if not token.thought:
                self._answer.write(token.text)
            if not self._request.answer.extracts:
                self._write(text)
            yield replace(token, text=text)
            if self._has_code(token):
                limits.ended = "stop"
                break

    def _has_code(self, token: Token) -> bool:
        """Whether the code to extract is complete with this token."""
        wanted = self._request.answer.extract and "\n" in token.text and not token.thought
        return wanted and is_settled(self._answer.getvalue())

    def _write(self, text: str) -> None:
        self._sink.write(text)
        self._last_character = text[-1:] or self._last_character

    def _text_of(self, token: Token) -> str:
        if not self._request.events:
            return self._thoughts.add(token.text, token.thought)
        return "" if token.thought and self._request.hides_thoughts else self._events.token(token)

    def _begun_with(
        self, asked: Prompt, reply: Reader, on_prefill: Progress, stack: ExitStack
    ) -> Generation:
        request, loaded, begun, limits = self._request, self._loaded, self._begun, self.limits
        reader = block_reader(
            request.setup,
            loaded.model,
            loaded.cache,
            asked,
            window=loaded.settings.max_kv_size,
            notify=self._observer.warn,
            stack=stack,
        )
        record: OnHeld | None = None
        # Pages from the disk were computed in other steps, which changes the last bits: a run with
        # checkpoints that starts again should differ as little as possible.
        if self._checkpoint is None and reader is None:
            prefixes = Prefixes(request.setup, self._observer.note)
            prefixes.label = ", ".join(map(name_of, request.files)) or request.prompt or ""
            stack.callback(prefixes.close)
            begun, record = _with_known_prefix(prefixes, loaded, asked.ids, begun)
        saver = self._saver = self._checkpointer(begun, limits)

        def held(step: TokenIds) -> None:
            begun.ledger.add(step)
            if record is not None:
                record(step)

        def read(done: int, total: int) -> None:
            limits.reads(done, total)
            if saver is not None:
                saver.read(done, total)
            on_prefill(done, total)

        settings = request.generation_settings()
        drafter = None if saver is not None else make_drafter(loaded.model, settings)
        if drafter is not None:
            drafter.history.extend(asked.ids[: begun.at.prefilled])
        how: dict[str, Any] = {
            "sampling": begun.sampling,
            "settings": settings,
            "prefill_step_size": loaded.settings.prefill_step_size,
            "pace": Pace(first_step(loaded.model.network)),
            "reader": reader,
            "reply": reply,
            "drafter": drafter,
            "constrained": self._constrained(asked),
            "on_prefill": read,
            "on_held": held,
            "should_stop": limits.should_stop,
            "pause_every": request.overnight.pause_every(),
            "on_pause": None if saver is None else saver.paused,
        }
        point = begun.at.resume_point
        if point is not None:
            return Generation.resume(loaded.model, point, begun.cache, **how)
        cached = begun.at.prefilled
        return Generation(loaded.model, asked.ids, begun.cache, cached_tokens=cached, **how)

    def _checkpointer(self, begun: RunState, limits: Limits) -> Checkpointer | None:
        if self._checkpoint is None:
            return None
        assert isinstance(self._sink, OutputFile)
        return Checkpointer(
            self._checkpoint,
            self._loaded.model,
            self._loaded.fingerprint(),
            begun,
            file=self._sink,
            limits=limits,
            written=self._thoughts,
            warn=self._observer.warn,
        )

    def _constrained(self, asked: Prompt) -> Constrained | None:
        if self._constraint is None:
            return None
        return Constrained.begin(
            self._constraint,
            self.model.tokenizer,
            None if self._request.raw else asked.asked,
            may_think=allows_thinking(self._request.variables()),
            beginning=asked.beginning,
        )


def _with_known_prefix(
    prefixes: Prefixes, loaded: Loaded, prompt: TokenIds, begun: RunState
) -> tuple[RunState, OnHeld | None]:
    """Begin after the known part of the prompt; the cache is still empty."""
    window = loaded.settings.max_kv_size
    cached, record = prefixes.begin(loaded.model, begun.cache, prompt, window)
    begun.ledger.add(prompt[:cached])
    return replace(begun, at=Reached(cached)), record


def _start_facts(loaded: Loaded, prompt: TokenIds | None) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": loaded.model.name,
        "prompt_tokens": None if prompt is None else len(prompt),
        **asdict(loaded.settings),
        **asdict(loaded.sampling),
    }
