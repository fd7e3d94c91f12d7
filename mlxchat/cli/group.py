"""Typer's commands and groups with plain help: `--help` shows what people use, `--help-all`
everything; and `mlxchat help`: pages of the manual, or the options of a command."""

from collections.abc import Callable
from copy import copy
from difflib import get_close_matches
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from mlxchat import manual
from mlxchat.errors import UsageError
from mlxchat.terminal.output import wrap
from mlxchat.terminal.table import write, write_finds

HELP_ALL = "--help-all"
HELP_NAMES = ("-h", "--help", HELP_ALL)

# What commands are called elsewhere, and here: the first that the group has.
OTHER_NAMES = {
    "ls": ("list", "show"),
    "logs": ("list",),
    "list": ("show",),
    "get": ("show", "info"),
    "show": ("info",),
    "unset": ("set --unset",),
    "mv": ("rename",),
    "remove": ("rm",),
    "delete": ("rm",),
    "export": ("show --json",),
}

# Arguments may begin with a dash: a negative number, a flag to search for.
DASHES = {"ignore_unknown_options": True}
EPILOG = """\
Examples:
  mlxchat help
  mlxchat help window
  mlxchat help repeats itself
"""


def summary(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    return (command.help or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")


class _Plain:
    """Common to commands and groups. The declaration of an option may leave it to `--help-all`."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return [*HELP_NAMES]

    def get_params(self, ctx: Any) -> Any:
        """Those that show something and exit are False if they are not given: given None, Typer
        imports pydantic, which takes a third of the time of `--help`."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            if not each.expose_value and each.is_flag:
                each.default = False
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[HELP_ALL] = HELP_ALL in args
        ctx.terminal_width = max(min(get_terminal_size().columns, 80) - 2, 20)
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def described(self, ctx: Any) -> list[Any]:
        """The parameters in help."""
        command: Any = self
        declared = getattr(command.callback, "declared", {})
        return [
            each
            for each in command.get_params(ctx)
            if ctx.meta[HELP_ALL] or each.name not in declared or declared[each.name].common
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands, shown = getattr(self, "commands", {}), self.described(ctx)
        arguments = [each for each in shown if isinstance(each, TyperArgument)]
        sections = {
            "Commands": [(name, summary(each)) for name, each in commands.items()],
            "Arguments": [(each.metavar, each.help) for each in arguments],
            "Options": [each.get_help_record(ctx) for each in shown if each not in arguments],
        }
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=min(30, formatter.width * 2 // 5))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples, and the rest if everything is shown. Nothing is wrapped."""
        command: Any = self
        examples, *rest = (command.epilog or "").rstrip("\n").split("\n\n")
        if not ctx.meta[HELP_ALL]:
            is_all = not rest and len(self.described(ctx)) == len(command.get_params(ctx))
            rest = [f"More: {ctx.command_path} {HELP_ALL}"] * (not is_all)
        formatter.write("".join(f"\n{each}\n" for each in (examples, *rest)))


class Command(_Plain, TyperCommand):
    """A command. Its options also have their `aliases`, which neither help nor Tab shows."""

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        declared = getattr(self.callback, "declared", {})
        for each in self.params:
            if each.name in declared and declared[each.name].aliases:
                other = copy(each)
                other.opts = [f"--{name}" for name in declared[each.name].aliases]
                other.add_to_parser(parser, ctx)
        return parser

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments: list[Any] = [each for each in self.params if isinstance(each, TyperArgument)]
        names = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
        return ["[OPTIONS]", *names]


class Group(_Plain, TyperGroup):
    """A command that has commands; without one, it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Also what they are called elsewhere."""
        return super().resolve_command(ctx, [*self.ours(args[0]), *args[1:]])

    def ours(self, name: str) -> list[str]:
        """What a command that is called so elsewhere is here, if it is one."""
        meant = (each for each in OTHER_NAMES.get(name, ()) if each.split()[0] in self.commands)
        return [name] if name in self.commands else next(meant, name).split()


class App(typer.Typer):
    """Typer's, whose groups and commands are ours."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, "rich_markup_mode": None, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": Command, **options})


def complete_topic(context: typer.Context, incomplete: str) -> list[str | tuple[str, str]]:
    root: Any = context.find_root().command
    return [*((name, manual.summary(name)) for name in manual.PAGES), *root.commands]


Topic = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PAGE",
        help="Page of the manual, command, or words to search for",
        autocompletion=complete_topic,
    ),
]


def help_(context: typer.Context, topic: Topic = None) -> None:
    """Show a page of the manual, list all pages, or search them.

    If there is no page for a command, its options are shown. Other words are searched for in all
    pages. Pages open in $PAGER, or less.
    """
    root: Any = context.find_root().command
    words = " ".join(topic or ()).split()
    group = root.commands.get(words[0].lower()) if words else None
    names, found = [each for each in words[1:] if each[0] != "-"], manual.search(" ".join(words))
    in_group = isinstance(group, Group) and names and group.ours(names[0])[0] in group.commands
    if not words:
        more = (
            "`mlxchat help PAGE` shows a page, `mlxchat help WORDS` what the pages say of words, "
            "`mlxchat COMMAND --help` options."
        )
        columns = get_terminal_size().columns
        pages = [wrap(f"  {name:<17}{manual.summary(name)}", columns, 19) for name in manual.PAGES]
        write("\n".join(["Pages:", *pages, "", more, ""]))
    elif len(words) == 1 and words[0].lower() in manual.PAGES:
        from mlxchat.terminal.table import show_page

        show_page(manual.read_page(words[0].lower()))
    elif group is not None and (in_group or not (names and (found or isinstance(group, Group)))):
        root.main([words[0].lower(), *names, "--help"], prog_name="mlxchat", standalone_mode=False)
    elif found:
        pages, _, places = zip(*found, strict=True)
        write_finds([each[:2] for each in found], pages, places)
    else:
        near = get_close_matches(words[0], [*manual.PAGES, *root.commands], n=1)
        hint = f"did you mean `mlxchat help {near[0]}`?" if near else "see `mlxchat help`"
        raise UsageError(f"nothing in the manual about {' '.join(words)!r}; {hint}")
