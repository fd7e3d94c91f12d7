"""A chat on a terminal, without its prompt: what commands act on, and how replies are shown."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from mlxchat.app.chat import LOOP, Chat
from mlxchat.chat.note import most_remembered, with_remembered
from mlxchat.chat.state import Change, Forgot, Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import Stats
from mlxchat.errors import DeviceError, MlxchatError, OutputError, UsageError
from mlxchat.recall.choice import is_standing
from mlxchat.request.commands import ChatShown
from mlxchat.terminal import Terminated
from mlxchat.terminal.editor import edit
from mlxchat.terminal.figures import compacted_line, first_words, incomplete, turn_line, window_line
from mlxchat.terminal.output import TerminalLine
from mlxchat.terminal.reply import PlainView, reply_view
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.settable import as_in_chat
from mlxchat.terminal.talk import Attached, Begin, Found, Talk
from mlxchat.terminal.worker import Worker, ctrl_c_ignored
from mlxchat.text.documents import SEPARATOR
from mlxchat.units import beginning, count

# Characters shown of a line found by /recall, and of the last message of a resumed session.
MAX_QUOTED_CHARS = 200
RETRY, GO_ON = ": /retry answers again", ", /continue goes on"

T = TypeVar("T")


class ChatScreen(Talk):
    """A chat with a person, which slash commands act on."""

    def __init__(
        self, chat: Chat, worker: Worker, shown: ChatShown, *, think: str = "on", files: Found = ()
    ) -> None:
        """`think` is on, off or hide."""
        super().__init__(chat, worker, shown, files)
        self.screen = Screen()
        self.think = think
        # The constraint on the next answer.
        self.constraint: Constraint | None = None
        self.forget_sent()

    def forget_sent(self) -> None:
        """Another conversation begins."""
        self.figures = self.edited_note = ""
        # What was sent with the messages of turns, and what came back with the last one taken back.
        self.sent: dict[tuple[int, str], tuple[Attached, Constraint | None]] = {}
        self._again: Attached = {}
        self._returned: Constraint | None = None

    def wait_for_model(self) -> None:
        super().wait_for_model()
        self.say_notices()

    def work(self, job: Callable[[], T]) -> T:
        """Raises Terminated after the job if a signal ends the chat."""
        try:
            return super().work(job)
        finally:
            self.worker.drop_ctrl_c()
            if self.stop.status is not None and self.stop.ends_program:
                raise Terminated(self.stop.status)

    def say_notices(self) -> None:
        for notice in self.chat.notices:
            goes_on = notice == LOOP and self._last_constraint() is None
            self.screen.say(as_in_chat(notice) + RETRY * (notice == LOOP) + GO_ON * goes_on)
        self.chat.notices.clear()

    def edit(self, text: str) -> str:
        """Let the user change the text in an editor. Raises InputError."""
        with self.worker.keys.lent(), ctrl_c_ignored():
            return self.worker.read(lambda: edit(text))

    # The next message

    def quote(self, line: str, turn: int) -> None:
        """Put a line of an earlier turn before the next message."""
        text = f"> {line}"
        self.attached[text] = f"a quote of turn {turn}", text
        quoted = first_words(line, MAX_QUOTED_CHARS)
        self.screen.say(f"your next message will quote turn {turn}: {quoted}")

    def prepare_again(self, turn: Turn) -> None:
        """Let what was sent with a message taken back wait for the next, not that of one before."""
        documents = turn.user[: turn.documents].removesuffix(SEPARATOR)
        name = f'attachments of "{first_words(turn.question)}"'
        unknown = {"": (name, documents)} if documents else {}
        others = {key: each for key, each in self.attached.items() if key not in self._again}
        own = None if self.constraint is self._returned else self.constraint
        sent = len(self.conversation.turns) + 1, turn.user
        self._again, self._returned = self.sent.get(sent, (unknown, None))
        self.attached, self.constraint = self._again | others, self._returned or own

    def kept(self) -> str:
        """What can be done with a message that has no reply."""
        files = [count(len(self.attached), "attachment")] if self.attached else []
        also = " and ".join(files + ["the schema"] * (self.constraint is not None))
        return f"edit the message below, or send it again{also and f' with {also}'}"

    def say(self, text: str) -> bool:
        """Send a message, after the attached files and quotes, and show the reply.

        False if it was taken back, because it was stopped before its reply began or is rejected:
        then what is attached, and a constraint, wait for the next message.
        """
        kept, documents = self.kept(), self.documents
        sent = Turn(documents + text, finish_reason="interrupted", documents=len(documents))
        try:
            self.wait_for_model()
        except KeyboardInterrupt:
            self.screen.say(f"stopped: {kept}")
            return False
        except (Terminated, OSError):
            # What shows the wait fails on a terminal that is closed.
            self.chat.keep(sent)
            raise
        return self.work(lambda: self._say(sent, kept))

    def _say(self, sent: Turn, kept: str) -> bool:
        conversation = self.conversation
        before = len(conversation.turns)
        try:
            say = partial(self.chat.say, sent.user, documents=sent.documents)
            self._show(partial(say, constraint=self.constraint), kept, self.constraint)
        except (DeviceError, OutputError):
            raise
        except MlxchatError as error:
            if len(conversation.turns) > before:
                raise
            self.screen.complain(as_in_chat(str(error)))
        finally:
            if self.stop.ends_program and len(conversation.turns) == before:
                # There is no next prompt: the session has the message.
                conversation.add(sent)
            if is_said := len(conversation.turns) > before:
                self.sent[before + 1, sent.user] = self.attached, self.constraint
                self.attached, self._again, self.constraint = {}, {}, None
                self.chat.mark_question(is_one=False)
        return is_said

    # The reply

    def retry(self) -> None:
        """Answer the last message again, and show the reply."""
        constraint = self._last_constraint()
        retry = partial(self.chat.retry, constraint=constraint)
        self._show(retry, "what there was stays", constraint)

    def continue_reply(self) -> None:
        """Continue the last reply, and show it. Raises UsageError if it is in JSON."""
        if self._last_constraint() is not None:
            raise UsageError("an answer in JSON is not continued: /retry writes another one")
        after = self.conversation.last_turn().reply
        self._show(self.chat.continue_reply, "the reply stays as it is", after=after)

    def _last_constraint(self) -> Constraint | None:
        number = len(self.conversation.turns)
        last = self.conversation.state.last
        return None if last is None else self.sent.get((number, last.user), ({}, None))[1]

    def compact(self, words: str) -> None:
        """Replace all turns in view but the last with a note, and show it."""
        with self.watching() as watch:
            compacted = self.chat.compact(words, watch)
            watch.on_end()
        if compacted is None:
            self.screen.say("stopped: nothing has changed")
        else:
            self._announce(compacted_line(compacted), compacted.numbers)
            self.screen.say(compacted.note)
            self.screen.say("/compact edit changes the note, /undo takes it back")

    def remember(self, argument: str) -> None:
        """Remember a text or, by its number, the message of a turn; remove a line by "off" and its
        number. List the lines. Raises UsageError."""
        if off := re.fullmatch(r"off(?:\s+(\S+|[-\d\s]+))?", argument):
            if not re.fullmatch(r"\d{1,9}", off[1] or ""):
                raise UsageError("usage: /remember off N, with the number of one line")
            self.chat.unremember(int(off[1]))
        elif argument:
            self.chat.remember(int(argument) if re.fullmatch(r"-?\d{1,9}", argument) else argument)
        now, usage = self.conversation, self.conversation.usage()
        lines = now.state.remembered
        for number, line in enumerate(lines, 1):
            self.screen.say(f"{number}: {' '.join(line.split())}")
        window = usage.window
        most = f" of {most_remembered(now.rendering, now.state, window):,}" if window else ""
        how = "/remember off N removes a line" if lines else "/remember TEXT adds one"
        kept = f"{count(len(lines), 'line')} ({usage.remembered:,}{most} tokens)"
        self.screen.say(f"remembered {kept}: {how}")

    def show_last_exchange(self) -> None:
        """Show the last turn of a resumed session."""
        session = self.chat.session
        if session is None or session.snapshot_path is None:
            return
        if not (turns := session.contents.turns):
            self.screen.say(f"{session.name}: no turns")
            return
        forgotten = sum(turn.forgotten for turn in turns)
        also = f", {forgotten:,} forgotten" if forgotten else ""
        has_last = session.contents.state.last is not None
        also = f"{also}; the last one" if has_last else ", all cleared"
        self.screen.rule(f"{session.name}: {count(len(turns), 'turn')}{also}")
        if not has_last:
            return
        said = beginning(turns[-1].question, MAX_QUOTED_CHARS).replace("\n", "\n  ")
        self.screen.say(f"> {'… ' * (turns[-1].documents > 0)}{said}", indent=2)
        with self._new_view() as view:
            for thought in turns[-1].thoughts:
                view.add(thought, True, True)
            view.add(turns[-1].reply)
        is_begun = turns[-1].reply or turns[-1].thoughts
        if is_begun and turns[-1].finish_reason in ("interrupted", "length"):
            self.screen.say("that reply was stopped: /continue continues it")
        elif not turns[-1].reply:
            self.screen.say("no reply: /retry asks again")

    def _show(
        self, begin: Begin, kept: str, constraint: Constraint | None = None, after: str = ""
    ) -> None:
        """Show the reply, around it what is forgotten or recalled; `kept` is what stays."""
        last = self.conversation.state.last
        later: list[Change] = []
        turns, named = enumerate(self.conversation.turns, 1), set[int]()
        # Also those that /forget has been asked for.
        forgotten = {number for number, turn in turns if turn.forgotten}
        has_begun, undone = False, ""
        # A terminal that is held up is restored, too.
        restored = self.worker.keys.restore
        self.stop.before_leaving = lambda: (restored(), TerminalLine.announce(self.saved()))
        with self.answering(begin) as reply, self._new_view(constraint, after) as view:
            for said in reply:
                if not isinstance(said, Change):
                    has_begun = True
                    view.add(said.text, said.thought, said.another)
                elif has_begun:
                    later.append(said)
                else:
                    self._announce(window_line(said), [n for n in said.numbers if n not in named])
                    named |= {*said.numbers}
                    had_lost = after and isinstance(said, Forgot) and not said.turns
                    stays = had_lost or forgotten & {*said.numbers}
                    undone = undone if stays else "nothing is forgotten; "
        for change in later:
            self._announce(window_line(change), change.numbers)
        if self.conversation.state.last is not last:
            self._show_end()
        elif not self.stop.ends_program:
            stats = self.conversation.stats
            has_ended = stats is not None and stats.finish_reason == "stop"
            self.screen.say(f"{'nothing added' if has_ended else 'stopped'}: {undone}{kept}")

    def _announce(self, line: str, numbers: Sequence[int]) -> None:
        """What has happened to turns; offers to remember those that begin like instructions."""
        offered = " or ".join(f"/remember {n}" for n in numbers if self._is_worth_remembering(n))
        self.screen.rule(f"{line} · {offered} keeps that message in view" if offered else line)

    def _is_worth_remembering(self, number: int) -> bool:
        """Whether the turn begins like an instruction, is not remembered yet, and there is room."""
        conversation = self.conversation
        if not is_standing(conversation.turns[number - 1].question.strip()):
            return False
        rendering, window = conversation.rendering, conversation.settings.max_kv_size
        with suppress(UsageError):
            with_remembered(rendering, conversation.state, window, number)
            return True
        return False

    def _new_view(self, constraint: Constraint | None = None, after: str = "") -> PlainView:
        # JSON is not Markdown.
        plain = self.shown.plain or constraint is not None
        # "off" hides the thoughts of models that think regardless.
        return reply_view(plain=plain, hides_thoughts=self.think != "on", after=after)

    def _show_end(self) -> None:
        stats = self.conversation.stats
        assert stats is not None
        if stats.complete is False:
            self.screen.say(incomplete(stats))
        if stats.thought_cut:
            budget = self.conversation.generation.think_budget
            self.screen.say(f"the thought was cut off (think-budget {budget:,})")
        self.figures = turn_line(len(self.conversation.turns), stats, self.seconds)
        if stats.finish_reason == "interrupted":
            self.screen.say("stopped")
        elif stats.finish_reason == "length":
            self.screen.say(self._cut_off(stats))
        elif stats.finish_reason == "stop" and not self.conversation.turns[-1].reply:
            self.screen.say("the reply is empty: /retry asks again")
        self.messages.stats(self.figures, self.shown.stats)

    def _cut_off(self, stats: Stats) -> str:
        most = self.conversation.generation.max_tokens
        if 0 < most <= stats.generated_tokens:
            how = "/continue continues the reply"
            if stats.complete is not None:
                how = "/set max-tokens raises that, then /retry"
            return f"stopped at {count(most, 'token')} (max-tokens): {how}"
        pinned = any(turn.pinned for turn in self.conversation.state.retained)
        return f"stopped: the window is full{': see /unpin' if pinned else ''}"
