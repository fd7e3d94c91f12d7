"""Runs the program on several ranks, which all do the same; only rank 0 is seen and heard."""

import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from mlxchat import platform
from mlxchat.distributed import Ranks
from mlxchat.errors import DeviceError, MlxchatError, RanksError, UsageError
from mlxchat.models.model import ALONE, Alone
from mlxchat.options import flag


def run_on_ranks(
    program: Callable[[Alone], int],
    on_follow: Callable[[], object],
    in_thread: Callable[[Callable[[], Any]], Any],
) -> int:
    """Run the program with the ranks, if this process is one of several, and return its status; on
    another than the first, call `on_follow` before, and return 0. `in_thread` does a job in the
    thread in which the program computes.

    Raises RanksError if a rank is lost, and DeviceError on the rank whose device fails.
    """
    if platform.launched_rank() is None:
        return program(ALONE)
    ranks: Ranks = in_thread(Ranks.join)
    try:
        with ranks.watchdog.losses():
            if ranks.leads:
                return program(ranks)
            on_follow()
            _follow(program, ranks)
            return 0
    finally:
        in_thread(ranks.stop)


def _follow(program: Callable[[Alone], int], ranks: Ranks) -> None:
    with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(null):
        try:
            program(ranks)
        except MlxchatError as error:
            # Rank 0 finds and reports the others, and may simply exit until a model is loaded.
            is_own = isinstance(error, RanksError | DeviceError) and not ranks.watchdog.is_off
            if is_own and not ranks.is_stopped:
                raise


def check_ranks(
    ranks: Alone,
    *,
    pipeline: bool = False,
    blocks: bool = False,
    drafts: bool = False,
    adapter: bool = False,
    template: bool = False,
    constraint: str | None = None,
    overflow: str | None = None,
) -> None:
    """Raises UsageError for options that need several processes, or exactly one."""
    if pipeline and ranks.size == 1:
        raise UsageError("--pipeline needs several ranks: start it with mlx.launch")
    alone = {
        "--lookup": drafts,
        "--adapter": adapter,
        "--chat-template": template,
        flag(constraint or ""): constraint is not None,
        "--overflow map": overflow == "map",
        "--block": blocks,
    }
    for name, is_given in alone.items():
        if is_given and ranks.size > 1:
            instead = ": give the documents with --file" if name == "--block" else ""
            raise UsageError(f"{name} cannot be used under mlx.launch{instead}")
