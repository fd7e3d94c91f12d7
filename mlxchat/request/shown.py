"""Options that only the command line has: what a command shows, and which session a chat uses."""

from dataclasses import dataclass

from mlxchat import request
from mlxchat.errors import UsageError
from mlxchat.options import Panel, option, same_as


@dataclass(frozen=True, slots=True)
class Shown:
    """The notices and figures that a run shows; `stats` None means only on a terminal."""

    quiet: bool = option(False, "Show no progress, warnings or statistics", Panel.OUTPUT, short="q")
    stats: bool | None = option(
        None,
        "Show statistics on stderr at the end",
        Panel.OUTPUT,
        if_unset="on a terminal",
    )


@dataclass(frozen=True, slots=True)
class ChatShown:
    """Which session a chat uses, what it begins with, and what it shows."""

    latest: bool = option(
        False,
        "Continue the last session",
        Panel.SESSION,
        common=True,
        name="continue",
        short="c",
        negatable=False,
    )
    session: str | None = option(
        None,
        "Continue or create the session NAME",
        Panel.SESSION,
        common=True,
        metavar="NAME",
        if_unset="a new one",
        completes="session",
    )
    save: bool = option(True, "Save the chat as a session", Panel.SESSION, common=True)
    files: tuple[str, ...] = same_as(
        request.Request, "files", help="Attach a file, folder or pattern; repeatable", if_unset=None
    )
    plain: bool = option(False, "Show replies as plain text, not Markdown", Panel.OUTPUT)
    events: bool = same_as(request.Request, "events")
    quiet: bool = same_as(Shown, "quiet")
    stats: bool = same_as(
        Shown,
        "stats",
        default=False,
        help="Show statistics on stderr after each reply",
        if_unset=None,
    )

    def __post_init__(self) -> None:
        chosen = ["--continue"] if self.latest else []
        chosen += ["--session"] if self.session is not None else []
        if not self.save:
            chosen.append("--no-save")
        if len(chosen) > 1:
            raise UsageError(f"{chosen[0]} cannot be combined with {chosen[1]}")
