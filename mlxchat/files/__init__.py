"""Files that survive a crash, a full disk or a power cut. Nothing else opens one to write what is
to last, locks it or forces it to the disk; what is in a file is its user's business."""

from mlxchat.files.append import AppendFile, append_line, open_to_append
from mlxchat.files.atomic import remove_unfinished, write_atomically
from mlxchat.files.disk import (
    force_to_disk,
    make_private_directory,
    open_file,
    open_to_read,
    reported_as,
    sync_directory,
    write_all,
)
from mlxchat.files.lock import Lock, alone, holder

__all__ = [
    "AppendFile",
    "Lock",
    "alone",
    "append_line",
    "force_to_disk",
    "holder",
    "make_private_directory",
    "open_file",
    "open_to_append",
    "open_to_read",
    "remove_unfinished",
    "reported_as",
    "sync_directory",
    "write_all",
    "write_atomically",
]
