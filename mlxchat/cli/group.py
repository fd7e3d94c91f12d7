"""A command that has commands."""

from typing import Any

from typer.core import TyperGroup, TyperOption


class Group(TyperGroup):
    """Typer's, but quicker to the help of its commands."""

    def get_params(self, ctx: Any) -> Any:
        """The options. A flag that is not given is False: of None Typer cannot tell that it is
        one, and imports pydantic to find out, a third of the time that help takes."""
        options = super().get_params(ctx)
        for option in options:
            if isinstance(option, TyperOption) and option.is_flag and option.default is None:
                option.default = False
        return options
