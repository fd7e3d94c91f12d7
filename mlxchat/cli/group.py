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


# In a context's `meta` while its options are shown: whether these are all.
SHOWN = f"{__name__}.shown"


def help_page(context: Any, *, everything: bool) -> str:
    """The help of the context's command."""
    context.meta[SHOWN] = everything
    return f"{context.get_help()}\n"


def _exit_with_help(context: Any, status: int = ExitStatus.OK, *, everything: bool) -> None:
    from mlxchat.terminal.output import Stdout

    Stdout().write(help_page(context, everything=everything))
    context.exit(status)


def _show_help(context: typer.Context, option: Any, wanted: bool) -> None:
    # A shell that completes a line must not run it.
    if wanted and not context.resilient_parsing:
        _exit_with_help(context, everything=HELP_ALL in option.opts)


def _help_option(*names: str, text: str) -> Any:
    return typer.Option(*names, callback=_show_help, is_eager=True, expose_value=False, help=text)


def summary(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    return (command.help or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")


def _is_argument(parameter: Any) -> bool:
    return isinstance(parameter, TyperArgument)


def _help_options() -> list[Any]:
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(
        help_: Annotated[bool, _help_option(*HELP_NAMES[:2], text="Show this page")] = False,
        help_all: Annotated[bool, _help_option(HELP_ALL, text="Show all options")] = False,
    ) -> None:
        """Never run: Typer makes its parameters into options."""

    return typer.main.get_command(app).params


HELP_OPTIONS = _help_options()


class _Helped:
    """Common to commands and groups. The declaration of an option may leave it to `--help-all`."""

    def get_help_option(self, ctx: Any) -> Any:
        return HELP_OPTIONS[0]

    def get_params(self, ctx: Any) -> Any:
        parameters = [*super().get_params(ctx), HELP_OPTIONS[1]]  # type: ignore[misc]
        declared = getattr(self.callback, "declared", {})  # type: ignore[attr-defined]
        for each in parameters:
            is_common = each.name not in declared or declared[each.name].common
            each.hidden = not (is_common or ctx.meta.get(SHOWN))
        return parameters

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        ctx.meta[SHOWN] = True
        return super().shell_complete(ctx, incomplete)  # type: ignore[misc]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown: Any = [each for each in self.get_params(ctx) if not each.hidden]
        commands = getattr(self, "commands", {})
        sections = {
            "Commands": [(name, summary(each)) for name, each in commands.items()],
            "Arguments": [(each.metavar, each.help) for each in shown if _is_argument(each)],
            "Options": [each.get_help_record(ctx) for each in shown if not _is_argument(each)],
        }
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples, and the rest if everything is shown. Nothing is wrapped."""
        command: Any = self
        examples, *rest = (command.epilog or "").rstrip("\n").split("\n\n")
        if not ctx.meta.get(SHOWN):
            rest = [f"All options and more: {ctx.command_path} {HELP_ALL}"]
        formatter.write("".join(f"\n{each}\n" for each in (examples, *rest)))

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
        arguments = list(filter(_is_argument, self.params))
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
            _exit_with_help(ctx, ExitStatus.USAGE, everything=False)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """Typer's, whose groups and commands are ours."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, "rich_markup_mode": None, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": Command, **options})
