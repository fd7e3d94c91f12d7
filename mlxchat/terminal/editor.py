"""How messages are typed: in a line editor, or line by line on terminals that cannot move the
cursor. And the user's own editor. Callers handle slash commands."""

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate, dropwhile
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_session, run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_completions, has_focus, is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.search import SearchDirection, start_search, stop_search
from prompt_toolkit.utils import get_cwidth

from mlxchat.errors import InputError
from mlxchat.files import make_private_directory, open_file
from mlxchat.terminal import visible
from mlxchat.terminal.output import wrap
from mlxchat.terminal.worker import TICK_S, Worker

PROMPT = "> "
CONTINUATION = "  "
MENU_ROWS = 8
TAB = 4 * " "
EXIT_WORDS = {"exit", "quit"}
LEAVING_HINT = "Ctrl-C again or Ctrl-D to leave"
# A paste of more is collapsed.
MAX_PASTED_CHARS, MAX_PASTED_LINES = 1_000, 10
# Stand for collapsed pastes: surrogates, which no terminal sends.
_PASTES = range(0xD800, 0xDC00)

_QUOTES = '"""'
# In the order in which prompt_toolkit and Debian try them.
_EDITORS = ("editor", "nano", "pico", "vi", "emacs")
# Before what would be taken for a command, which what is quoted is not.
_AS_COMMAND = re.compile(r"\A(?=/[^\s/].*\Z|/[a-z]+\s)")

# Suggests arguments of a command, given their typed beginning.
Suggest = Callable[[str, str], Iterable[str]]


class EndOfInput(Exception):
    """The user leaves: Ctrl-D on an empty line, or Ctrl-C twice in a row."""


class Editor:
    """Reads messages with Emacs keys, above a status line from `toolbar()`.

    `commands` are usages with their help; `suggest(command, typed)` completes arguments, as do file
    names if the usage has a PATH or FILE. `ended_by` returns what has to end the prompt, and `news`
    what writes above it, if anything. Without a `history_file` the history lasts as long as the
    process.
    """

    def __init__(
        self,
        *,
        history_file: Path | None,
        commands: Mapping[str, str],
        toolbar: Callable[[], str],
        suggest: Suggest = lambda *_: (),
        ended_by: Callable[[], BaseException | None] = lambda: None,
        news: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        self._ended_by, self._news = ended_by, news
        self._warned = self._was_warned = False
        self._pushed, self._searched_from = "", 0
        self._error: BaseException | None = None
        self._pastes = _Pastes()
        self._names = [usage.split()[0] for usage in commands]
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=_history(history_file, self._pastes),
            input_processors=[self._pastes],
            completer=_ChatCompleter(commands, suggest),
            complete_while_typing=Condition(
                lambda: _is_command_name(self._session.default_buffer.text)
            ),
            key_bindings=self._keys(),
            enable_suspend=True,
            placeholder=lambda: [("ansibrightblack", LEAVING_HINT if self._warned else "")],
            bottom_toolbar=lambda: wrap(
                visible(toolbar()), self._session.output.get_size().columns
            ),
            refresh_interval=0.5,
            search_ignore_case=True,
            eof_exception=EndOfInput,
        )
        self._session.app.key_processor.before_key_press += self._expire_warning
        self._session.app.before_render += self._fit_menu
        # A remote terminal may take more than two seconds to report its cursor position. That does
        # not deserve a warning in the middle of a chat: only the toolbar is lost.
        self._session.app.renderer.cpr_not_supported_callback = None

    def read(self, draft: str = "") -> str:
        """Return the next message, edited from `draft`; Ctrl-G returns /edit with the text. Raises
        EndOfInput, or what has ended the prompt."""
        self._warned, self._error = False, None
        self._draft = draft or self._pushed
        self._pushed *= bool(draft) and is_command(draft, self._names)
        # What was typed before a draft came back is a message of its own. Enters alone are nothing.
        keys = [*get_typeahead(self._session.input), *self._session.input.flush_keys()]
        keys = [*dropwhile(lambda key: self._draft.strip() and key.key in ("c-j", "c-m"), keys)]
        waiting = keys or select.select([self._session.input], [], [], 0)[0]
        edits = bool(keys) and keys[0].key in ("c-u", "c-w", "c-h")
        is_typed_ahead = bool(self._draft.strip() and waiting) and not edits
        keys = [KeyPress(Keys.ControlJ) if is_typed_ahead and k.key == "c-m" else k for k in keys]
        store_typeahead(self._session.input, keys)
        if is_typed_ahead:
            self._draft = self._draft.rstrip("\n") + "\n"
        shown = self._pastes.fit(self._draft)
        self._returned = shown if is_typed_ahead else "\0"
        self._session.app.erase_when_done = False
        try:
            typed = self._session.prompt(default=shown, pre_run=self._watch)
            # After a message, nothing comes back.
            self._pushed *= is_command(typed, self._names)
            text = message_of(typed, self._pastes.texts)
            if text.strip() == "/edit" and self._pushed:
                text, self._pushed = f"/edit {self._pushed}", ""
            if self._take(get_typeahead(self._session.input)):
                # Ctrl-C was read together with Enter.
                return self.read(text)
            added = text.removeprefix(self._draft).rstrip()
            # "I want to" + " quit" is a message.
            return added if added.lower() in EXIT_WORDS and self._draft[-1:] != " " else text
        except (EOFError, OSError) as error:
            # What was typed is not lost.
            self._session.default_buffer.append_to_history()
            # A terminal that has been closed cannot be restored either.
            if self._error is not None:
                raise self._error from None
            if isinstance(error, OSError):
                raise
            raise EndOfInput from None

    def take_typed(self) -> None:
        """Take what is typed for the next prompt: a full buffer of the terminal keeps Ctrl-C."""
        source = self._session.input
        if not select.select([source], [], [], 0)[0]:
            # An Esc that stays alone is not the Alt of a later key.
            source.flush_keys()
        # Some kilobytes at once: a terminal that has been closed always has more.
        for _ in range(32):
            if not select.select([source], [], [], 0)[0]:
                break
            if self._take(source.read_keys()):
                # Ctrl-C was typed right after Enter, before it was a signal.
                signal.raise_signal(signal.SIGINT)

    def _take(self, keys: list[KeyPress]) -> bool:
        """Keep keys for the next prompt, other than Ctrl-C; return whether there is one."""
        kept = [each for each in keys if each.key != Keys.ControlC]
        store_typeahead(self._session.input, kept)
        return len(kept) < len(keys)

    def _fit_menu(self, _: object) -> None:
        """Without room for the menu, the library would draw nothing else."""
        rows = self._session.output.get_size().rows
        self._session.reserve_space_for_menu = max(min(rows - 4, MENU_ROWS), 0)

    def _watch(self) -> None:
        self._session.app.create_background_task(self._end_if_asked())

    async def _end_if_asked(self) -> None:
        while (error := self._ended_by()) is None:
            if (tell := self._news()) is not None:
                await run_in_terminal(tell)
            await asyncio.sleep(TICK_S)
        self._error = error
        self._session.app.erase_when_done = True
        self._session.app.exit(exception=EOFError())

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        at_prompt = has_focus(DEFAULT_BUFFER)
        # In Emacs mode Ctrl-O sends too, and would send what Enter does not.
        for sends in ("enter", "c-o"):
            keys.add(sends, filter=at_prompt)(self._send)
        keys.add(Keys.BracketedPaste, filter=at_prompt)(self._pastes.paste)
        # Enter typed ahead arrives as a newline character, and does not send a draft.
        adds = Condition(lambda: self._session.default_buffer.text.startswith(self._returned))
        keys.add("c-j", filter=at_prompt & adds)(self._add_line)
        for enter in ("enter", "c-j"):
            keys.add("escape", enter, filter=at_prompt)(
                lambda event: event.current_buffer.insert_text("\n")
            )
        for key, does in (("/", self._slash), ("c-g", _open_editor), ("c-c", self._interrupt)):
            keys.add(key, filter=at_prompt)(does)
        keys.add("tab", filter=at_prompt & has_completions)(_take_or_next)
        for key in ("c-r", "c-s"):
            keys.add(key, filter=at_prompt)(self._search)
        for key in ("c-c", "c-g"):
            keys.add(key, filter=is_searching)(self._end_search)
        for key in ("up", "c-p", "down", "c-n"):
            keys.add(key, filter=at_prompt)(self._recall)
        keys.add("<sigint>")(self._interrupt)
        # Pasted colors look like reports of a mouse, which the library may fail to read.
        keys.add(Keys.Vt100MouseEvent)(lambda _: None)
        return keys

    def _send(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if self._pushed and not buffer.text:
            # The command that took its place was deleted.
            buffer.insert_text(self._pastes.fold(self._pushed))
            self._pushed = ""
        elif is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            says = message_of(buffer.text, self._pastes.texts).strip()
            # After spaces that stayed, a command would be a message.
            buffer.validate_and_handle() if says else buffer.reset()

    def _recall(self, event: KeyPressEvent) -> None:
        """Move the cursor; if that is to another message, it has to fit the screen."""
        buffer, before = event.current_buffer, event.current_buffer.working_index
        is_up = event.key_sequence[-1].key in ("up", "c-p")
        buffer.auto_up(event.arg) if is_up else buffer.auto_down(event.arg)
        if buffer.working_index != before:
            buffer.text = self._pastes.fit(buffer.text.translate(self._pastes.texts))

    def _search(self, event: KeyPressEvent) -> None:
        self._searched_from = event.current_buffer.working_index
        start_search(direction=SearchDirection.BACKWARD)

    def _end_search(self, event: KeyPressEvent) -> None:
        """Back where it began: the library stays where a second Ctrl-R has been."""
        stop_search()
        event.current_buffer.go_to_history(self._searched_from)

    def _add_line(self, event: KeyPressEvent) -> None:
        """After what came back, impatient Enters add nothing."""
        if event.current_buffer.text != self._returned:
            event.current_buffer.insert_text("\n")

    def _slash(self, event: KeyPressEvent) -> None:
        """At the end of an untouched draft, a command begins; a message comes back after it."""
        buffer, draft = event.current_buffer, self._pastes.fold(self._draft)
        # Ctrl-U that was typed ahead removes the line for what follows.
        if buffer.text in (draft, draft.rstrip("\n")) and buffer.document.is_cursor_at_the_end:
            buffer.append_to_history()
            self._pushed = "" if is_command(draft, self._names) else self._draft.rstrip("\n")
            buffer.text = ""
        buffer.insert_text("/")

    def _interrupt(self, event: KeyPressEvent) -> None:
        if self._session.default_buffer.text:
            self._session.default_buffer.reset()
        elif self._was_warned:
            event.app.exit(exception=EndOfInput())
        else:
            self._warned = True

    def _expire_warning(self, _: object) -> None:
        self._was_warned, self._warned = self._warned, False


class _Pastes(Processor):
    """Long pastes, and messages too tall for the screen. In the text that is edited, each is one
    character, which is shown as its size: it is moved over, deleted and restored as a whole."""

    def __init__(self) -> None:
        # By the number of the character.
        self.texts: dict[int, str] = {}

    def paste(self, event: KeyPressEvent) -> None:
        pasted = re.sub("\r\n?", "\n", event.data)
        text = pasted.rstrip("\n")
        if len(text) > MAX_PASTED_CHARS or text.count("\n") >= MAX_PASTED_LINES:
            self.add(text)
        event.current_buffer.insert_text(self.fold(text) + pasted[len(text) :])

    def add(self, text: str) -> None:
        if text and text not in self.texts.values() and len(self.texts) < len(_PASTES):
            self.texts[_PASTES[len(self.texts)]] = text

    def fold(self, text: str) -> str:
        """The text with the pastes in it collapsed."""
        for number, paste in sorted(self.texts.items(), key=lambda each: -len(each[1])):
            text = text.replace(paste, chr(number))
        return text

    def fit(self, text: str) -> str:
        """The same, as a whole if it is too tall for the screen: the library would leave rows of it
        and of the toolbar, and never draw the first ones."""
        lines = self.fold(text).replace("\t", TAB).split("\n")
        size = get_app_session().output.get_size()
        if sum(get_cwidth(PROMPT + line) // size.columns + 1 for line in lines) > size.rows - 2:
            self.add(text.rstrip("\n"))
        return self.fold(text)

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """What is shown of a line."""
        sizes = {n: f"[pasted {len(text):,} characters]" for n, text in self.texts.items()}
        # Of what it draws otherwise than it is, the library mistakes the width.
        sizes |= {n: f"^{chr(n ^ 64)}" for n in (*range(32), 127)} | {ord("\t"): TAB}
        chars = explode_text_fragments(transformation_input.fragments)
        shown = [(style, char.translate(sizes)) for style, char, *_ in chars]
        starts = [0, *accumulate(len(text) for _, text in shown)]
        return Transformation(
            list(shown),
            # The cursor may be one after the end.
            lambda at: starts[min(at, len(shown))] + max(at - len(shown), 0),
            lambda at: bisect(starts, at) - 1,
        )


class _ChatCompleter(Completer):
    """Completes commands while they are typed; on Tab, their arguments and file names."""

    def __init__(self, commands: Mapping[str, str], suggest: Suggest) -> None:
        self._commands = {usage.split()[0]: (usage, help_) for usage, help_ in commands.items()}
        self._suggest = suggest
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if _is_command_name(typed):
            for name, (usage, description) in self._commands.items():
                if name.startswith(typed):
                    whole = name + " " * (usage != name)
                    yield Completion(whole, -len(typed), name, display_meta=description)
        elif typed.startswith("/") and complete_event.completion_requested:
            command, _, argument = typed.partition(" ")
            argument = argument.lstrip(" ")
            for suggested in self._suggest(command, argument):
                yield Completion(suggested, -len(argument))
            if re.search("PATH|FILE|SCHEMA", self._commands.get(command, ("", ""))[0]):
                for path in self._paths.get_completions(Document(argument), complete_event):
                    folder = "/" * path.display_text.endswith("/")
                    yield Completion(path.text + folder, path.start_position, path.display)


class _FileHistory(FileHistory):
    """If the file cannot be used any longer, the history stays in memory."""

    def __init__(self, file: Path, pastes: _Pastes) -> None:
        super().__init__(file)
        self._pastes = pastes

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string.translate(self._pastes.texts))


def _history(file: Path | None, pastes: _Pastes) -> History:
    """A private history file, if it can be used."""
    if file is not None:
        with suppress(OSError):
            make_private_directory(file.parent)
            # Follow a symbolic link: the user made it.
            os.close(open_file(file.resolve(), os.O_CREAT | os.O_WRONLY))
            return _FileHistory(file, pastes)
    return InMemoryHistory()


def _take_or_next(event: KeyPressEvent) -> None:
    """The only completion stays, where the library would go on to what was typed."""
    buffer = event.current_buffer
    buffer.complete_next()
    if buffer.complete_state and len(buffer.complete_state.completions) == 1:
        buffer.complete_state = None


def _open_editor(event: KeyPressEvent) -> None:
    event.app.erase_when_done = True
    event.app.exit(result=f"/edit {event.current_buffer.text}")


def _is_command_name(text: str) -> bool:
    return text.startswith("/") and not any(c.isspace() for c in text)


class PlainInput:
    """Reads messages from stdin line by line, without escape sequences."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._line: Future[bytes] | None = None
        self._draft = ""

    def read(self, draft: str = "") -> str:
        """Return the next message. A `draft` is shown, an empty line sends it, and it comes back
        after a command. Raises EndOfInput."""
        draft = message_of(draft) or self._draft
        if draft.strip():
            print(f"{visible(draft)}\n(Enter sends this, another message replaces it)", flush=True)
        interrupted = False
        while True:
            try:
                typed = self._next_line(PROMPT)
                interrupted = False
                while is_open(typed):
                    typed += "\n" + self._next_line(CONTINUATION)
            except KeyboardInterrupt:
                print(flush=True)
                if interrupted:
                    raise EndOfInput from None
                interrupted = True
                print(LEAVING_HINT, flush=True)
                continue
            text = message_of(typed) if typed else draft
            if text.strip():
                self._draft = draft if is_command(text.partition("\n")[0], ()) else ""
                return text

    def _next_line(self, prompt: str) -> str:
        print(prompt, end="", flush=True)
        # After Ctrl-C, the reader still waits for the line.
        self._line = self._line or self._worker.start_reading(sys.stdin.buffer.readline)
        try:
            line = self._worker.wait(self._line)
        except OSError:
            # A closed terminal counts as end of input.
            line = b""
        self._line = None
        # Ctrl-D arrives as a key if the terminal was not editing lines when it was pressed.
        if not line or line.startswith(b"\x04"):
            print(flush=True)
            raise EndOfInput
        return line.decode("utf-8", "replace").removesuffix("\n")


def is_command(text: str, names: Collection[str]) -> bool:
    """Whether it begins with "/", and is no message: `//`, `/ ` or, in several lines, a path."""
    has_slash = text[:1] == "/" and text[1:2] not in ("/", " ")
    return has_slash and ("\n" not in text or text.split(maxsplit=1)[0] in names)


def is_open(typed: str) -> bool:
    """Whether `typed` starts with triple quotes that are not closed yet."""
    is_even, lines = typed.count(_QUOTES) % 2 == 0, typed.strip().split("\n")
    if lines[0] != _QUOTES:
        return lines[0].startswith(_QUOTES) and not is_even
    # Between lines of quotes there may be others, such as those of docstrings.
    closes = lines[-1].endswith(_QUOTES) if is_even else lines[-1].rstrip() == _QUOTES
    return len(lines) == 1 or not closes


def message_of(typed: str, pastes: Mapping[int, str] | None = None) -> str:
    """The message to send: without triple quotes and newlines at its end, and with whole pastes."""
    bare = typed.strip()
    is_quoted = bare.startswith(_QUOTES) and bare.endswith(_QUOTES) and not is_open(bare)
    if is_quoted:
        typed = bare.removeprefix(_QUOTES).removesuffix(_QUOTES).removeprefix("\n")
    # Invalid UTF-8 arrives as lone surrogates, which no tokenizer accepts.
    text = typed.rstrip("\n").translate(pastes or {}).encode("utf-8", "replace").decode()
    return _AS_COMMAND.sub(" ", text) if is_quoted else text


def edit(text: str, file_name: str = "message.md") -> str:
    """Return `text` as saved by $VISUAL, $EDITOR or the first editor found, which the shell starts.

    The editor gets a copy called `file_name`, whose suffix shows it the type of text.

    Raises InputError if the editor fails, or saves something other than text.
    """
    wanted = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    editor = wanted or next(filter(shutil.which, _EDITORS), "vi")
    with tempfile.TemporaryDirectory(prefix="mlxchat-") as directory:
        file = Path(directory) / file_name
        file.write_text(text, encoding="utf-8", errors="replace")
        # Ctrl-C is for the editor alone: it must not end the shell.
        command = ["/bin/sh", "-c", f'trap : INT; {editor} "$1"', editor, str(file)]
        status = subprocess.run(command, check=False).returncode
        edited = file.read_bytes() if file.exists() else b"\xff"
    if status != 0:
        # If the shell cannot start it, or find it.
        hint = "; set $VISUAL or $EDITOR" if status in (126, 127) else ""
        raise InputError(f"{editor} exited with status {status}: nothing was changed{hint}")
    try:
        return edited.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InputError(f"{editor} saved no file of UTF-8 text") from None
