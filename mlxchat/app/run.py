"""One generation with everything it needs: the model's window, known prefixes, blocks, an output
file, checkpoints, limits.

The caller shows the tokens that it iterates over; only the output file is written here.
"""

import io
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Self

from mlxchat.app.answer import is_whole, value_of
from mlxchat.app.blocks import block_reader
from mlxchat.app.checkpoints import Checkpointed, Checkpointer, Reached, RunState, loop_of
from mlxchat.app.events import EventWriter
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.sections import SectionReader
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.ends import RESUMABLE, Asked, Deadline, End, first_reason
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import OnHeld, Pace, ShouldStop, first_step
from mlxchat.engine.reply import Reply, Stats
from mlxchat.engine.sampling import Token
from mlxchat.errors import MlxchatError, OutputError
from mlxchat.models.model import Model
from mlxchat.passages.quote import Read
from mlxchat.paths import __version__
from mlxchat.platform import keep_awake
from mlxchat.request import Request
from mlxchat.request.template_args import allows_thinking
from mlxchat.settings import OnLoop
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.output_file import OutputFile
from mlxchat.store.state_file import Written
from mlxchat.text.document import name_of
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.pieces import ThoughtsAsText
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Progress

# With it, no text of the measurements looped: scripts/bench/loops.py.
USUAL_MULTIPLIER = 0.4


class Run:
    """Generates once, token by token. Use it as a context, which closes the output properly.

    A run left before its end can be resumed from its latest checkpoint. `reading` is how many
    prompt tokens have been read, and of how many, while they are; `text_bytes` is the size of the
    text so far, and `loop` shows whether it repeats itself. `saved` is about the last checkpoint,
    once the run has ended.
    """

    def __init__(
        self,
        request: Request,
        loaded: Loaded,
        prompt: Prompt | None,
        begun: RunState,
        *,
        file: OutputFile | None,
        reader: SectionReader | None = None,
        passages: Read | None = None,
        constraint: Constraint | None = None,
        checkpoint: Checkpoint | None,
        observer: Observer,
        open_files: ExitStack,
    ) -> None:
        self.file = file
        self.reading: tuple[int, int] | None = None
        self.text_bytes = 0 if begun.at.position is None else begun.at.position.bytes
        self.loop = loop_of(begun.at)
        self.saved: Written | None = None
        self._request = request
        self._loaded = loaded
        # Not known before the reader has read.
        self._prompt = prompt
        self._reader = reader
        self._begun = begun
        self._passages = passages
        self._constraint = constraint
        self._checkpoint = checkpoint
        self._observer = observer
        self._open_files = open_files
        self._events = EventWriter(loaded.model.tokenizer, request.logprobs is not None)
        self._tokens: Generator[Token] | None = None
        self._reply: Reply | None = None
        self._saver: Checkpointer | None = None
        self._thoughts = ThoughtsAsText(hidden=request.hides_thoughts, inside=begun.at.in_thought)
        self._answer = io.StringIO()
        self._last_character = ""
        self._stopped: str | None = None
        self._has_events = False
        self._is_over = False
        self._error: MlxchatError | None = None

    @property
    def model(self) -> Model:
        return self._loaded.model

    @property
    def stats(self) -> Stats:
        """The figures so far; once the run has ended, `finish_reason` is the reason. `complete` is
        also whether the answer has the code block to extract, and False if the documents were not
        read to their end."""
        if self._reply is None:
            # Stopped before there was a prompt.
            complete = None if self._reader is None else False
            return Stats(self._stopped or "interrupted", complete=complete)
        stats, answer = self._reply.stats, self._request.answer
        if not answer.extracts:
            return stats
        is_complete = is_whole(answer, self._answer.getvalue(), stats.finish_reason)
        return replace(stats, complete=is_complete)

    @property
    def checkpointed(self) -> Checkpointed | None:
        """The latest checkpoint."""
        return None if self._saver is None else self._saver.saved

    @property
    def stopped_reading(self) -> str | None:
        """How far the documents were read, if that was stopped."""
        return self._reader.stopped_at() if self._reader and self._reply is None else None

    @property
    def value(self) -> Any:
        """The answer parsed as JSON, if it was constrained by a schema and is complete."""
        is_complete = self.stats.complete
        return value_of(self._constraint, self._answer.getvalue()) if is_complete else None

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
        before it is returned. Events that belong to no token have no id. `ending` follows them.

        `should_stop` is called before each token and each prefill step, `on_over` after the last
        token, before the last checkpoint. Raises DeviceError if the device fails, and RanksError if
        another rank is lost: the text so far is kept, and the previous checkpoint stays valid.
        """
        assert self._tokens is None, "a run generates once"
        self._tokens = self._generate(should_stop, on_prefill, on_over)
        return self._tokens

    def ending(self) -> str:
        """What the output has after the last token: the last event, the code to extract or the end
        of the line. After an interruption, only the event."""
        text = self._last_event() if self._has_events else ""
        if not self._is_over and self._error is None:
            return text
        if self._request.answer.extracts:
            is_last = self._request.answer.extract_last
            text += extract_code(self._answer.getvalue(), last=is_last)
        last = text[-1:] or self._last_character
        # The file of a run with a checkpoint contains only the text: another process may continue
        # the run, and must produce the same bytes as a single one.
        if self._request.events or not self._request.newline or self._checkpoint is not None:
            return text
        return f"{text}\n" if last not in ("", "\n") and self._has_room("\n") else text

    def _last_event(self) -> str:
        stats = self.stats
        return self._events.done(
            stats,
            self.model.name,
            self._request.setup.seed,
            error=stats.problem if self._error is None else str(self._error),
            value=self.value,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._open_files:
            if self._tokens is not None:
                self._tokens.close()
            # After an OutputError, the end could not be written either.
            if self.file is None or isinstance(error, OutputError):
                return
            if self._is_over or self._error is not None:
                self.file.write(self.ending())
                self.file.end()
            elif isinstance(error, KeyboardInterrupt):
                self.file.write(self.ending())

    def _generate(
        self, should_stop: ShouldStop, on_prefill: Progress, on_over: Callable[[], object]
    ) -> Generator[Token]:
        overnight = self._request.overnight
        deadline_s = overnight.deadline_s(time.time())
        ends: list[End] = [Asked(should_stop)]
        if deadline_s is not None:
            ends.insert(0, Deadline(deadline_s))
        with ExitStack() as stack:
            if overnight.keeps_awake:
                stack.enter_context(keep_awake())
            try:
                yield from self._read(ends, on_prefill)
                if self._prompt is not None:
                    yield from self._written(self._prompt, ends, on_prefill, stack)
            except MlxchatError as error:
                # The text so far is good. The cache is not: the previous checkpoint stays valid.
                self._error = error
                raise
            on_over()
            if self._saver is not None and self._reply is not None:
                reason = self._reply.finish_reason
                self.saved = self._saver.leave(self._reply.resume_point, str(reason))
            if self._reader is not None and self.stats.finish_reason != "interrupted":
                self._reader.end()
            self._is_over = True

    def _read(self, ends: list[End], on_prefill: Progress) -> Iterator[Token]:
        """Read what the prompt is made from, if it is not known; stopped, what there is becomes
        the output."""
        reader = self._reader
        if reader is None:
            return

        def should_stop() -> bool:
            self._stopped = first_reason(ends, None)
            return self._stopped is not None

        if self._request.events:
            yield self._event(self._events.start(_start_facts(self._loaded, None)))
        for answered in reader.read(should_stop, on_prefill):
            if self._request.events:
                yield self._event(self._events.section(answered.place, answered.text))
        self._prompt = reader.prompt
        if self._prompt is None and not self._request.events:
            yield self._output(Token(None), reader.so_far())

    def _written(
        self, asked: Prompt, ends: list[End], on_prefill: Progress, stack: ExitStack
    ) -> Iterator[Token]:
        request, loaded, tokenizer = self._request, self._loaded, self.model.tokenizer
        # With the beginning of the answer, if the request has one.
        prompt = tokenizer.with_beginning(
            asked, request.answer.prefill, newlines=self._constraint is None
        )
        reader = block_reader(
            request.setup,
            loaded.model,
            loaded.cache,
            prompt,
            window=loaded.settings.max_kv_size,
            notify=self._observer.warn,
            stack=stack,
        )
        record: OnHeld | None = None
        # Pages from the disk were computed in other steps, which changes the last bits: a run with
        # checkpoints that starts again should differ as little as possible.
        if self._checkpoint is None and reader is None:
            record = self._begin_after_known_prefix(prompt.ids, stack)
        reply, begun_text = self._begin_reply(prompt)
        saver = self._saver = self._checkpointer()
        # A code block would never be complete.
        endless = request.ignore_eos and not request.answer.extracts
        stops_loops = request.overnight.action_on_loop(endless=endless) is OnLoop.STOP
        if stops_loops:
            ends = [*ends, Asked(lambda: self.loop.looping, "loop")]

        def held(step: TokenIds) -> None:
            self._begun.ledger.add(step)
            if record is not None:
                record(step)

        def read(done: int, total: int) -> None:
            self.reading = (done, total) if done < total else None
            if saver is not None:
                saver.read(done, total)
            on_prefill(done, total)

        if request.events and self._reader is None:
            yield self._event(self._events.start(_start_facts(loaded, prompt.ids)))
        if request.events and self._passages is not None:
            yield self._event(self._events.passages(self._passages))
        pace = Pace(first_step(loaded.model.network))
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
                on_held=held,
            )
            for token in chain(first, stretch):
                is_end = token.id is None and reply.resume_point is not None
                if is_end and saver is not None and reply.finish_reason in RESUMABLE:
                    # Text that appears only at the end: another run continues without it.
                    break
                if token.id is not None:
                    self._watch_loop(token.id, reply.generated, stops=stops_loops)
                text = self._text_of(token)
                if not self._has_room(token.text if request.events else text):
                    reply.finish_reason = "bytes"
                    break
                self.text_bytes += _size(token.text if request.events else text)
                if not token.thought:
                    self._answer.write(token.text)
                yield self._output(token, "" if request.answer.extracts else text)
                if self._has_code(token):
                    reply.finish_reason = "stop"
                    break
            if saver is None or reply.finish_reason is not None:
                return
            saver.paused(reply.here())
            first = []

    def _begin_after_known_prefix(self, ids: TokenIds, stack: ExitStack) -> OnHeld | None:
        """Fill the empty cache with the known part of the prompt; return what records the rest."""
        request, begun = self._request, self._begun
        prefixes = Prefixes(request.setup, self._observer.note)
        prefixes.label = ", ".join(map(name_of, request.files)) or request.prompt or ""
        stack.callback(prefixes.close)
        window = self._loaded.settings.max_kv_size
        cached, record = prefixes.begin(self.model, begun.cache, ids, window)
        begun.ledger.add(ids[:cached])
        self._begun = replace(begun, at=Reached(cached))
        return record

    def _begin_reply(self, prompt: Prompt) -> tuple[Reply, str]:
        """The reply to the prompt, or the rest of it, and what the prompt has of it."""
        request, begun, tokenizer = self._request, self._begun, self.model.tokenizer
        settings = request.generation_settings()
        reader, begun_text = tokenizer.reader(), ""
        if not request.raw:
            reader, begun_text = tokenizer.reader_after(prompt)
        drafter = None if self._checkpoint is not None else make_drafter(self.model, settings)
        if drafter is not None:
            drafter.history.extend(prompt.ids[: begun.at.prefilled])
        how: dict[str, Any] = {
            "sampling": begun.sampling,
            "settings": settings,
            "reader": reader,
            "constrained": self._constrained(prompt),
            "drafter": drafter,
        }
        point = begun.at.resume_point
        if point is not None:
            self._reply = Reply.resume(self.model, point, begun.cache, **how)
        else:
            cached = begun.at.prefilled
            self._reply = Reply(self.model, prompt.ids, begun.cache, cached_tokens=cached, **how)
        return self._reply, begun_text

    def _checkpointer(self) -> Checkpointer | None:
        if self._checkpoint is None:
            return None
        assert self.file is not None
        return Checkpointer(
            self._checkpoint,
            self._loaded,
            self._begun,
            file=self.file,
            loop=self.loop,
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

    def _event(self, text: str) -> Token:
        self._has_events = True
        return self._output(Token(None), text)

    def _output(self, token: Token, text: str) -> Token:
        """The token with the text that the output gets, which is in the file already."""
        if self.file is not None:
            self.file.write(text)
        self._last_character = text[-1:] or self._last_character
        return token._replace(text=text)

    def _text_of(self, token: Token) -> str:
        if not self._request.events:
            return self._thoughts.add(token.text, token.thought)
        return "" if token.thought and self._request.hides_thoughts else self._events.token(token)

    def _has_room(self, text: str) -> bool:
        """Whether the text stays within the maximum."""
        most = self._request.overnight.max_bytes
        return most is None or self.text_bytes + _size(text) <= most

    def _has_code(self, token: Token) -> bool:
        """Whether the code to extract is complete with this token."""
        wanted = self._request.answer.extract and "\n" in token.text and not token.thought
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
        if self._begun.sampling.dry_multiplier == 0:
            text += f"; --dry-multiplier {USUAL_MULTIPLIER} prevents that from the start"
        self._observer.warn(text)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _start_facts(loaded: Loaded, prompt: TokenIds | None) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": loaded.model.name,
        "prompt_tokens": None if prompt is None else len(prompt),
        **asdict(loaded.settings),
        **asdict(loaded.sampling),
    }
