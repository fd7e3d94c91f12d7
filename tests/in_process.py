"""Runs the program in this process, which saves half a second of imports."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer

from mlxchat import cli, paths


def run_in_process(
    *arguments: str, stdin: str | bytes | None = None
) -> "subprocess.CompletedProcess[str]":
    """Call `main` with files as standard streams; returns exit status, stdout and stderr.

    Use a real process to test anything that ends one, or that only a new one has: signals, closed
    streams, variables read when modules are imported.
    """
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        stdout, stderr = Path(directory, "stdout"), Path(directory, "stderr")
        patch.setattr(sys, "argv", ["mlxchat", *arguments])
        patch.setattr(cli, "_exit", sys.exit)
        with (
            _stdin_file(directory, stdin).open(encoding="utf-8") as read,
            stdout.open("w", encoding="utf-8") as written,
            stderr.open("w", encoding="utf-8") as errors,
        ):
            for name, stream in {"stdin": read, "stdout": written, "stderr": errors}.items():
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        texts = [path.read_bytes().decode() for path in (stdout, stderr)]
    status = ended.value.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, *texts)


def run_quietly(*arguments: str, stdin: str | bytes | None = None) -> str:
    """Check that the program succeeds and writes nothing to stderr; returns its stdout."""
    done = run_in_process(*arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def write_config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def parameters(command: str, *arguments: str) -> dict[str, Any]:
    """The parameters with which the command would run."""
    program: Any = typer.main.get_command(cli.app)
    root = program.make_context("mlxchat", [command])
    return program.commands[command].make_context(command, list(arguments), parent=root).params


def _stdin_file(directory: str, data: str | bytes | None) -> Path:
    if data is None:
        return Path(os.devnull)
    path = Path(directory, "stdin")
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
