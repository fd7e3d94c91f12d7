"""A chat with a pipe: one turn a line in, replies or events out. It ends where the input does."""

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mlxchat import __version__
from mlxchat.app.events import EventWriter
from mlxchat.app.setup import load_model
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Forgot
from mlxchat.cli.chat_setup import ChatRequest, new_conversation
from mlxchat.cli.keeper import Keeper
from mlxchat.cli.setup import find_model
from mlxchat.cli.signals import StopRequest
from mlxchat.distributed.ranks import Ranks
from mlxchat.engine.generate import Stats, Token
from mlxchat.errors import DeviceError, ExitStatus, UsageError
from mlxchat.store.session import Session
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import Bar, progress, waiting
from mlxchat.terminal.text_output import Stdout
from mlxchat.text.documents import Spoken, piped_stdin, read_turns
from mlxchat.text.thinking import ThoughtsAsText
from mlxchat.units import and_rate, count


def run_piped(
    request: ChatRequest, messages: Messages, session: Session | None, ranks: Ranks | None
) -> int:
    """Answer each turn of standard input; return the exit status."""
    stdin = piped_stdin(to_its_end=False)
    if stdin is None:
        raise UsageError("there are no turns to answer: pipe them in, one a line")
    stdout = Stdout()
    found = find_model(request.setup, messages)
    keeper = Keeper(session, messages.warn, exact=request.exact)
    prefixes = request.prefixes(messages.note)
    with waiting(f"loading {found.name} …", request.quiet):
        model = load_model(request.setup, found, messages.warn, ranks=ranks)
        conversation = new_conversation(request, model, messages.warn, prefixes)
        keeper.begin(conversation, found, request.setup.dtype)
    chat = _PipedChat(request, conversation, keeper, messages, stdout)
    chat.start()
    try:
        for spoken in read_turns(stdin):
            # Only a reply is ended well: while it waits for the next line, a signal ends it at
            # once.
            with StopRequest() as stop, progress("reading", "tokens", request.quiet) as bar:
                chat.take(spoken, stop, bar)
            if stop.status is not None:
                return stop.status
    except DeviceError as error:
        raise DeviceError(f"{error}; {_how_to_go_on(session)}") from error
    finally:
        keeper.close(conversation)
        prefixes.close()
    return ExitStatus.OK


def _how_to_go_on(session: Session | None) -> str:
    if session is None:
        return "the chat was not saved (--no-save)"
    return f"mlxchat --session {shlex.quote(session.name)} continues the chat"


class _PipedChat:
    def __init__(
        self,
        request: ChatRequest,
        conversation: Conversation,
        keeper: Keeper,
        messages: Messages,
        stdout: Stdout,
    ) -> None:
        self._request = request
        self._conversation = conversation
        self._keeper = keeper
        self._messages = messages
        self._stdout = stdout
        self._turn = 0

    def start(self) -> None:
        if not self._request.json_events:
            return
        settings = asdict(self._conversation.settings)
        settings["keep"] = max(settings["keep"], self._conversation.usage().pinned)
        facts: dict[str, Any] = {
            "version": __version__,
            "model": self._conversation.model.name,
            "roll": str(self._conversation.roll),
            "session": None if self._keeper.session is None else self._keeper.session.name,
            **settings,
            **asdict(self._conversation.sampling),
        }
        self._stdout.write(self._events().start(facts))

    def take(self, spoken: Spoken, stop: StopRequest, bar: Bar) -> None:
        stop.say = bar.say_anyway
        stop.before_leaving(bar.stop)
        if spoken.notice is not None:
            self._messages.warn(spoken.notice)
        if spoken.role == "system":
            self._conversation.set_system(spoken.text)
            return
        self._turn += 1
        started_s = time.perf_counter()
        reply = self._conversation.say(
            spoken.text,
            on_encode=bar.counting("tokenizing", "characters"),
            on_prefill=bar.counting("reading", "tokens"),
            should_stop=stop.requested,
        )
        self._keeper.record(self._conversation)
        try:
            for piece in self._pieces(reply, stop):
                self._stdout.write(piece)
        except DeviceError:
            self._stdout.end()
            raise
        finally:
            stop.obeyed()
            bar.stop()
            self._keeper.turn_over(self._conversation)
        stats = self._conversation.stats
        assert stats is not None
        self._messages.stats(
            turn_line(self._turn, stats, time.perf_counter() - started_s), self._request.stats
        )

    def _pieces(self, reply: Iterator[Token | Forgot], stop: StopRequest) -> Iterator[str]:
        as_events = self._request.json_events
        events = self._events()
        if as_events:
            stop.before_leaving(lambda: self._stdout.write(self._done(events)))
        hides = self._request.think != "on"
        thoughts = ThoughtsAsText(hidden=hides)
        last = ""
        for said in reply:
            if isinstance(said, Forgot):
                if as_events:
                    yield events.forgot(said)
                else:
                    self._messages.warn(forgotten_line(said))
                continue
            self._keeper.show(said)
            if as_events:
                if not (said.thought and hides):
                    yield events.token(said)
            else:
                text = thoughts.add(said.text, said.thought)
                last = text or last
                yield text
        if as_events:
            yield self._done(events)
            return
        if not last.endswith("\n"):
            yield "\n"

    def _done(self, events: EventWriter) -> str:
        conversation = self._conversation
        assert conversation.stats is not None
        return events.done(conversation.stats, conversation.model.name, conversation.reply_seed)

    def _events(self) -> EventWriter:
        return EventWriter(self._conversation.model.tokenizer, False, self._turn or None)


def turn_line(turn: int, stats: Stats, seconds: float) -> str:
    """The figures of one turn, for people."""
    parts = [f"turn {turn}", f"{seconds:.2f} s"]
    if stats.ttft_s:
        parts[-1] += f", first token {stats.ttft_s:.2f} s"
    parts.append(f"prefilled {stats.prefilled_tokens:,} of {stats.prompt_tokens:,} tokens")
    if stats.ttft_s:
        parts.append(f"generated {stats.generated_tokens:,}{and_rate(stats.decode_tokens_per_s)}")
    return " · ".join([*parts, f"stopped: {stats.finish_reason}"])


def forgotten_line(forgot: Forgot) -> str:
    """What has left the window, in words."""
    if forgot.turns == 0:
        return f"this turn is larger than the window: {forgot.tokens:,} of its tokens were evicted"
    turns = count(forgot.turns, "turn")
    return f"{turns} forgotten ({forgot.tokens:,} tokens), memory begins after that"
