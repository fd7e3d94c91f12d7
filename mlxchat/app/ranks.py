"""Runs the program on several ranks: rank 0 leads, the others follow."""

from collections.abc import Callable
from typing import Any, TypeVar

from mlxchat import platform
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import UsageError
from mlxchat.options import flag

T = TypeVar("T")


def lead_or_follow(
    lead: Callable[[Ranks | None], T],
    on_follow: Callable[[], object] = lambda: None,
    in_thread: Callable[[Callable[[], Any]], Any] = lambda job: job(),
) -> T | None:
    """Call `lead` with the ranks, or with None in a single process. On the other ranks, call
    `on_follow`, follow rank 0 to the end, and return None. `in_thread` does a job in the thread in
    which `lead` computes.

    Raises RanksError if a rank is lost.
    """
    if platform.launched_rank() is None:
        return lead(None)
    ranks: Ranks = in_thread(Ranks.join)
    if ranks.size == 1:
        return lead(None)
    if not ranks.leads:
        on_follow()
        in_thread(ranks.follow)
        return None
    try:
        with ranks.watchdog.losses():
            return lead(ranks)
    finally:
        in_thread(ranks.stop)


def check_ranks(
    ranks: Ranks | None,
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
    if pipeline and ranks is None:
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
        if is_given and ranks is not None:
            instead = ": give the documents with --file" if name == "--block" else ""
            raise UsageError(f"{name} cannot be used under mlx.launch{instead}")
