"""`mlxchat session`: list, show and tidy saved chats. No model is loaded."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, complete_session, confirm
from mlxchat.errors import SessionError, UsageError
from mlxchat.request.written import parse_duration_s
from mlxchat.terminal.output import Messages, Stdout
from mlxchat.terminal.table import minute, write, write_finds, write_json_lines, write_table
from mlxchat.units import count, format_bytes

session_app = App(
    help="List, show, search, move and verify saved chats.",
    epilog="""\
Examples:
  mlxchat --session holidays
  mlxchat session list

They are all in one SQLite database that only you can read: mlxchat session path
""",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Session", autocompletion=complete_session)
]
All = Annotated[bool, typer.Option("--all", help="Include single questions")]
COLUMNS = ("NAME", "USED", "TURNS", "FIRST MESSAGE", "FORGOTTEN", "SIZE", "MODEL")
KEYS = ("name", "turns", "forgotten", "updated", "bytes", "first", "model", "open_in", "error")
NUMBERS = ("TURNS", "FORGOTTEN", "SIZE")


@session_app.command("list", epilog="Example: mlxchat session list --json")
def list_sessions(everything: All = False, as_json: Json = False) -> None:
    """List the sessions, most recently used first.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    from mlxchat.sessions.listing import listing

    found = listing(everything=everything)
    if as_json:
        write_json_lines({name: getattr(each, name) for name in KEYS} for each in found)
        return
    if not found:
        others = " or questions" if everything else "; --all lists single questions, too"
        Messages().note(f"no chats{others}")
    rows = [_row(each) for each in found]
    write_table(COLUMNS, rows, right_aligned=NUMBERS, cut=("FIRST MESSAGE", "MODEL"))


@session_app.command(epilog="Example: mlxchat session show holidays > holidays.md")
def show(name: Name, as_json: Json = False) -> None:
    """Print a session's transcript as Markdown, forgotten turns included."""
    from mlxchat.sessions.listing import read_session
    from mlxchat.sessions.transcript import as_markdown, messages_of

    saved = read_session(name)
    for notice in saved.notices:
        Messages().warn(notice)
    if as_json:
        write_json_lines(messages_of(saved.state))
    else:
        Stdout().write(as_markdown(saved.state))


@session_app.command(epilog="Example: mlxchat session rename 2026-11-21-143058 holidays")
def rename(name: Name, new: Annotated[str, typer.Argument(metavar="NEW", help="New name")]) -> None:
    """Rename a session."""
    from mlxchat.sessions.listing import rename as rename_session

    rename_session(name, new)
    write(f"renamed {name} to {new}\n")


@session_app.command(epilog="Example: mlxchat session rm holidays")
def rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Sessions", autocompletion=complete_session)
    ],
    yes: Yes = False,
) -> None:
    """Delete sessions permanently."""
    from mlxchat.sessions.listing import remove
    from mlxchat.sessions.session import Session

    found = dict[str, None]()
    # Nothing is deleted if one of them does not exist or is open.
    for name in names:
        with Session.open(name) as session:
            found[session.name] = None
    confirm(f"Permanently delete {', '.join(found)}?", yes=yes)
    remove(*found)
    write(f"deleted {', '.join(found)}\n")


@session_app.command(epilog="Example: mlxchat session prune --older-than 30d")
def prune(
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="How long ago they were last used, such as 12h")
    ] = "30d",
    everything: Annotated[bool, typer.Option("--all", help="Delete chats, too")] = False,
    yes: Yes = False,
) -> None:
    """Delete single questions that were last used long ago.

    With --all, chats, too. Sessions that are open stay.
    """
    from mlxchat.sessions.listing import remove, unused_since

    try:
        before_s = time.time() - parse_duration_s(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than {error}") from error
    if not (names := unused_since(before_s, everything=everything)):
        write("nothing to delete\n")
        return
    kind = "session" if everything else "single question"
    what = f"{count(len(names), kind)} last used before {minute(before_s)}"
    confirm(f"Permanently delete {what}?", yes=yes)
    # Some may have been continued meanwhile.
    names = unused_since(before_s, everything=everything)
    remove(*names)
    write(f"deleted {count(len(names), kind)}\n")


@session_app.command("import", epilog="Example: mlxchat session import holidays.jsonl")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Exported .jsonl file, - for stdin")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the session, instead of the file's")
    ] = None,
) -> None:
    """Make a session of a file that `session show NAME --json` or `/export` wrote."""
    from mlxchat.sessions.listing import import_messages

    file = Path("/dev/stdin") if str(file) == "-" else file
    name = file.stem if name is None else name
    write(f"imported {count(import_messages(file, name), 'turn')} as {name}\n")


@session_app.command(epilog='Example: sqlite3 "$(mlxchat session path)" "SELECT value FROM turns"')
def path() -> None:
    """Print the path of the database of all sessions."""
    from mlxchat.sessions.database import Database

    write(f"{Database().path}\n")


@session_app.command(epilog="Example: mlxchat session search whale song")
def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORD…", help="Words, or beginnings of words, in any case"),
    ],
    as_json: Json = False,
) -> None:
    """Search all sessions, forgotten turns included.

    Shows the turns that contain all the words, best first. The exit status is 1 if no turn does.
    """
    from mlxchat.sessions.listing import search as search_sessions

    finds = search_sessions(" ".join(words))
    if as_json:
        write_json_lines(asdict(find) for find in finds)
    else:
        rows = [(each.name, str(each.turn), each.role, each.line) for each in finds]
        titles = [f"{each.name} · turn {each.turn} · {each.role}" for each in finds]
        write_finds(rows, titles, [each.at for each in finds])
    if not finds:
        raise SessionError(f"no turn has the words {' '.join(words)!r}")


@session_app.command(epilog="Example: mlxchat session verify holidays")
def verify(name: Name) -> None:
    """Compare a session's saved cache with one computed from scratch.

    They differ slightly if turns were evicted: later turns were computed with those in view.
    """
    from mlxchat.app.verify import verify_session
    from mlxchat.terminal.progress import observer_of

    size_bytes, held_tokens, agreement = verify_session(name, observer_of(Messages()))
    write(
        f"{name}: {format_bytes(size_bytes)}, checksum right, "
        f"{count(held_tokens, 'token')} held\nfrom a fresh prefill of the same tokens:\n"
        f"  KL {agreement.kl:.2g} nats per token\n"
        f"  largest logit difference {agreement.logit_difference:.2g}\n"
        f"  same first choice at {agreement.same_choice} of {agreement.tokens} tokens\n"
    )


def _row(info: Any) -> tuple[str, ...]:
    first = info.name, minute(info.updated), info.turns, info.title[:60], info.forgotten
    return (*map(str, first), format_bytes(info.bytes), info.model or "")
