"""Messages: the spelling of settings and commands for each kind of reader."""

import ast
import copy
import pickle
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import mlxchat
from mlxchat import cli
from mlxchat.errors import MlxchatError, OutputError, UsageError
from mlxchat.request import Overnight, Request, Setup
from mlxchat.settings import CacheSettings, GenerationSettings, Roll, SamplingSettings
from mlxchat.terminal.commands import SETTABLE, _set
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.spelling import as_flags, as_keys, in_chat
from mlxchat.wording import Action, Field, Message
from tests.conftest import RunMlxchat

PULL = Action("pull", "download it", "org/tiny")
CLEAR = Action("clear", "start a new conversation")

SPELLINGS = [
    # Name, then its spelling in Python, on the command line, in a configuration file, in a chat.
    (Field("schema"), "schema", "--schema", "schema", "/schema"),
    (Field("keep"), "keep", "--keep", "keep", "--keep"),
    (Field("top_p"), "top_p", "--top-p", "top-p", "top-p"),
    (Field("temp", 0.5), "temp=0.5", "--temp 0.5", "temp = 0.5", "/set temp 0.5"),
    (
        *(Field("roll", Roll.SHIFT), "roll='shift'", "--roll shift", 'roll = "shift"'),
        "/set roll shift",
    ),
    (
        *(Field("max_kv_size", None), "max_kv_size=None", "--max-kv-size none"),
        *('max-kv-size = "none"', "--max-kv-size none"),
    ),
    (Field("raw", True), "raw=True", "--raw", "raw = true", "--raw"),
    (
        *(Field("pipeline", False), "pipeline=False", "--no-pipeline", "pipeline = false"),
        "--no-pipeline",
    ),
    (
        *(Field("resume", Path("/a b")), "resume='/a b'", "--resume '/a b'"),
        *('resume = "/a b"', "--resume '/a b'"),
    ),
    (Field("files"), "files", "--file", "file", "--file"),
    (Field("template_args"), "template_args", "--template-arg", *["template-arg"] * 2),
    (Field("events", True), "events=True", "--json", "json = true", "--json"),
    (PULL, "download it", *["run `mlxchat models pull org/tiny`"] * 3),
    (CLEAR, *["start a new conversation"] * 3, "/clear"),
]


@pytest.mark.parametrize(("name", "python", "flag", "key", "chat"), SPELLINGS)
def test_a_name_is_spelled_as_its_reader_would_type_it(
    name: Field | Action, python: str, flag: str, key: str, chat: str
) -> None:
    message = Message("use ", name, " instead")
    assert message == f"use {python} instead"
    assert as_flags(message) == f"use {flag} instead"
    assert as_keys(message) == f"use {key} instead"
    assert in_chat(message, SETTABLE) == f"use {chat} instead"


def test_nothing_in_a_message_is_interpreted() -> None:
    """Paths and user input may contain braces, percent signs and text that looks like a name."""
    path = "/tmp/{keep} %s \\1 Field('keep') max_kv_size $0"
    message = Message(f"{path}: ", Field("keep"))
    assert as_flags(message) == f"{path}: --keep"
    assert as_flags(path) == path


def test_a_message_inside_another_keeps_its_names() -> None:
    inner = UsageError(Field("keep"), " must not be negative")
    outer = OutputError("a.toml: ", inner, OSError(Message("; ", Field("temp"))), ValueError("x"))
    assert str(outer) == "a.toml: keep must not be negative; tempx"
    assert as_flags(outer) == "a.toml: --keep must not be negative; --tempx"
    assert as_flags(OSError(28, "no room")) == "[Errno 28] no room"


def test_a_copied_error_keeps_its_names() -> None:
    error = UsageError(Field("keep"), " must not be negative")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(again), as_flags(again)) == (str(error), as_flags(error))


REFUSED: list[tuple[str, Any, str]] = [
    ("keep", -1, "must not be negative, got -1"),
    ("max_kv_size", 0, "must be at least 1 token, got 0"),
    ("prefill_step_size", 0, "must be at least 1 token, got 0"),
    ("temp", -1.0, "must be 0 or more, got -1.0"),
    ("top_p", 0.0, "must be above 0 and at most 1, got 0.0"),
    ("top_k", -1, "must be 0 (off) or more, got -1"),
    ("min_p", 2.0, "must be between 0 and 1, got 2.0"),
    ("repetition_penalty", 0.0, "must be above 0 (1 is off), got 0.0"),
    ("seed", -1, "must be between 0 and 2^64 - 1, got -1"),
    ("max_tokens", 0, "must be at least 1, or -1 for no limit, got 0"),
    ("stop", ("",), "must not be empty, got ''"),
    ("logprobs", -1, "must not be negative, got -1"),
]


@pytest.mark.parametrize(("field", "value", "wrong"), REFUSED)
def test_a_setting_is_refused_by_its_field_in_python(field: str, value: Any, wrong: str) -> None:
    (kind,) = [
        kind
        for kind in (CacheSettings, SamplingSettings, GenerationSettings)
        if field in {each.name for each in fields(kind)}
    ]
    with pytest.raises(UsageError) as refused:
        kind(**{field: value})
    assert str(refused.value) == f"{field} {wrong}"


@pytest.mark.parametrize(("field", "value", "wrong"), REFUSED)
def test_a_setting_is_refused_by_its_flag_on_the_command_line_and_its_key_in_a_file(
    run_mlxchat: RunMlxchat, field: str, value: Any, wrong: str
) -> None:
    option = field.replace("_", "-")
    typed = "" if field == "stop" else str(value)
    done = run_mlxchat("generate", "-m", "smollm2", "--json", f"--{option}={typed}", "Hello")
    assert (done.returncode, done.stderr) == (2, f"mlxchat: error: --{option} {wrong}\n")
    done = run_mlxchat("config", "set", f"generate.{option}", typed)
    assert done.returncode == 2
    assert done.stderr == f"mlxchat: error: generate.{option}: {option} {wrong}\n"


@pytest.mark.parametrize("option", sorted({*SETTABLE} - {"template-arg"}))
def test_every_option_spelled_as_set_in_chat_can_be_set(option: str) -> None:
    changed: dict[str, Any] = {}
    conversation = SimpleNamespace(
        sampling=SamplingSettings(),
        generation=GenerationSettings(),
        roll=Roll.SHIFT,
        recalls=0,
        recalls_sessions=False,
        template_args={},
    )
    shown: Any = SimpleNamespace(
        ready_chat=lambda: SimpleNamespace(set=changed.update),
        screen=SimpleNamespace(say=print),
        conversation=conversation,
    )
    values = {
        "roll": "shift",
        "lookup": "on",
        "recall-sessions": "on",
        "xtc-threshold": "0.2",
        "logit-bias": "5=1",
    }
    _set(shown, f"{option} {values.get(option, '1')}")
    assert list(changed) == [SETTABLE[option].field]


REQUESTS: list[tuple[Callable[[], object], str, str]] = [
    # A refused call, and its message in Python and on the command line.
    (
        lambda: Request(logprobs=3),
        "logprobs needs events=True: plain text cannot include log-probabilities",
        "--logprobs needs --json: plain text cannot include log-probabilities",
    ),
    (
        lambda: Request(raw=True, template_args={"a": 1}),
        "think and template_args need the chat template, which raw bypasses",
        "--think and --template-arg need the chat template, which --raw bypasses",
    ),
    (
        lambda: Request(blocks=("a.md",), setup=Setup(prefix_cache=False)),
        "blocks needs the prefix cache: use prefix_cache=True",
        "--block needs the prefix cache: use --prefix-cache",
    ),
    (
        lambda: Overnight(until=datetime.now(), lasting_s=1),
        "until and lasting_s cannot be combined",
        "--until and --for cannot be combined",
    ),
]


@pytest.mark.parametrize(("refused", "python", "flags"), REQUESTS)
def test_a_request_is_refused_by_fields_in_python_and_flags_on_the_command_line(
    refused: Callable[[], object], python: str, flags: str
) -> None:
    with pytest.raises(UsageError) as error:
        refused()
    assert (str(error.value), as_flags(error.value)) == (python, flags)


def options(command: Any) -> set[str]:
    """Every option and argument of a command and its subcommands, as typed."""
    own = {each for parameter in command.params for each in parameter.opts}
    own |= {each for parameter in command.params for each in parameter.secondary_opts}
    inner = getattr(command, "commands", {}).values()
    return own.union(*(options(each) for each in inner))


def named_fields() -> set[str]:
    """The names in all literal `Field(…)` calls in the program."""
    calls = (
        node
        for path in Path(mlxchat.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    arguments = [call.args[0] for call in calls if call.func.id == "Field" and call.args]  # pyright: ignore[reportAttributeAccessIssue]
    return {str(each.value) for each in arguments if isinstance(each, ast.Constant)}


def test_every_field_named_in_a_message_is_an_option() -> None:
    """`lasting_s` would be `--lasting-s`, which no command takes."""
    typed = options(typer.main.get_command(cli.app)) | {"PROMPT"}
    assert len(named_fields()) > 20
    assert {as_flags(Field(name)) for name in named_fields()} <= typed


def test_a_chat_spells_errors_for_chat(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(SETTABLE)
    screen.complain(UsageError(Field("temp"), " must be 0 or more, got -1.0"))
    screen.say(Message("full: ", CLEAR, " or ", Field("roll", Roll.SHIFT)))
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["temp must be 0 or more, got -1.0", "full: /clear or /set roll shift"]


def test_every_error_takes_words() -> None:
    assert as_flags(MlxchatError("no ", Field("temp"))) == "no --temp"
    assert str(MlxchatError()) == ""
