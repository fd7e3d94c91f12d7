"""`mlxchat "question"`: one answer, saved like any chat; and what is not taken for a question."""

import shlex
from pathlib import Path

import pytest

from mlxchat.sessions.listing import listing, read_session
from tests.conftest import RunMlxchat


@pytest.fixture(autouse=True)
def default_model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCHAT_MODEL", str(tiny_model))
    monkeypatch.setenv("MLXCHAT_CHAT_MAX_TOKENS", "5")
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "0")


def asked() -> list[list[str]]:
    """What the user said in every session, the latest session first."""
    return [[turn.user for turn in read_session(each.name).turns] for each in listing()]


def test_a_question_is_answered_once_and_only_the_reply_is_on_stdout(
    run_mlxchat: RunMlxchat,
) -> None:
    done = run_mlxchat("Why is the sky blue?")
    assert (done.returncode, done.stderr) == (0, "")
    (session,) = listing()
    (turn,) = read_session(session.name).turns
    assert turn.user == "Why is the sky blue?"
    assert done.stdout == turn.reply + "\n" * (not turn.reply.endswith("\n"))


def test_continue_asks_in_the_last_session_and_saves_there(run_mlxchat: RunMlxchat) -> None:
    for arguments in (["one question"], ["-c", "another question"], ["a third one", "-c"]):
        assert run_mlxchat(*arguments).returncode == 0
    assert asked() == [["one question", "another question", "a third one"]]


def test_a_piped_document_goes_before_the_question(run_mlxchat: RunMlxchat) -> None:
    assert run_mlxchat("Summarize", stdin="A report.\n").returncode == 0
    assert run_mlxchat("Any errors?", stdin="").returncode == 0
    # A word that is close to a command is not a question there either.
    assert run_mlxchat("cht", stdin="A report.\n").returncode == 2
    assert asked() == [["Any errors?"], ["A report.\n\n\nSummarize"]]


def test_a_dash_reads_the_question_itself_from_a_pipe(
    run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """Without it, each line of the pipe is a turn."""
    (tmp_path / "a.md").write_text("One.")
    done = run_mlxchat("-", "-f", str(tmp_path / "a.md"), stdin="Who?\nAnd why?\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert asked() == [[f"# {tmp_path}/a.md\n\nOne.\n\nWho?\nAnd why?\n"]]
    assert "pipe" in run_mlxchat("-").stderr


def test_a_file_that_cannot_be_read_is_reported_before_a_model_is_loaded(
    run_mlxchat: RunMlxchat,
) -> None:
    done = run_mlxchat("-m", "no-such-model", "-f", "missing.md", "a question")
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing.md" in done.stderr
    assert listing() == []


NOT_ASKED = [
    # What is typed, and the beginning and the end of the error.
    ("hello", "unknown command 'hello'; to ask it, use `mlxchat chat \"hello\"`"),
    ("cht", "unknown command 'cht' (did you mean `mlxchat chat`?); to ask it, use `mlxchat chat…"),
    ("pull qwen3", "unknown command 'pull' (did you mean `mlxchat models pull`?); …"),
    ("run smollm2", "unknown command 'run' (use mlxchat --model); …"),
    ("serve", "unknown command 'serve' (mlxchat has none: there is no server); …"),
    ("modles list --all", "unknown command 'modles' (did you mean `mlxchat models`?); …"),
    ("-n 3 hello", "unknown command 'hello'; …"),
    ("-q doctor", "unknown command 'doctor' (did you mean `mlxchat doctor`?); …"),
    ("'models list'", "unknown command 'models list' (did you mean `mlxchat models list`?); …"),
    ("why is it so", "unknown command 'why'; to ask it, use `mlxchat chat \"why is it so\"`"),
    ("chat why so", 'quote the question: mlxchat chat "why so"'),
    ("''", "the question is empty"),
    ("chat '  '", "the question is empty"),
    ("smollm2", "smollm2 is a model or a path: to chat with a model, use `mlxchat -m smollm2`…"),
    ("a.md", "a.md is a model or a path: …"),
    (
        "'-5 + 3 is what?'",
        "no such option: -5; before a question that begins with a dash, put -- …",
    ),
    ("'a question' --xyzzy", "no such option: --xyzzy (see mlxchat --help)"),
]


@pytest.mark.parametrize(("line", "error"), NOT_ASKED)
def test_words_that_are_not_a_question_are_refused_with_a_hint(
    line: str,
    error: str,
    run_mlxchat: RunMlxchat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistyped command must not load a model and be answered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("One.")
    (tmp_path / "model").mkdir()
    done = run_mlxchat(*shlex.split(line))
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"mlxchat: error: {error}".split("…")[0]
    assert done.stderr.startswith(expected)
    assert error.endswith("…") or done.stderr == f"{expected}\n"
    assert listing() == []


def test_files_go_before_the_first_turn_of_a_pipe(run_mlxchat: RunMlxchat, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("One.")
    done = run_mlxchat("chat", "-f", str(tmp_path / "a.md"), stdin="Who?\nWhy?\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert asked() == [[f"# {tmp_path}/a.md\n\nOne.\n\nWho?", "Why?"]]
    refused = run_mlxchat("chat", "-f", "-", stdin="Who?\n")
    assert (refused.returncode, refused.stderr) == (
        2,
        "mlxchat: error: --file - needs a QUESTION: without one, stdin holds the turns\n",
    )
