"""`--version`: what is installed, and what it computes with."""

from typing import Annotated

import typer

from mlxchat import platform
from mlxchat.about import __version__


def _show(context: typer.Context, wanted: bool) -> None:
    # A shell that completes what follows --version does not want to know.
    if not wanted or context.resilient_parsing:
        return
    import importlib.metadata

    platform.require_supported_system()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlx", "mlx-lm"))
    typer.echo(f"mlxchat {__version__} ({versions})")
    typer.echo(f"backend {platform.backend_name()}, device {platform.device_name()}")
    typer.echo(f"BLAS {platform.blas_name()}")
    raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", callback=_show, is_eager=True, help="Show versions, device and BLAS, and exit."
    ),
]
