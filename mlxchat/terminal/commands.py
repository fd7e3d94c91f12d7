"""What can be said to the chat itself: the commands that begin with a slash."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mlxchat.chat import transcript
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Turn
from mlxchat.errors import InputError, UsageError
from mlxchat.options import Group, Option
from mlxchat.request import CHAT
from mlxchat.store.session_list import listing
from mlxchat.template_args import format_template_args
from mlxchat.terminal.chat_screen import ChatScreen
from mlxchat.terminal.clipboard import copy_to_clipboard
from mlxchat.terminal.plain_input import EndOfInput
from mlxchat.text.documents import read_input
from mlxchat.units import count

# A handler gets the chat on its screen and what was typed after the command's name; what it returns
# is put into the next prompt, to be changed and sent.
Handler = Callable[[ChatScreen, str], str | None]


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    help: str
    handle: Handler


COMMANDS: dict[str, Command] = {}

# What people type from habit.
OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/reset": "/clear", "/?": "/help"}
EXIT_WORDS = {"exit", "quit"}


def command(usage: str, help_text: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        COMMANDS[usage.split(maxsplit=1)[0]] = Command(usage, help_text, handler)
        return handler

    return add


def as_command(text: str) -> str | None:
    """The command that a typed line is, or None for a message. `//` begins a message."""
    if text.strip().lower() in EXIT_WORDS:
        return "/exit"
    return text if text.startswith("/") and not text.startswith("//") else None


def run_command(shown: ChatScreen, line: str) -> str | None:
    """Do what the line says; returns a draft for the next prompt. Raises UsageError for a command
    that there is not, with the nearest one."""
    name, _, argument = line.partition(" ")
    found = COMMANDS.get(OTHER_NAMES.get(name, name))
    if found is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise UsageError(f"there is no command {name}: {hint} (// sends a slash)")
    return found.handle(shown, argument.strip())


def _number(argument: str, default: int) -> int:
    if not argument:
        return default
    try:
        return int(argument)
    except ValueError:
        raise UsageError(f"{argument!r} is not a number") from None


def _last_turn(shown: ChatScreen) -> Turn:
    turn = shown.conversation.last
    if turn is None:
        raise UsageError("nothing has been said yet")
    return turn


@command("/help", "list the commands")
def _help(shown: ChatScreen, _: str) -> None:
    for each in COMMANDS.values():
        shown.screen.say(f"{each.usage:20} {each.help}")
    shown.screen.say('Alt-Enter or """ for several lines · Ctrl-G for your editor · Ctrl-C stops a')
    shown.screen.say("reply · Ctrl-D leaves · // at the beginning sends a slash")


@command("/exit", "leave")
def _exit(shown: ChatScreen, _: str) -> None:
    raise EndOfInput


@command("/clear", "forget everything and begin anew")
def _clear(shown: ChatScreen, _: str) -> None:
    shown.conversation.clear()
    shown.screen.rule("a new conversation")


@command("/retry", "answer the last message again, differently")
def _retry(shown: ChatScreen, _: str) -> None:
    _last_turn(shown)
    shown.retry()


@command("/undo", "take the last message and its reply back, or what /continue added")
def _undo(shown: ChatScreen, _: str) -> str:
    _last_turn(shown)
    if shown.conversation.take_back_continuation():
        shown.screen.say("taken back; the reply is as it was before it went on")
        return ""
    turn = shown.conversation.undo()
    shown.screen.say("taken back; it is in the prompt, to be changed")
    return turn.user


@command("/edit [TEXT]", "write a message in your editor")
def _edit(shown: ChatScreen, argument: str) -> str:
    return shown.edit(argument)


@command("/continue", "let the last reply go on")
def _continue(shown: ChatScreen, _: str) -> None:
    _last_turn(shown)
    shown.continue_reply()


@command("/system [TEXT|off]", "show or change the system prompt")
def _system(shown: ChatScreen, argument: str) -> None:
    if argument:
        shown.conversation.set_system(None if argument == "off" else argument)
    shown.screen.say(f"system prompt: {shown.conversation.system or 'none'}")


@command("/file PATH", "put a file before your next message")
def _file(shown: ChatScreen, argument: str) -> None:
    if not argument:
        raise UsageError("/file needs a path")
    document = read_input(None, [str(Path(argument).expanduser())], None)
    for notice in document.notices:
        shown.screen.say(notice)
    shown.attach(argument, document.text)


@command("/context", "draw what the window holds")
def _context(shown: ChatScreen, _: str) -> None:
    usage = shown.conversation.usage()
    rows = [("pinned: system prompt and template", usage.pinned)]
    for turn, tokens in usage.turns:
        number = next(i for i, each in enumerate(shown.conversation.turns, 1) if each is turn)
        pin = "pinned " if turn.pinned else ""
        rows.append((f"{pin}{number}: {turn.user}", tokens))
    if usage.window is not None:
        rows.append(("free", max(usage.window - usage.held, 0)))
    shown.screen.bars(rows, usage.window or usage.held)
    forgotten = len(shown.conversation.forgotten)
    shown.screen.say(f"{usage.held:,} tokens held · {count(forgotten, 'turn')} forgotten")


@command("/recall WORD [#N]", "find what was said, and quote the newest (or Nth) find")
def _recall(shown: ChatScreen, argument: str) -> str | None:
    wanted = re.fullmatch(r"(.+?)(?:\s+#(\d+))?", argument)
    if wanted is None:
        raise UsageError("/recall needs a word")
    finds = shown.conversation.recall(wanted[1])
    if not finds:
        shown.screen.say(f"{wanted[1]!r} was never said")
        return None
    for n, each in enumerate(finds, 1):
        where = "forgotten" if each.forgotten else "in view"
        shown.screen.say(f"#{n} turn {each.turn} ({where}): {each.line[:200]}")
    chosen = int(wanted[2] or len(finds))
    if not 1 <= chosen <= len(finds):
        raise UsageError(f"there are {len(finds)} finds: #1 to #{len(finds)}")
    return f"> {finds[chosen - 1].line}\n\n"


@command("/pin [TURN]", "never forget a turn: the last one, or that of the number")
def _pin(shown: ChatScreen, argument: str) -> None:
    _last_turn(shown)
    number = _number(argument, len(shown.conversation.turns))
    shown.conversation.pin(number)
    shown.screen.say(f"turn {number} is pinned")


@command("/unpin", "let all pinned turns be forgotten again")
def _unpin(shown: ChatScreen, _: str) -> None:
    shown.conversation.unpin()
    shown.screen.say("nothing but the system prompt is pinned")


@command("/forget N", "forget the N oldest turns")
def _forget(shown: ChatScreen, argument: str) -> None:
    wanted = _number(argument, 1)
    if wanted < 1:
        raise UsageError("/forget needs a number of turns, 1 or more")
    gone = count(shown.conversation.forget(wanted), "turn")
    shown.screen.say(f"{gone} will be gone from the window at your next message")


@command("/save NAME", "give this session a name, or write the conversation to a .jsonl file")
def _save(shown: ChatScreen, argument: str) -> None:
    conversation = shown.conversation
    if (path := _file_path(argument)) is not None:
        transcript.save(path, conversation.system, conversation.turns)
        shown.screen.say(f"saved to {path}")
        return
    shown.ready_chat().save_as(argument)
    shown.screen.say(f"this session is {argument!r} from now on")


@command("/load NAME", "resume another session, or a conversation in a .jsonl file")
def _load(shown: ChatScreen, argument: str) -> None:
    if (path := _file_path(argument)) is None:
        shown.ready_chat().change_session(argument)
        shown.show_last_exchange()
        return
    turns = count(shown.ready_chat().resume_file(path), "turn")
    shown.screen.say(f"{turns}; the latest that fit will be read at your next message")


@command("/sessions", "list the sessions")
def _sessions(shown: ChatScreen, _: str) -> None:
    found = listing()
    for each in found:
        when = datetime.fromtimestamp(each.updated).strftime("%Y-%m-%d %H:%M")
        first = each.error or each.first.replace("\n", " ")[:50]
        shown.screen.say(f"{each.name:24} {when}  {count(each.turns, 'turn'):>10}  {first}")
    if not found:
        shown.screen.say("there is none yet")


def _file_path(name: str) -> Path | None:
    """The path that is meant, where it is no session's name."""
    if not name:
        raise UsageError("it needs a name")
    return Path(name).expanduser() if "/" in name or name.endswith(".jsonl") else None


@command("/model [NAME]", "show the model, or change to another")
def _model(shown: ChatScreen, argument: str) -> None:
    if argument:
        chat = shown.ready_chat()
        found = chat.find(argument)
        with shown.screen.waiting(f"loading {found.name} …"):
            chat.change_model(found)
    shown.screen.say(f"model: {shown.conversation.model.name}")


def _in_order(option: Option) -> tuple[bool, bool, bool]:
    """Sampling first, what may be long last."""
    return option.group is not Group.SAMPLING, option.group is not Group.END, option.many


SETTABLE = {each.name: each for each in sorted(CHAT.values(), key=_in_order) if each.in_chat}


@command("/set [OPTION VALUE]", "show the options, or change one: temp, top-p, max-tokens …")
def _set(shown: ChatScreen, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if name:
        option = SETTABLE.get(name.lstrip("-").replace("_", "-"))
        if option is None:
            raise UsageError(f"unknown option {name!r}: /set lists them")
        if not value.strip():
            raise UsageError(f"usage: /set {option.name} {option.metavar or 'VALUE'}")
        shown.ready_chat().set(**{option.field: option.value_of_text(value.strip())})
    shown.screen.say(" · ".join(_settings(shown.conversation)))


def _settings(conversation: Conversation) -> Iterator[str]:
    """The options that can be set, with their values."""
    for each in SETTABLE.values():
        if each.many:
            for written in format_template_args(conversation.template_args):
                yield f"{each.name} {written}"
        else:
            holders = (conversation.sampling, conversation.generation, conversation)
            holder = next(holder for holder in holders if hasattr(holder, each.field))
            yield f"{each.name} {getattr(holder, each.field)}"


@command("/think on|off|hide", "show the model's thoughts, turn them off, or hide them")
def _think(shown: ChatScreen, argument: str) -> None:
    if argument not in ("on", "off", "hide"):
        raise UsageError("/think takes on, off or hide")
    if argument == "off" and not shown.conversation.model.tokenizer.thinks:
        raise UsageError("this model has no way to turn thoughts off: /think hide leaves them out")
    shown.conversation.think(argument != "off")
    shown.think = argument
    shown.screen.say(f"thoughts: {argument}")


@command("/stats", "figures of the last reply")
def _stats(shown: ChatScreen, _: str) -> None:
    shown.screen.say(shown.figures or "nothing has been answered yet")


@command("/copy", "copy the last reply, without its thoughts, to the clipboard")
def _copy(shown: ChatScreen, _: str) -> None:
    shown.screen.say(copy_to_clipboard(_last_turn(shown).reply.strip()))


@command("/export FILE.md", "write the whole conversation as Markdown")
def _export(shown: ChatScreen, argument: str) -> None:
    if not argument:
        raise InputError("/export needs a file name")
    path = Path(argument).expanduser()
    conversation = shown.conversation
    transcript.export_markdown(
        path, conversation.system, conversation.turns, thoughts=shown.think == "on"
    )
    shown.screen.say(f"written to {path}")
