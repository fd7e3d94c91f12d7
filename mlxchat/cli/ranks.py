"""A command on several ranks: rank 0 runs it, the others follow."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxchat import platform
from mlxchat.cli.setup import Setup
from mlxchat.cli.signals import Terminated
from mlxchat.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from mlxchat.distributed.ranks import Ranks


def lead_or_follow(lead: "Callable[[Ranks | None], int]") -> int:
    """Run `lead` with the other ranks, or with None where there are none; on those, follow it.
    Returns the exit status. Raises RanksError where a rank is lost."""
    if platform.launched_rank() is None:
        return lead(None)
    from mlxchat.distributed.follow import follow
    from mlxchat.distributed.launcher import end_with_launcher
    from mlxchat.distributed.load import follow_loading
    from mlxchat.distributed.noise import hide_backend_messages
    from mlxchat.distributed.ranks import Ranks

    hide_backend_messages()
    if platform.launched_rank() == 0:
        end_with_launcher()
    ranks = Ranks.join()
    if ranks.size == 1:
        return lead(None)
    if not ranks.leads:
        # Rank 0 decides when it is over; where it is gone, its socket tells.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        follow(ranks, follow_loading)
        return ExitStatus.OK
    try:
        return lead(ranks)
    except (RuntimeError, Terminated) as error:
        if not ranks.is_loss(error):
            raise
        raise ranks.lost() from error
    finally:
        ranks.stop()


def check_ranks(setup: Setup, ranks: "Ranks | None", *, blocks: bool = False) -> None:
    """Raises UsageError for what one process cannot do, or several cannot."""
    if setup.pipeline and ranks is None:
        raise UsageError("--pipeline needs several ranks: mlx.launch -n 2 -- mlxchat …")
    if blocks and ranks is not None:
        raise UsageError("--block cannot be used under mlx.launch: give the documents with -f")
