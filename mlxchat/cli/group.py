"""Typer's commands and groups, with help of our own: `--help` shows what people use, `--help-all`
everything."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from mlxchat.errors import ExitStatus

HELP_ALL = "--help-all"
HELP_NAMES = ("-h", "--help", HELP_ALL)


EVERYTHING = f"{__name__}.everything"


def summary(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    return (command.help or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")


def _show_help(context: typer.Context, option: Any, wanted: bool) -> None:
    # A shell that completes a line must not run it.
    if wanted and not context.resilient_parsing:
        _write_help(context, everything=HELP_ALL in option.opts)
        context.exit()


def _write_help(context: Any, *, everything: bool) -> None:
    from mlxchat.terminal.text_output import Stdout

    context.meta[EVERYTHING] = everything
    Stdout().write(context.get_help() + "\n")


def _help_options() -> list[Any]:
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(
        help_: Annotated[
            bool,
            typer.Option(
                *HELP_NAMES[:2],
                callback=_show_help,
                is_eager=True,
                expose_value=False,
                help="Show this page",
            ),
        ] = False,
        help_all: Annotated[
            bool,
            typer.Option(
                HELP_ALL,
                callback=_show_help,
                is_eager=True,
                expose_value=False,
                help="Show all options",
            ),
        ] = False,
    ) -> None:
        """Never run: Typer makes its parameters into options."""

    return typer.main.get_command(app).params


HELP_OPTIONS = _help_options()


class _Helped:
    """Common to commands and groups."""

    def get_help_option(self, ctx: Any) -> Any:
        return HELP_OPTIONS[0]

    def get_params(self, ctx: Any) -> Any:
        return [*super().get_params(ctx), HELP_OPTIONS[1]]  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)  # type: ignore[attr-defined]
        self.format_help_text(ctx, formatter)  # type: ignore[attr-defined]
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        command: Any = self
        sections: dict[str, list[tuple[str, str]]] = {
            "Commands": [],
            "Arguments": [],
            "Options": [],
        }
        for name, each in getattr(command, "commands", {}).items():
            sections["Commands"].append((name, summary(each)))
        for each in self.help_parameters(ctx):
            if isinstance(each, TyperArgument):
                sections["Arguments"].append((str(each.metavar), each.help or ""))
            elif ctx.meta.get(EVERYTHING) or self.is_common(each):
                sections["Options"].append(each.get_help_record(ctx))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples, and the rest if everything is shown. Nothing is wrapped."""
        command: Any = self
        examples, *rest = (command.epilog or "").rstrip("\n").split("\n\n")
        if not ctx.meta.get(EVERYTHING):
            rest = [f"All options and more: {ctx.command_path} {HELP_ALL}"]
        formatter.write("".join(f"\n{each}\n" for each in (examples, *rest)))

    def help_parameters(self, ctx: Any) -> list[Any]:
        """The parameters that help describes."""
        return self.get_params(ctx)

    def is_common(self, parameter: Any) -> bool:
        """Whether `--help` shows the parameter; its declaration may leave it to `--help-all`."""
        command: Any = self
        declared = getattr(command.callback, "declared", {}).get(parameter.name)
        return declared is None or declared.common

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except TyperException as error:
            # The parser leaves out which command it is.
            if getattr(error, "ctx", None) is None:
                vars(error)["ctx"] = ctx
            raise


class Command(_Helped, TyperCommand):
    """A command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        names = [f"{each.metavar}" if each.required else f"[{each.metavar}]" for each in arguments]
        return ["[OPTIONS]", *names]


class Group(_Helped, TyperGroup):
    """A command that has commands."""

    def get_params(self, ctx: Any) -> Any:
        """The options. A flag that is not given is False: given None, Typer imports pydantic to
        find out that it is a flag, which takes a third of the time of `--help`."""
        options = super().get_params(ctx)
        for option in options:
            if isinstance(option, TyperOption) and option.is_flag and option.default is None:
                option.default = False
        return options

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            _write_help(ctx, everything=False)
            ctx.exit(ExitStatus.USAGE)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """Typer's, whose groups and commands are ours."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": Command, **options})
