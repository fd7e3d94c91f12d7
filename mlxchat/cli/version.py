"""`--version`, `-V` and `mlxchat version`: the installed versions, the device and the BLAS."""

from typing import Annotated

import typer

from mlxchat import platform
from mlxchat.about import __version__


def version() -> None:
    """Show the version and the device."""
    import importlib.metadata

    platform.require_supported_system()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlx", "mlx-lm"))
    typer.echo(f"mlxchat {__version__} ({versions})")
    typer.echo(f"backend {platform.backend_name()}, device {platform.device_name()}")
    typer.echo(f"BLAS {platform.blas_name()}")


def _show(context: typer.Context, wanted: bool) -> None:
    # A shell that completes a line must not run it.
    if wanted and not context.resilient_parsing:
        version()
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("-V", "--version", callback=_show, is_eager=True, help="Show the version"),
]
