"""The slash commands: what each does, its help, and what Tab completes after it.

A command is one function, declared by `command`.
"""

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch

from mlxchat.chat.rendering import fitted, is_too_long
from mlxchat.chat.state import Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import InputError, MlxchatError, UsageError
from mlxchat.manual.equivalents import hint_for
from mlxchat.models.catalog import all_names, is_model
from mlxchat.options import in_home
from mlxchat.sessions import transcript
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import listing
from mlxchat.terminal import is_dumb, settable
from mlxchat.terminal.chat_screen import MAX_QUOTED_CHARS, ChatScreen
from mlxchat.terminal.editor import EXIT_WORDS, EndOfInput, is_command
from mlxchat.terminal.figures import draw_window, first_words, numbered, staying_line, summary
from mlxchat.terminal.progress import waiting
from mlxchat.terminal.screen import copy_to_clipboard
from mlxchat.terminal.table import format_table, minute
from mlxchat.text.documents import heading, read_input
from mlxchat.units import count

# A handler gets the text after the command; it may return a draft for the next prompt.
Handler = Callable[[ChatScreen, str], str | None]
# Suggests arguments for a command, given their typed beginning.
Suggest = Callable[[ChatScreen, str], Iterable[str]]

USAGE_COLUMNS = 23
# How many matches /recall lists, and attachments /file.
MAX_LISTED = 20
KEYS = (
    'Alt-Enter or """ starts a new line · Ctrl-G opens your editor',
    "Ctrl-C stops a reply · Ctrl-D leaves · // sends a leading slash",
)
NONE = "none of yours, so that of the chat template, if it has one"
# What people type from habit.
OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/reset": "/clear", "/?": "/help"}


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """In the usage, what is in brackets may be left out, and Tab completes words in lower case."""

    usage: str
    help: str
    handle: Handler
    suggest: Suggest
    needs_model: bool

    @property
    def argument(self) -> str:
        return self.usage.partition(" ")[2]

    @property
    def words(self) -> list[str]:
        return re.findall("[a-z]+", self.argument)


COMMANDS: dict[str, SlashCommand] = {}


def command(
    usage: str, help_text: str, suggest: Suggest = lambda *_: (), *, needs_model: bool = True
) -> Callable[[Handler], Handler]:
    """Declare a command. If it needs the model, it waits for it, and runs in the worker."""

    def add(handler: Handler) -> Handler:
        name = usage.split(maxsplit=1)[0]
        COMMANDS[name] = SlashCommand(usage, help_text, handler, suggest, needs_model)
        return handler

    return add


def as_command(text: str) -> str | None:
    """The command in a typed line; None for a message."""
    if text.strip().lower() in EXIT_WORDS:
        return "/exit"
    return text if is_command(text, COMMANDS) else None


def run_command(shown: ChatScreen, line: str) -> str | None:
    """Run the command; return a draft for the next prompt. Raises UsageError if it is unknown."""
    # The text after it may begin on the next line.
    name, argument = (*line.split(maxsplit=1), "")[:2]
    found = COMMANDS.get(OTHER_NAMES.get(name, name))
    if found is None:
        near = [each for each in COMMANDS if each.startswith(name)]
        near = near if len(near) == 1 else difflib.get_close_matches(name, COMMANDS, 1, 0.75)
        hint = f"did you mean {near[0]}?" if near else f"see /help, or send it as /{name}"
        hint = f"use /set {option.name}" if (option := settable.called(name[1:])) else hint
        raise UsageError(f"unknown command {name}: {hint_for(name) or hint}")
    argument = argument.strip() if name != "/edit" else line[len(name) + 1 :]
    if re.search("NAME|FILE|SCHEMA", found.usage):
        # As a shell does.
        argument = re.sub(r"""(?s)\A(['"])(.*)\1\Z""", r"\2", argument).strip()
    if found.argument[:1] not in ("", "[") and not argument:
        raise UsageError(f"usage: {found.usage}")
    if not found.argument and argument:
        raise UsageError(f"{found.usage} takes no argument")
    if found.needs_model:
        return shown.work(lambda: found.handle(shown, argument))
    return found.handle(shown, argument)


def suggestions(shown: ChatScreen, name: str, typed: str) -> Iterator[str]:
    """Arguments of the command that start with the typed text. Errors give no suggestions."""
    found = COMMANDS.get(name)
    if found is not None:
        with suppress(MlxchatError, OSError):
            offered = (*found.words, *found.suggest(shown, typed))
            yield from (each for each in offered if each.lower().startswith(typed.lower()))


def _number(name: str, argument: str, default: int) -> int:
    if not argument:
        return default
    if not re.fullmatch(r"\d{1,9}", argument) or not int(argument):
        raise UsageError(f"usage: {COMMANDS[name].usage}")
    return int(argument)


@command("/help", "list these commands", needs_model=False)
def _help(shown: ChatScreen, _: str) -> None:
    for each in COMMANDS.values():
        shown.screen.say(f"{each.usage:{USAGE_COLUMNS}}{each.help}", indent=USAGE_COLUMNS)
    for line in KEYS[is_dumb() :]:
        shown.screen.say(line)


@command("/exit", "leave", needs_model=False)
def _exit(shown: ChatScreen, _: str) -> None:
    raise EndOfInput


@command("/clear", "start over; /recall still finds everything", needs_model=False)
def _clear(shown: ChatScreen, _: str) -> None:
    if shown.chat.is_ready and shown.conversation.state.note is None:
        shown.conversation.last_turn()
    # If the model is being loaded, right after that.
    do = shown.worker.call if shown.chat.is_ready else shown.worker.start
    do(lambda: shown.chat.is_ready and shown.conversation.clear())
    lines = len(shown.conversation.state.remembered) if shown.chat.is_ready else 0
    kept = f", with {count(lines, 'remembered line')}" if lines else ""
    kept = kept if shown.chat.is_ready else ", once the model is loaded"
    shown.screen.rule(f"new conversation{kept}")


@command("/retry", "answer the last message again")
def _retry(shown: ChatScreen, _: str) -> None:
    shown.retry()


TAKEN_BACK = {
    "cleared": "undid /clear: the chat is as before",
    "emptied": "the note is back",
    "reply": "removed what /continue added",
    "note": "undid /compact: the note and the window are as before",
    "remembered": "undid /remember: {lines} as before, and so is the window",
    "forgotten": "undid /forget: its turns are back",
    "system": "undid /system: the system prompt and the window are as before",
}


@command("/undo", "undo the last turn, /continue, /compact, /remember, /system, /forget or /clear")
def _undo(shown: ChatScreen, _: str) -> str:
    if (taken_back := shown.conversation.take_back()) is not None:
        lines = count(len(shown.conversation.state.remembered), "line")
        shown.screen.say(TAKEN_BACK[taken_back].format(lines=lines))
        return ""
    turn = shown.conversation.undo()
    shown.prepare_again(turn)
    shown.screen.say(f'removed "{first_words(turn.question)}": {shown.kept()}')
    # In a resumed chat, the note stays.
    if turn.forgotten and shown.conversation.state.note is not None:
        shown.screen.say("the note may still speak of it: /compact off removes the note")
    # As it is typed: with one more slash, or, in several lines, after a space.
    typed = re.sub(r"\A/(?!\s)(?=.*\Z)", "//", turn.question)
    return f" {typed}" if is_command(typed, COMMANDS) else typed


@command("/edit [TEXT]", "write a message in your editor", needs_model=False)
def _edit(shown: ChatScreen, argument: str) -> str:
    try:
        return shown.edit(argument)
    except (InputError, OSError) as error:
        shown.screen.complain(error)
        return argument


@command("/continue", "continue the last reply")
def _continue(shown: ChatScreen, _: str) -> None:
    shown.continue_reply()


@command("/system [TEXT|off]", "show or change the system prompt")
def _system(shown: ChatScreen, argument: str) -> None:
    if argument:
        shown.conversation.set_system(None if argument == "off" else argument)
    system = shown.conversation.state.system
    shown.screen.say(f"system prompt: {NONE if system is None else system or 'empty'}")
    _say_what_stays(shown)


@command(
    "/file [PATH|off]",
    "attach files to your message; off PATH drops one",
    lambda shown, _: (f"off {name}" for name, _ in shown.attached.values()),
    needs_model=False,
)
def _file(shown: ChatScreen, argument: str) -> None:
    off = re.fullmatch("off(?: +(.*))?", argument)
    named = argument if off is None else off[1] or ""
    with suppress(ValueError):
        # As a shell writes it, and a terminal that a file is dropped on.
        words = shlex.split(named)
        named = words[0] if len(words) == 1 and not os.path.lexists(named) else named
    # That of pathlib fails for an unknown user.
    path, notices = str(in_home(named.replace("\0", "␀"))), ()
    if off:
        is_name = named in (name for name, _ in shown.attached.values())
        pattern = f"/{named}" if is_name else f"*/{(named and path) or '*'}"
        below, before = f"{os.path.realpath(path)}/", len(shown.attached)
        for key, (name, _) in [*shown.attached.items()]:
            # What is in a folder may be a link to a file elsewhere.
            is_below = f"{key}/".startswith(below) or f"{name}/".startswith(f"{path}/")
            if is_below or fnmatch(f"/{name}", pattern):
                del shown.attached[key]
        if named and len(shown.attached) == before:
            raise UsageError(f"{named} is not attached")
    elif named:
        with waiting(f"reading {named} …", quiet=False):
            document = shown.worker.read(lambda: read_input(None, [path], None))
        shown.attach(document.found)
        notices = document.notices
    for name, text in [*shown.attached.values()][-MAX_LISTED:]:
        shown.screen.say(f"{name} ({count(len(text.removeprefix(heading(name))), 'character')})")
    # Below the list, which may be long.
    for notice in notices:
        shown.screen.say(notice)
    attached = count(len(shown.attached), "attachment")
    shown.screen.say(f"{attached}: /file PATH adds one, /file off [PATH] drops them")


@command("/schema [SCHEMA|off]", "answer your next message in JSON", needs_model=False)
def _schema(shown: ChatScreen, argument: str) -> None:
    if argument:
        shown.constraint = None if argument == "off" else Constraint.from_schema(argument)
    for notice in () if shown.constraint is None else shown.constraint.notices:
        shown.screen.say(notice)
    form = "an ordinary answer" if shown.constraint is None else "an answer in JSON"
    shown.screen.say(f"your next message gets {form}")


@command("/context", "show what fills the window")
def _context(shown: ChatScreen, _: str) -> None:
    conversation = shown.conversation
    usage, text = conversation.usage(), shown.documents
    attached_tokens = conversation.rendering.tokens_of_text(conversation.state, text) if text else 0
    state, columns = conversation.state, shown.screen.columns
    shown.screen.draw(draw_window(usage, state, attached_tokens, columns))
    if state.note is not None:
        shown.screen.say(f"note: {state.note}")
    shown.screen.say(summary(usage, attached_tokens, len(state.forgotten), conversation.recalled))
    _say_what_stays(shown)


@command("/recall WORDS [#N]", "search the whole chat; #N quotes match N")
def _recall(shown: ChatScreen, argument: str) -> None:
    ((words, number),) = re.findall(r"(?s)\A(.+?)(?:\s+#(\d{1,9}))?\Z", argument)
    matches = shown.conversation.state.recall(words)
    found = len(matches)
    if not matches:
        shown.screen.say(f"no match for {words!r}")
    elif not number:
        if found > MAX_LISTED:
            shown.screen.say(f"… {count(found - MAX_LISTED, 'earlier match', 'earlier matches')}")
        for n, each in list(enumerate(matches, 1))[-MAX_LISTED:]:
            forgotten = " (forgotten)" if each.forgotten else ""
            line = first_words(each.line, MAX_QUOTED_CHARS)
            shown.screen.say(f"#{n} turn {each.turn}, {each.where}{forgotten}: {line}")
        shown.screen.say(f"/recall {words} #{found} quotes the last one in your next message")
    elif not 1 <= int(number) <= found:
        raise UsageError(f"no match #{number}: found {count(found, 'match', 'matches')}")
    else:
        match = matches[int(number) - 1]
        shown.quote(match.line, match.turn)


@command(
    "/compact [WORDS|off]",
    "turn all but the last turn into a note; edit edits it",
    lambda *_: ["edit"],
    needs_model=False,
)
def _compact(shown: ChatScreen, argument: str) -> None:
    shown.wait_for_model()
    if argument not in ("edit", "off"):
        shown.conversation.last_turn()
        shown.edited_note = ""
        shown.work(lambda: shown.compact(argument))
        return
    before = shown.conversation.state.note
    if before is None:
        raise UsageError("no note yet: /compact writes one")
    note = None if argument == "off" else shown.edit(shown.edited_note or before).strip()
    if note == before:
        shown.screen.say("the note is unchanged")
        return
    # One that is refused is edited again.
    shown.edited_note = note or ""
    shown.work(lambda: shown.conversation.set_note(note))
    shown.edited_note = ""
    kept = shown.conversation.state.note
    shown.screen.say("removed the note" if kept is None else f"note: {kept}")


@command("/remember [TEXT|off N]", "never forget a line; without one, list them")
def _remember(shown: ChatScreen, argument: str) -> None:
    shown.remember(argument)


def _turns_to_pin(shown: ChatScreen, _: str) -> Iterator[str]:
    turns = shown.conversation.turns if shown.chat.is_ready else ()
    return (str(n) for n, turn in enumerate(turns, 1) if not (turn.forgotten or turn.pinned))


@command("/pin [TURN]", "never forget a turn, the last by default", _turns_to_pin)
def _pin(shown: ChatScreen, argument: str) -> None:
    shown.conversation.last_turn()
    number = _number("/pin", argument, len(shown.conversation.turns))
    shown.conversation.pin(number)
    shown.screen.say(f"pinned turn {number}")


@command("/unpin", "unpin all turns")
def _unpin(shown: ChatScreen, _: str) -> None:
    if not any(turn.pinned for turn in shown.conversation.turns):
        raise UsageError("no turn is pinned")
    shown.conversation.unpin()
    shown.screen.say("unpinned all turns")


@command("/forget N", "forget the N oldest turns")
def _forget(shown: ChatScreen, argument: str) -> None:
    forgotten = shown.conversation.forget(_number("/forget", argument, 1))
    if not forgotten:
        pinned = any(turn.pinned for turn in shown.conversation.turns)
        raise UsageError(f"no turns to forget{', only pinned ones: see /unpin' if pinned else ''}")
    leave = "leaves" if len(forgotten) == 1 else "leave"
    shown.screen.say(f"{numbered(forgotten)} {leave} the window with your next message")


@command("/save NAME", "name this session")
def _save(shown: ChatScreen, argument: str) -> None:
    is_new = shown.chat.session is None
    shown.chat.save_as(argument)
    done = "this chat is saved from now on, as" if is_new else "this session is now called"
    state = shown.conversation.state
    later = "" if state.turns or state.remembered else ", once it has a message"
    shown.screen.say(f"{done} {argument!r}{later}")


# Nothing is set aside, since Tab would not show it.
@command("/load NAME", "resume a session", lambda *_: (x.name for x in listing(mends=False)))
def _load(shown: ChatScreen, argument: str) -> None:
    if is_model(argument) and argument not in names_by_use():
        raise UsageError(f"{argument} is a model, not a session: use /model {argument}")
    shown.chat.change_session(argument)
    before = len(shown.attached), shown.constraint
    # Files stay attached, but nothing of the chat that is left: what came back, or a quote.
    shown.prepare_again(Turn(""))
    shown.forget_sent()
    shown.attached = {k: each for k, each in shown.attached.items() if not k.startswith("> ")}
    if (len(shown.attached), shown.constraint) != before:
        shown.screen.say("dropped what belonged to a message of the chat before")
    shown.show_last_exchange()
    _say_what_stays(shown)


@command("/sessions", "list the sessions", needs_model=False)
def _sessions(shown: ChatScreen, _: str) -> None:
    rows = [(s.name, minute(s.updated), str(s.turns), s.title) for s in listing()]
    names = ("NAME", "USED", "TURNS", "FIRST MESSAGE")
    table = format_table(names, rows, right_aligned=["TURNS"], cut=names[3:], for_terminal=True)
    shown.screen.draw(table.splitlines() if rows else ["no sessions yet"])


@command("/model [NAME|PATH]", "show or change the model", lambda *_: all_names())
def _model(shown: ChatScreen, argument: str) -> None:
    if argument:
        found = shown.chat.find(argument)
        with waiting(f"loading {found.name} …", quiet=False):
            shown.chat.change_model(found, shown.stop.requested)
    shown.screen.say(f"model: {shown.conversation.model.name}")
    _say_what_stays(shown)


def _say_what_stays(shown: ChatScreen) -> None:
    chat, size = shown.conversation, shown.conversation.settings.max_kv_size
    if size is not None and chat.tokens > size:
        fitting, ids = fitted(chat.rendering, chat.state.add(Turn(f"{shown.documents}a")), size)
        if not is_too_long(ids, size):
            shown.screen.say(staying_line(fitting.in_view[:-1]))


@command("/set [OPTION VALUE]", "show or change options such as temp", settable.options_or_values)
def _set(shown: ChatScreen, argument: str) -> None:
    name, *values = re.split(r"[ =]", argument, maxsplit=1)
    if not argument:
        now, options = shown.conversation, settable.SETTABLE.values()
        texts = ((each.name, settable.text_of(each, now)) for each in options)
        shown.screen.say(" · ".join(f"{name} {text}" for name, text in texts if text))
        return
    if (option := settable.called(name)) is None:
        raise UsageError(f"unknown option {name!r}: {settable.instead_of(argument, COMMANDS)}")
    before = settable.text_of(option, shown.conversation) or "none"
    if not (typed := "".join(values).strip()):
        shown.screen.say(f"{option.name} {before}: /set {option.name} VALUE (or default) sets it")
        return
    if typed == settable.DEFAULT or (option.many and typed == "off"):
        shown.chat.unset(option.field)
    else:
        shown.chat.set(**{option.field: settable.value_of(option, typed)})
    after = settable.text_of(option, shown.conversation) or "none"
    shown.screen.say(f"{option.name} {after} (was {before})")


@command("/think [on|off|hide]", "show, disable or hide the model's thoughts")
def _think(shown: ChatScreen, argument: str) -> None:
    if argument not in ("", *COMMANDS["/think"].words):
        raise UsageError(f"usage: {COMMANDS['/think'].usage}")
    if not shown.conversation.model.tokenizer.thinks:
        raise UsageError("this model's replies have no thoughts")
    if argument:
        shown.chat.think(argument != "off")
    shown.think = argument or shown.think
    # A template's argument turns them off, too.
    shown.screen.say(f"thoughts: {shown.think if shown.conversation.rendering.thinks else 'off'}")


@command("/stats", "figures for the last reply", needs_model=False)
def _stats(shown: ChatScreen, _: str) -> None:
    shown.screen.say(shown.figures or "no reply since this chat was opened")


@command("/copy", "copy the last reply to the clipboard")
def _copy(shown: ChatScreen, _: str) -> None:
    text = shown.conversation.last_turn().reply.strip("\n")
    shown.screen.say(copy_to_clipboard(text) if text else "the last reply is empty")


@command("/export FILE", "write the conversation as Markdown, or to a .jsonl file")
def _export(shown: ChatScreen, argument: str) -> None:
    path = in_home(argument.replace("\0", "␀"))
    transcript.export(path, shown.conversation.state, thoughts=shown.think == "on")
    shown.screen.say(f"wrote {path}")
