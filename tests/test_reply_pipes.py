"""Each reply format through a pipe: no hidden thought and no marker reaches stdout."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app import opening
from mlxchat.models.model import Model
from tests.conftest import RunMlxchat
from tests.reply_formats import FORMATS
from tests.scripted_model import Scripted
from tests.scripted_program import WITHOUT_DRAFTS


@pytest.fixture(params=sorted(FORMATS))
def scripted(request: pytest.FixtureRequest) -> Scripted:
    return FORMATS[request.param]


@pytest.fixture
def run(
    scripted: Scripted, tiny_model: Path, run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> RunMlxchat:
    """Run the program with the scripted model, whatever directory it is given."""

    def load(*_: Any, **__: Any) -> Model:
        return scripted.model()

    monkeypatch.setattr(opening, "load_directory", load)
    for name, value in WITHOUT_DRAFTS.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, stdin: str | bytes | None = None) -> Any:
        done = run_mlxchat(*arguments, "-m", str(tiny_model), "--no-prefix-cache", stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        return done

    return run


def events(stdout: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, stdout.splitlines())


def test_events_separate_thoughts_from_answers(scripted: Scripted, run: RunMlxchat) -> None:
    *tokens, done = events(run("generate", "--json", "--think", "on", "hello").stdout)
    said = {
        thought: "".join(each["text"] for each in tokens if each.get("thought") is thought)
        for thought in (True, False)
    }
    assert said == {True: scripted.thought, False: scripted.answer}
    assert (done["thought"], done["text"]) == (scripted.thought, scripted.answer)
    *tokens, done = events(run("generate", "--json", "--think", "hide", "hello").stdout)
    assert not any(each.get("thought") for each in tokens)
    assert (done["thought"], done["text"]) == ("", scripted.answer)


def test_a_piped_chat_writes_only_answers_if_thoughts_are_hidden(
    scripted: Scripted, run: RunMlxchat
) -> None:
    done = run("--think", "hide", "--no-save", stdin="hello\nagain\n")
    assert done.stdout == f"{scripted.answer}\n" * 2
