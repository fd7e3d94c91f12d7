"""Files that survive a crash, a full disk or a power cut: atomic writes, locks, appended lines.

All durable writing, locking and syncing goes through here; the callers decide what the files
contain. Read `atomic` first.
"""

from mlxchat.files.atomic import (
    by_use,
    prune,
    remove_unfinished,
    replacing,
    write_atomically,
)
from mlxchat.files.disk import (
    append_line,
    check_not_lfs_pointer,
    force_to_disk,
    json_line,
    make_private_directory,
    open_file,
    open_to_append,
    open_to_read,
    reported_as,
    sync_directory,
    write_all,
)
from mlxchat.files.lock import Lock, exclusive, holder, is_at, open_locked

__all__ = [
    "Lock",
    "append_line",
    "by_use",
    "check_not_lfs_pointer",
    "exclusive",
    "force_to_disk",
    "holder",
    "is_at",
    "json_line",
    "make_private_directory",
    "open_file",
    "open_locked",
    "open_to_append",
    "open_to_read",
    "prune",
    "remove_unfinished",
    "replacing",
    "reported_as",
    "sync_directory",
    "write_all",
    "write_atomically",
]
