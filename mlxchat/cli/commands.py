"""What can be said to the chat itself: the commands that begin with a slash."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from mlxchat.chat import transcript
from mlxchat.chat.conversation import Conversation, Turn
from mlxchat.cli.keeper import Keeper
from mlxchat.cli.template_args import parse_template_args
from mlxchat.errors import InputError, SessionError, UsageError
from mlxchat.settings import GenerationSettings, Roll, SamplingSettings
from mlxchat.store.saved import read_messages
from mlxchat.store.session import Session
from mlxchat.store.session_list import listing
from mlxchat.store.session_names import as_saved, check_name, names_by_use
from mlxchat.terminal.clipboard import copy_to_clipboard
from mlxchat.terminal.plain_input import EndOfInput
from mlxchat.terminal.screen import Screen
from mlxchat.text.documents import read_input
from mlxchat.units import count


class Chat(Protocol):
    """What a command can see of the chat, and do with it."""

    screen: Screen
    keeper: Keeper
    sampling: SamplingSettings
    think: str
    retries: int
    attached: list[str]
    figures: str

    @property
    def conversation(self) -> Conversation: ...
    def edit(self, text: str) -> str: ...
    def answer(self, text: str | None) -> None: ...
    def go_on(self) -> None: ...
    def set_template_args(self, args: dict[str, Any]) -> None: ...
    def change_model(self, name: str) -> None: ...
    def change_session(self, session: Session) -> None: ...
    def save_in(self, session: Session) -> None: ...


# A handler gets the chat and what stands behind the command's name; what it returns is put into
# the next prompt, to be changed and sent.
Handler = Callable[[Chat, str], str | None]


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    help: str
    handle: Handler


COMMANDS: dict[str, Command] = {}


def command(usage: str, help_text: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        COMMANDS[usage.split(maxsplit=1)[0]] = Command(usage, help_text, handler)
        return handler

    return add


def run_command(chat: Chat, line: str) -> str | None:
    """Do what the line says; returns a draft for the next prompt. Raises UsageError for a command
    that there is not, with the nearest one."""
    name, _, argument = line.partition(" ")
    found = COMMANDS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise UsageError(f"there is no command {name}: {hint} (// sends a slash)")
    return found.handle(chat, argument.strip())


def _number(argument: str, default: int) -> int:
    if not argument:
        return default
    try:
        return int(argument)
    except ValueError:
        raise UsageError(f"{argument!r} is not a number") from None


def _last_turn(chat: Chat) -> Turn:
    turn = chat.conversation.last
    if turn is None:
        raise UsageError("nothing has been said yet")
    return turn


@command("/help", "list the commands")
def _help(chat: Chat, _: str) -> None:
    for each in COMMANDS.values():
        chat.screen.say(f"{each.usage:20} {each.help}")
    chat.screen.say('Alt-Enter or """ for several lines · Ctrl-G for your editor · Ctrl-C stops a')
    chat.screen.say("reply · Ctrl-D leaves · // at the beginning sends a slash")


@command("/exit", "leave")
def _exit(chat: Chat, _: str) -> None:
    raise EndOfInput


@command("/clear", "forget everything and begin anew")
def _clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    chat.screen.rule("a new conversation")


@command("/retry", "answer the last message again, differently")
def _retry(chat: Chat, _: str) -> None:
    _last_turn(chat)
    chat.retries += 1
    chat.answer(None)


@command("/undo", "take the last message and its reply back, or what /continue added")
def _undo(chat: Chat, _: str) -> str:
    _last_turn(chat)
    if chat.conversation.take_back_continuation():
        chat.screen.say("taken back; the reply is as it was before it went on")
        return ""
    turn = chat.conversation.undo()
    chat.screen.say("taken back; it is in the prompt, to be changed")
    return turn.user


@command("/edit [TEXT]", "write a message in your editor")
def _edit(chat: Chat, argument: str) -> str:
    return chat.edit(argument)


@command("/continue", "let the last reply go on")
def _continue(chat: Chat, _: str) -> None:
    _last_turn(chat)
    chat.go_on()


@command("/system [TEXT|off]", "show or change the system prompt")
def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.conversation.set_system(None if argument == "off" else argument)
    chat.screen.say(f"system prompt: {chat.conversation.system or 'none'}")


@command("/file PATH", "put a file before your next message")
def _file(chat: Chat, argument: str) -> None:
    if not argument:
        raise UsageError("/file needs a path")
    document = read_input(None, [str(Path(argument).expanduser())], None)
    for notice in document.notices:
        chat.screen.say(notice)
    chat.attached.append(document.text)
    chat.screen.say(f"{argument}: {len(document.text):,} characters, before your next message")


@command("/context", "draw what the window holds")
def _context(chat: Chat, _: str) -> None:
    usage = chat.conversation.usage()
    rows = [("pinned: system prompt and template", usage.pinned)]
    for turn, tokens in usage.turns:
        number = next(i for i, each in enumerate(chat.conversation.turns, 1) if each is turn)
        pin = "pinned " if turn.pinned else ""
        rows.append((f"{pin}{number}: {turn.user}", tokens))
    if usage.window is not None:
        rows.append(("free", max(usage.window - usage.held, 0)))
    chat.screen.bars(rows, usage.window or usage.held)
    forgotten = len(chat.conversation.forgotten)
    chat.screen.say(f"{usage.held:,} tokens held · {count(forgotten, 'turn')} forgotten")


@command("/recall WORD [#N]", "find what was said, and quote the newest (or Nth) find")
def _recall(chat: Chat, argument: str) -> str | None:
    wanted = re.fullmatch(r"(.+?)(?:\s+#(\d+))?", argument)
    if wanted is None:
        raise UsageError("/recall needs a word")
    finds = [
        (number, turn.forgotten, line)
        for number, turn in enumerate(chat.conversation.turns, 1)
        for text in (turn.user, turn.thought, turn.reply)
        for line in text.splitlines()
        if wanted[1].lower() in line.lower()
    ]
    if not finds:
        chat.screen.say(f"{wanted[1]!r} was never said")
        return None
    for n, (number, forgotten, line) in enumerate(finds, 1):
        where = "forgotten" if forgotten else "in view"
        chat.screen.say(f"#{n} turn {number} ({where}): {line[:200]}")
    chosen = int(wanted[2] or len(finds))
    if not 1 <= chosen <= len(finds):
        raise UsageError(f"there are {len(finds)} finds: #1 to #{len(finds)}")
    return f"> {finds[chosen - 1][2]}\n\n"


@command("/pin [TURN]", "never forget a turn: the last one, or that of the number")
def _pin(chat: Chat, argument: str) -> None:
    _last_turn(chat)
    number = _number(argument, len(chat.conversation.turns))
    if not 1 <= number <= len(chat.conversation.turns):
        raise UsageError(f"there is no turn {number}")
    turn = chat.conversation.turns[number - 1]
    if turn.forgotten:
        raise UsageError(f"turn {number} is forgotten already: /recall finds its text")
    turn.pinned = True
    chat.screen.say(f"turn {number} is pinned")


@command("/unpin", "let all pinned turns be forgotten again")
def _unpin(chat: Chat, _: str) -> None:
    for turn in chat.conversation.turns:
        turn.pinned = False
    chat.screen.say("nothing but the system prompt is pinned")


@command("/forget N", "forget the N oldest turns")
def _forget(chat: Chat, argument: str) -> None:
    wanted = _number(argument, 1)
    if wanted < 1:
        raise UsageError("/forget needs a number of turns, 1 or more")
    gone = count(chat.conversation.forget(wanted), "turn")
    chat.screen.say(f"{gone} will be gone from the window at your next message")


@command("/save NAME", "give this session a name, or write the conversation to a .jsonl file")
def _save(chat: Chat, argument: str) -> None:
    if (path := _file_path(argument)) is not None:
        transcript.save(path, chat.conversation.system, chat.conversation.turns)
        chat.screen.say(f"saved to {path}")
        return
    session = chat.keeper.session
    if session is not None:
        session.rename(argument)
    else:
        check_name(argument)
        if (found := as_saved(argument)) in names_by_use():
            raise SessionError(f"there is a session {found!r} already: choose another name")
        chat.save_in(Session.open(argument, create=True))
    chat.screen.say(f"this session is {argument!r} from now on")


@command("/load NAME", "go on with another session, or with a conversation in a .jsonl file")
def _load(chat: Chat, argument: str) -> None:
    if (path := _file_path(argument)) is None:
        session = chat.keeper.session
        if session is not None and session.name == as_saved(argument):
            raise UsageError(f"this is session {argument!r}")
        chat.change_session(Session.open(argument))
        return
    saved = read_messages(path)
    if chat.keeper.session is not None:
        chat.change_session(Session.new())
    chat.conversation.go_on_with(saved.system, saved.turns)
    for notice in saved.notices:
        chat.screen.say(notice)
    chat.screen.say(
        f"{count(len(saved.turns), 'turn')}; the latest that fit will be read at your next message"
    )


@command("/sessions", "list the sessions")
def _sessions(chat: Chat, _: str) -> None:
    found = listing()
    for each in found:
        when = datetime.fromtimestamp(each.updated).strftime("%Y-%m-%d %H:%M")
        first = each.error or each.first.replace("\n", " ")[:50]
        chat.screen.say(f"{each.name:24} {when}  {count(each.turns, 'turn'):>10}  {first}")
    if not found:
        chat.screen.say("there is none yet")


def _file_path(name: str) -> Path | None:
    """The path that is meant, where it is no session's name."""
    if not name:
        raise UsageError("it needs a name")
    return Path(name).expanduser() if "/" in name or name.endswith(".jsonl") else None


@command("/model [NAME]", "show the model, or go on with another")
def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_model(argument)
    chat.screen.say(f"model: {chat.conversation.model.name}")


SAMPLING = {field.name.replace("_", "-"): field.name for field in fields(SamplingSettings)}


@command("/set [OPTION VALUE]", "show the options, or change one: temp, top-p, max-tokens …")
def _set(chat: Chat, argument: str) -> None:
    option, _, value = argument.partition(" ")
    if option:
        _set_option(chat, option.lstrip("-"), value.strip())
    values = {option: getattr(chat.sampling, name) for option, name in SAMPLING.items()}
    values |= {
        "max-tokens": chat.conversation.generation.max_tokens,
        "roll": str(chat.conversation.roll),
    }
    parts = [f"{option} {value}" for option, value in values.items()]
    args = chat.conversation.template_args.items()
    parts += [f"template-arg {name}={_as_written(value)}" for name, value in args]
    chat.screen.say(" · ".join(parts))


def _as_written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _set_option(chat: Chat, option: str, value: str) -> None:
    try:
        if option in SAMPLING:
            kind = int if option in ("top-k", "seed") else float
            chosen: dict[str, Any] = {SAMPLING[option]: kind(value)}
            chat.sampling = replace(chat.sampling, **chosen)
        elif option == "max-tokens":
            old: GenerationSettings = chat.conversation.generation
            chat.conversation.generation = replace(old, max_tokens=int(value))
        elif option == "roll":
            chat.conversation.roll = Roll(value)
        elif option == "template-arg":
            chat.set_template_args(parse_template_args([value], option))
        else:
            raise UsageError(f"there is no option {option!r}: /set lists them")
    except ValueError:
        raise UsageError(f"{value!r} is no value for {option}") from None


@command("/think on|off|hide", "show the model's thoughts, turn them off, or hide them")
def _think(chat: Chat, argument: str) -> None:
    if argument not in ("on", "off", "hide"):
        raise UsageError("/think takes on, off or hide")
    if argument == "off" and not chat.conversation.model.tokenizer.thinks:
        raise UsageError("this model has no way to turn thoughts off: /think hide leaves them out")
    chat.conversation.think(argument != "off")
    chat.think = argument
    chat.screen.say(f"thoughts: {argument}")


@command("/stats", "figures of the last reply")
def _stats(chat: Chat, _: str) -> None:
    chat.screen.say(chat.figures or "nothing has been answered yet")


@command("/copy", "copy the last reply, without its thoughts, to the clipboard")
def _copy(chat: Chat, _: str) -> None:
    chat.screen.say(copy_to_clipboard(_last_turn(chat).reply.strip()))


@command("/export FILE.md", "write the whole conversation as Markdown")
def _export(chat: Chat, argument: str) -> None:
    if not argument:
        raise InputError("/export needs a file name")
    path = Path(argument).expanduser()
    conversation = chat.conversation
    transcript.export_markdown(
        path, conversation.system, conversation.turns, thoughts=chat.think == "on"
    )
    chat.screen.say(f"written to {path}")
