"""`mlxchat cache`: prompts and documents whose keys and values are kept on the disk."""

from mlxchat import paths
from mlxchat.cli.group import App
from mlxchat.cli.options import Yes, agrees
from mlxchat.errors import OutputError
from mlxchat.files import reported_as
from mlxchat.terminal.table import write
from mlxchat.units import format_bytes

cache_app = App(
    help="Manage the prefix cache of long prompts and blocks.",
    epilog="""\
Examples:
  mlxchat generate -f report.txt "Who wrote this?"
  mlxchat cache size

It holds up to 4 GB; --no-prefix-cache of chat and generate turns it off.
""",
)


@cache_app.command(epilog="Example: mlxchat cache size")
def size() -> None:
    """Show how much the cache holds, and where it is."""
    from mlxchat.store.tensor_file import CacheFiles

    directory = paths.prefix_cache_dir()
    with reported_as(OutputError, f"use {directory}"):
        write(f"{format_bytes(CacheFiles(directory).size_bytes())} in {directory}\n")


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear(yes: Yes = False) -> None:
    """Delete all prefixes and blocks."""
    from mlxchat.store.tensor_file import CacheFiles

    files = CacheFiles(paths.prefix_cache_dir())
    with reported_as(OutputError, f"use {files.directory}"):
        held = format_bytes(files.size_bytes())
        if agrees(f"Delete the whole cache, {held}?", yes=yes):
            files.prune(-1)
            write(f"deleted {held}\n")
