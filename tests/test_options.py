"""Flags, help, variables and keys follow from an option's declaration, which refuses values."""

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.chat import Chat
from mlxchat.app.session import resumed
from mlxchat.cli.options import build
from mlxchat.errors import UsageError
from mlxchat.manual import read_page
from mlxchat.options import NEEDED, PAIRS, options_of, refuse_pairs
from mlxchat.request import Answer, BatchInput, ChatOptions, Overnight, Request, Setup
from mlxchat.request.batch import BatchRequest
from mlxchat.request.commands import COMMANDS, ChatShown
from mlxchat.sessions.session import Session
from mlxchat.settings import CacheSettings, GenerationSettings, Overflow, SamplingSettings
from tests.in_process import parameters


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_takes_an_invalid_value_and_it_says_which(command: str) -> None:
    for option in COMMANDS[command].values():
        if option.choices or option.type in (int, float, bool):
            with pytest.raises(UsageError, match=rf"^{option.flag} must be .*, got 'hot'$"):
                option.value_of("hot")
            with pytest.raises(UsageError, match=rf"^{option.flag} must be .*, got 2.5j$"):
                option.check(2.5j)
        if option.must is not None:
            wrong = Path("-") if option.type is Path else math.nan
            with pytest.raises(UsageError, match=rf"^{option.flag} must .*, got "):
                option.check("" if option.many or option.type is str else wrong)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_alias_sets_what_its_option_sets(command: str) -> None:
    for each in COMMANDS[command].values():
        for alias in each.aliases:
            assert f"`--{alias}`" in read_page("switching")
            assert parameters(command, f"--{alias}", "1") == parameters(command, each.flag, "1")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        *((kind, "generate") for kind in (Setup, Overnight, Request, GenerationSettings)),
        *((kind, "chat") for kind in (ChatOptions, GenerationSettings)),
    ],
)
def test_the_command_line_and_python_have_the_same_defaults(kind: type, command: str) -> None:
    """The window's default used to be written in three places."""
    made: Any = build(kind, parameters(command))
    for name in options_of(kind):
        assert getattr(made, name) == getattr(kind(), name)


def test_one_of_several_texts_and_a_choice_may_be_given_from_python_as_they_are() -> None:
    given: dict[str, Any] = {"stop": "euros", "files": Path("a.md"), "overflow": "map"}
    request = Request(prompt="a", setup=Setup(Path("m")), **given)  # type: ignore
    assert (request.stop, request.files) == (("euros",), ("a.md",))
    with pytest.raises(UsageError, match="--stop must not be empty"):
        GenerationSettings(stop=["euros", ""])  # type: ignore
    assert request.setup.model == "m"
    assert Request(prompt="a", blocks=(Path("b.md"),)).blocks == ("b.md",)  # type: ignore
    assert request.overflow is Overflow.MAP
    assert options_of(Overnight)["output"].value_of("~/x") == Path("~/x").expanduser()
    for name in ("temperature", "seed"):
        with pytest.raises(UsageError, match=f"unknown sampling option '{name}'"):
            Setup(sampling={name: 1})


def test_a_session_saves_options_declared_so_and_ignores_invalid_values(tiny_model: Path) -> None:
    """A window of -5 in a session's file kept the session from being resumed at all."""
    generation = GenerationSettings(max_tokens=1)
    options = ChatOptions(Setup(str(tiny_model), window=320, keep=0), generation=generation)
    with Chat.open(options, session="mine") as chat:
        assert list(chat.say("hello"))
    with Session.open("mine") as session:
        kept, declared = session.contents.settings, COMMANDS["chat"]
        others = {"note", "remembered", "cleared"}
        assert {*kept} - others == {n for n in declared if declared[n].saved}
        assert kept["window"] == 320
        for damaged in (
            {"window": -5, "dtype": True},
            {"window": "big", "dtype": "float8"},
            {"template_args": "[1]"},
        ):
            session.settings(damaged)
            assert resumed(options, session) == options
        # One that is only configured is for new sessions.
        for chosen, system in (("system",), "Be kind."), ((), None):
            asked = replace(options, system="Be kind.", chosen=frozenset(chosen))
            assert resumed(asked, session).system == system


KINDS = (Setup, Answer, Overnight, Request, BatchInput, ChatShown)


def with_values(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass with these of its options, unchecked."""
    made = object.__new__(kind)
    for name, each in options_of(kind).items():
        object.__setattr__(made, name, values.get(name, each.default))
    return made


def chosen(name: str) -> tuple[str, Any, str]:
    """The field that the table means by the name, a value that counts, and how messages name it."""
    field, _, value = name.partition("=")
    each = next(found[field] for kind in KINDS if field in (found := options_of(kind)))
    if value:
        return field, Overflow(value), f"{each.flag} {value}"
    return field, not each.default, f"--no-{each.name}" if each.default else each.flag


@pytest.mark.parametrize(("one", "other"), [(one, x) for one, others, _ in PAIRS for x in others])
def test_options_that_exclude_each_other_are_refused_by_name(one: str, other: str) -> None:
    for name in {one, other} - NEEDED.keys():
        field, value, _ = chosen(name)
        refuse_pairs(*(with_values(kind, {field: value}) for kind in KINDS))
    values = {field: value for field, value, _ in (chosen(one), chosen(other))}
    with pytest.raises(UsageError) as refused:
        refuse_pairs(*(with_values(kind, values) for kind in KINDS))
    assert all(chosen(name)[2] in str(refused.value) for name in (one, other))


def test_the_parts_of_a_request_are_compared_with_each_other(tmp_path: Path) -> None:
    overnight = Overnight(checkpoint=tmp_path / "night")
    for refused in (
        lambda: Request(prompt="a", raw=True, answer=Answer(prefill="So")),
        lambda: Request(prompt="a", answer=Answer(prefill="So"), overnight=overnight),
        lambda: Request(Setup(chat_template=tmp_path), "a", overnight=overnight),
        lambda: BatchRequest(Setup(chat_template=tmp_path), raw=True),
        lambda: BatchInput(lines=True, csv=True),
        lambda: Answer(regex="a", choice=("b",)),
        lambda: Overnight(until=datetime(2099, 1, 1), lasting_s=1),
        lambda: refuse_pairs(GenerationSettings(min_tokens=5), constraint="regex"),
        lambda: ChatShown(session="mine", latest=True),
        lambda: ChatShown(session="mine", save=False),
    ):
        with pytest.raises(UsageError, match=r"cannot be combined|--raw bypasses"):
            refused()


# Settings


def test_the_window_is_larger_than_what_is_kept() -> None:
    with pytest.raises(UsageError, match=r"^a window of 4 tokens leaves no room"):
        CacheSettings(max_kv_size=4, keep=4)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"top_p": 0.9}, ["--top-p has no effect while --temp is 0"]),
        # Off, as by default.
        ({"top_p": 1.0, "top_k": 0, "temp": 0.0}, []),
        ({"dry_base": 2.0}, ["--dry-base has no effect while --dry-multiplier is 0"]),
        ({"dry_base": 2.0, "dry_multiplier": 0.8}, []),
    ],
)
def test_a_chosen_value_without_effect_is_named(values: dict[str, Any], named: list[str]) -> None:
    assert [*SamplingSettings(**values).without_effect(values)] == named
