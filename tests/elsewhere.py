"""Programs that use the sessions of a test in processes of their own; and a kill without one."""

import shutil
import subprocess
import sys

from mlxchat import paths
from mlxchat.sessions.session import Session

START = """
import os, resource, signal, sqlite3, sys
from pathlib import Path
from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import backup
from mlxchat.sessions.listing import listing
from mlxchat.sessions.session import Session

directory = Path(sys.argv[1])
paths.sessions_dir = lambda: directory
"""


def elsewhere(program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program that knows `directory`, and the names that tests of sessions need."""
    command = [sys.executable, "-c", START + program, str(paths.sessions_dir()), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run_elsewhere(program: str, *arguments: str) -> tuple[int, str]:
    """The exit status, and what was printed."""
    process = elsewhere(program, *arguments)
    printed, _ = process.communicate()
    return process.returncode, printed


def kill(session: Session) -> None:
    """Close it, and leave the files as a kill would have at this moment."""
    directory = paths.sessions_dir()
    killed = directory.with_name("killed")
    shutil.copytree(directory, killed)
    session.close()
    shutil.rmtree(directory)
    killed.rename(directory)
