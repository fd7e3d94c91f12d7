"""Runs a command of the documentation as a reader would type it, in its own directory.

A command that needs no shell runs in this process, which is quicker. A chat gets a message, a
question is answered with yes, and an overnight run is ended once it has written something.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from tests.docs import QUOTED_OR_COMMENT, words
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal
from tests.terminal_chat import CTRL_D, PROMPT

PATIENCE_S = 120

NO_CHAT = {"--version", "--help", "--install-completion", "--show-completion"}
ASKS = re.compile(
    r"mlxchat (?:models rm|session rm|cache rm|cache clear)\b(?!.*(?<!\S)(?:-y|--yes)(?!\S))"
)
UNTIL_THE_MORNING = {"--checkpoint", "--resume", "--until", "--for"}


# Characters that a shell interprets.
SHELLS_OWN = re.compile(r"[$`*?~<>|&;(){}\n]|\w=")
# Commands that use the hub, whose library reads the environment once, or import mlx-lm.
NEED_A_PROCESS = {"models", "doctor", "-m", "--model", "--against", *NO_CHAT}


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command. On a terminal, `stdout` is everything written to it."""

    status: int | None
    stdout: str
    stderr: str


def run(text: str, directory: Path, message: str = "Hello.") -> Done:
    """Run it in `directory`, and send `message` if it is a chat.

    Its output goes to files next to the directory. Raises TimeoutExpired, or fails the test, if it
    does not end.
    """
    if opens_chat(text):
        return _chat(text, directory, message)
    if ASKS.search(text):
        return _say_yes(text, directory)
    if needs_no_shell(text):
        with chdir(directory):
            done = run_in_process(*words(text)[1:])
        return Done(done.returncode, done.stdout, done.stderr)
    return _run(text, directory)


def opens_chat(text: str) -> bool:
    """Whether it waits for a typed message."""
    typed = words(text)
    if "mlxchat" not in typed:
        return False
    at = typed.index("mlxchat")
    arguments = typed[at + 1 :]
    if "|" in typed[:at] or "<" in arguments or NO_CHAT & set(arguments) or asks(arguments):
        return False
    return not arguments or arguments[0] == "chat" or arguments[0].startswith("-")


def asks(arguments: list[str]) -> bool:
    """Whether a question is among them: quoted, and not the value of an option."""
    before = ["", *arguments]
    return any(
        " " in word and each not in ("-s", "--system")
        for each, word in zip(before, arguments, strict=False)
    )


def needs_no_shell(text: str) -> bool:
    """Whether it is a single call of the program that ends by itself."""
    typed = words(text)
    bare = QUOTED_OR_COMMENT.sub("", text)
    if typed[0] != "mlxchat" or SHELLS_OWN.search(bare) or runs_until_stopped(text):
        return False
    return NEED_A_PROCESS.isdisjoint(typed)


def runs_until_stopped(text: str) -> bool:
    return bool(UNTIL_THE_MORNING & set(words(text)))


def _run(text: str, directory: Path) -> Done:
    out, err = directory.parent / "stdout", directory.parent / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        if runs_until_stopped(text):
            status = _run_until_it_writes(text, directory, stdout, stderr)
        else:
            with _started(text, directory, stdout, stderr) as process:
                status = process.wait(PATIENCE_S)
    return Done(status, _read(out), _read(err))


def _run_until_it_writes(text: str, directory: Path, stdout: IO[bytes], stderr: IO[bytes]) -> int:
    def written() -> int:
        files = sum(path.stat().st_size for path in directory.rglob("*.txt"))
        return files + os.fstat(stdout.fileno()).st_size

    before = written()
    deadline_s = time.monotonic() + PATIENCE_S
    unlimited = {"MLXCHAT_GENERATE_MAX_TOKENS": "-1"}
    with _started(text, directory, stdout, stderr, unlimited) as process:
        while written() <= before and process.poll() is None:
            assert time.monotonic() < deadline_s, f"it writes nothing: {text}"
            time.sleep(0.02)
        # The program itself, because the shell around it would not wait for it.
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).children(recursive=True):
                if "mlxchat" in each.cmdline():
                    each.terminate()
        return process.wait(PATIENCE_S)


@contextmanager
def _started(
    text: str,
    directory: Path,
    stdout: IO[bytes],
    stderr: IO[bytes],
    variables: Mapping[str, str] | None = None,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Kill all of it at the end."""
    process = subprocess.Popen(
        _script(text),
        cwd=directory,
        env=os.environ | (variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
            process.kill()
            process.wait()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _chat(text: str, directory: Path, message: str) -> Done:
    terminal = _terminal(text, directory)
    terminal.shows(PROMPT)
    # A resumed chat shows the last message, which may be the same.
    # A reply may begin with a combining mark, which the screen adds to the end of the line before.
    line = rf"^> {re.escape(message)}.*\n"
    said = len(re.findall(line, terminal.text(), re.MULTILINE)) + 1
    terminal.send(f"{message}\r")
    terminal.shows(rf"(?:{line}(?:.*\n)+?){{{said}}}>$")
    terminal.send(CTRL_D)
    return Done(terminal.ends(), terminal.written, "")


def _say_yes(text: str, directory: Path) -> Done:
    terminal = _terminal(text, directory)
    terminal.shows(r"\[[yY]/[nN]\]")
    terminal.send("y\r")
    return Done(terminal.ends(), terminal.written, "")


def _terminal(text: str, directory: Path) -> PseudoTerminal:
    return PseudoTerminal(_script(text), cwd=directory, lines=60, patience_s=PATIENCE_S)


def _script(text: str) -> list[str]:
    # A pipe fails if any of its programs fails. Without `exit`, bash would replace itself with the
    # last command instead of waiting for it.
    return ["bash", "-c", f"set -o pipefail\n{text}\nexit"]
