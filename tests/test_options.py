"""Flags, help, variables and keys follow from one declaration of an option, and an invalid value is
refused when it is given."""

import re
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mlxchat import cli
from mlxchat.app.chat import Chat
from mlxchat.app.session import resumed
from mlxchat.cli.options import build, with_options
from mlxchat.errors import UsageError
from mlxchat.options import (
    PAIRS,
    at_least,
    check_options,
    flag,
    option,
    options_of,
    refuse_pairs,
    same_as,
)
from mlxchat.request import Answer, BatchInput, ChatOptions, Overnight, Request, Setup
from mlxchat.request.batch import BatchRequest
from mlxchat.request.commands import COMMANDS, ChatShown
from mlxchat.sessions.session import Session
from mlxchat.settings import (
    CacheSettings,
    GenerationSettings,
    Overflow,
    SamplingSettings,
    recommended,
)
from mlxchat.terminal.commands import SETTABLE

ROOT: Any = typer.main.get_command(cli.app)
DECLARED = [
    (command, name, each) for command, options in COMMANDS.items() for name, each in options.items()
]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Planted:
    """One option of each kind."""

    length_m: float = option(1.5, "How long it is.", must=at_least(0.5))
    colour: Colour = option(Colour.RED, "Its colour.", name="paint", short="p")
    kind: str = option("a", "Its kind.", choices=("a", "b"))
    labels: tuple[str, ...] = option((), "What it is called.")
    fast: bool = option(True, "Whether it is fast.")
    born: datetime | None = option(None, "When.", parse=datetime.fromisoformat)

    def __post_init__(self) -> None:
        check_options(self)


def planted(*arguments: str) -> Planted:
    """The options as parsed by a command."""
    app = typer.Typer()
    made: list[Planted] = []

    @app.command()
    @with_options(options_of(Planted))
    def command(**values: Any) -> None:
        made.append(build(Planted, values))

    done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, UsageError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return made[0]


def test_each_kind_of_option_is_read_as_its_fields_type() -> None:
    written = ["--length-m", "2", "-p", "blue", "--kind=b", "--labels", "x", "--labels", "y"]
    assert planted(*written, "--no-fast", "--born", "2026-11-22") == Planted(
        2.0, Colour.BLUE, "b", ("x", "y"), False, datetime(2026, 11, 22)
    )


@pytest.mark.parametrize(
    ("field", "value", "written", "wrong"),
    [
        ("length_m", 0.1, "--length-m=0.1", "must be at least 0.5, got 0.1"),
        ("kind", "c", None, "must be one of a, b, got 'c'"),
        ("born", None, "--born=now", "Invalid isoformat string: 'now'"),
    ],
)
def test_an_invalid_value_is_refused_in_python_and_on_the_command_line(
    field: str, value: Any, written: str | None, wrong: str
) -> None:
    message = re.escape(f"{options_of(Planted)[field].flag} {wrong}")
    if value is not None:
        with pytest.raises(UsageError, match=f"^{message}$"):
            Planted(**{field: value})
    if written is not None:
        with pytest.raises(UsageError, match=f"^{message}$"):
            planted(written)


def test_an_option_shared_by_two_dataclasses_is_declared_in_one() -> None:
    @dataclass
    class Other:
        length_m: float = same_as(Planted, "length_m", help="How long the other is.")

    ours, theirs = options_of(Other)["length_m"], options_of(Planted)["length_m"]
    assert (ours.default, ours.must) == (theirs.default, theirs.must)
    assert Other().length_m == 1.5


def test_a_declared_option_becomes_a_flag_with_help_and_heading() -> None:
    for command, name, declared in DECLARED:
        parameter = next(each for each in ROOT.commands[command].params if each.name == name)
        assert f"--{declared.name}" in parameter.opts
        assert {f"-{declared.short}"} - {"-"} <= {*parameter.opts}
        assert parameter.help == declared.help


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        *((kind, "generate") for kind in (Setup, Overnight, Request, GenerationSettings)),
        *((kind, "chat") for kind in (ChatOptions, GenerationSettings)),
    ],
)
def test_the_command_line_and_python_have_the_same_defaults(kind: type, command: str) -> None:
    """The window's default used to be written in three places."""
    context = ROOT.make_context("mlxchat", [command])
    written = ROOT.commands[command].make_context(command, [], parent=context).params
    made: Any = build(kind, written)
    for name in options_of(kind):
        assert getattr(made, name) == getattr(kind(), name)


def test_every_sampling_option_can_be_set_in_chat_and_recommended() -> None:
    names = {each.name for each in options_of(SamplingSettings).values()}
    assert names <= {*SETTABLE}
    config: dict[str, float] = dict.fromkeys([*options_of(SamplingSettings), "temperature"], 1)
    config["xtc_threshold"] = 0.25
    # A bias is for a token, whatever the model's makers recommend.
    assert {*recommended(config), "seed", "logit_bias"} == {*options_of(SamplingSettings)}


@pytest.fixture
def chat_options(tiny_model: Path) -> ChatOptions:
    """A chat whose session "mine" has a turn."""
    options = ChatOptions(
        Setup(str(tiny_model), window=320, keep=0),
        generation=GenerationSettings(max_tokens=1, ignore_eos=True),
    )
    with Chat.open(options, session="mine") as chat:
        assert list(chat.say("hello"))
    return options


def test_a_session_saves_the_options_declared_so(chat_options: ChatOptions) -> None:
    with Session.open("mine") as session:
        kept = session.contents.settings
    assert {*kept} == {name for name, each in COMMANDS["chat"].items() if each.saved}
    assert kept["window"] == 320


def test_an_invalid_value_in_a_session_is_ignored(chat_options: ChatOptions) -> None:
    """A window of -5 in a session's file kept the session from being resumed at all."""
    for damaged in (
        {"window": -5, "dtype": True},
        {"window": "big", "dtype": "float8"},
        {"template_args": "[1]"},
        {"template_args": "{"},
    ):
        with Session.open("mine") as session:
            session.settings(damaged)
            assert resumed(chat_options, session) == chat_options
    with Chat.open(chat_options, session="mine") as chat:
        assert chat.conversation.turns[0].user == "hello"


def of_kind(kind: type, **values: Any) -> Any:
    """A dataclass with these of its fields set, unchecked."""
    made = object.__new__(kind)
    for each in fields(kind):
        object.__setattr__(made, each.name, values.get(each.name, DEFAULTS.get(each.name)))
    return made


KINDS = (Setup, Answer, Overnight, Request, BatchInput, ChatShown)
DEFAULTS = {name: each.default for kind in KINDS for name, each in options_of(kind).items()}


def chosen(name: str) -> tuple[str, Any, str]:
    """The field that the table means by the name, a value that counts, and how messages name it."""
    field, _, value = name.partition("=")
    each = next(found[field] for kind in KINDS if field in (found := options_of(kind)))
    if value:
        return field, Overflow(value), f"{each.flag} {value}"
    return field, not each.default, f"--no-{each.name}" if each.default else each.flag


@pytest.mark.parametrize(
    ("one", "other"), [(one, other) for one, others, _ in PAIRS for other in others]
)
def test_options_that_exclude_each_other_are_refused_by_name(one: str, other: str) -> None:
    for name in (one, other):
        field, value, _ = chosen(name)
        refuse_pairs(*(of_kind(kind, **{field: value}) for kind in KINDS))
    values = {field: value for field, value, _ in (chosen(one), chosen(other))}
    with pytest.raises(UsageError) as refused:
        refuse_pairs(*(of_kind(kind, **values) for kind in KINDS))
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


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (CacheSettings, {"max_kv_size": 0}),
        (CacheSettings, {"max_kv_size": 4, "keep": 4}),
        (CacheSettings, {"prefill_step_size": 0}),
        (SamplingSettings, {"temp": -0.1}),
        (SamplingSettings, {"temp": float("nan")}),
        (SamplingSettings, {"top_p": 1.1}),
        (SamplingSettings, {"seed": -1}),
        (SamplingSettings, {"seed": 2**64}),
        (GenerationSettings, {"max_tokens": 0}),
        (GenerationSettings, {"stop": ("",)}),
    ],
)
def test_an_invalid_value_is_refused_naming_its_field(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        kind(**values)
    assert str(error.value).split()[0] in {flag(name) for name in values}


def test_only_a_models_own_settings_are_recommended() -> None:
    assert recommended({}) == {}
    assert recommended({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "x": 1}) == {
        "temp": 0.6,
        "top_p": 0.95,
        "top_k": 20,
    }
    assert recommended({"do_sample": False, "temperature": 0.6}) == {"temp": 0.0}
    assert recommended({"temperature": "hot", "top_p": None}) == {}


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"top_p": 0.9}, ["--top-p has no effect while --temp is 0"]),
        # Off, as by default.
        ({"top_p": 1.0, "top_k": 0, "temp": 0.0}, []),
        (
            {"xtc_threshold": 0.2, "temp": 1},
            ["--xtc-threshold has no effect while --xtc-probability is 0"],
        ),
        ({"dry_base": 2.0, "dry_multiplier": 0.8}, []),
        ({"repetition_penalty": 1.1, "seed": 7, "logit_bias": ("1=2",)}, []),
    ],
)
def test_a_chosen_value_without_effect_is_named(
    values: dict[str, Any], messages: list[str]
) -> None:
    assert [*SamplingSettings(**values).without_effect(values)] == messages
