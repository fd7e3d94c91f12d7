"""The text of a long run in its file: whole after any kill, and nobody else's is touched."""

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat.errors import OutputError
from mlxchat.store.output_file import OutputFile, Position
from tests.failing_disk import FailingDisk


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "OUT.txt"


def test_text_is_in_the_file_immediately_as_utf8(out: Path) -> None:
    before = os.umask(0o027)
    try:
        output = OutputFile.open(out)
    finally:
        os.umask(before)
    output.write("Grüße, ")
    assert out.read_bytes() == "Grüße, ".encode()
    output.write("")
    output.write("日本\r\na\ud800b")
    assert out.read_bytes() == "Grüße, 日本\r\na?b".encode()
    assert output.sync().bytes == len(out.read_bytes())
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    output.close()
    output.close()


# Starting an output


def test_an_empty_file_can_be_used_and_any_other_is_refused(out: Path) -> None:
    out.touch()
    with OutputFile.open(out) as output:
        output.write("once")
    with pytest.raises(OutputError) as raised:
        OutputFile.open(out)
    assert str(raised.value) == f"{out} exists and is not empty: choose another name, or delete it"
    assert out.read_text() == "once"


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_a_file_in_use_is_refused(out: Path, link: Callable[[Path, Path], None] | None) -> None:
    """Two runs with the same output mixed their texts, and both succeeded."""
    other = out
    with OutputFile.open(out) as output:
        if link is not None:
            link(other := out.with_name("link"), out)
        for position in (None, output.sync()):
            with pytest.raises(OutputError, match=f"^{other} is being written by another process"):
                OutputFile.open(other, position)
        output.write("mine")
    assert out.read_text() == "mine"


def replace(path: Path) -> None:
    path.with_name("other").write_text("theirs")
    path.with_name("other").replace(path)


@pytest.mark.parametrize(
    ("harm", "message", "texts"),
    [
        (Path.unlink, "deleted or replaced: the text so far is in {}", {"OUT.txt": "so far"}),
        (
            replace,
            "deleted or replaced: the text so far is in {}.1",
            {"OUT.txt": "theirs", "OUT.txt.1": "so far"},
        ),
        # While a file can be written its text counts, so a lost name is an error at the end.
        (
            lambda path: path.rename(path.with_name("moved")),
            "moved or replaced: put its text back",
            {"moved": "so far, and more"},
        ),
        (lambda path: path.write_text(""), "changed by another program", {"OUT.txt": ""}),
    ],
)
def test_a_file_that_is_lost_or_changed_is_reported_and_its_text_saved(
    out: Path, harm: Callable[[Path], object], message: str, texts: dict[str, str]
) -> None:
    """The run succeeded, and its text was gone."""
    output = OutputFile.open(out)
    output.write("so ")
    output.write("far")
    harm(out)
    with pytest.raises(OutputError) as error:  # noqa: PT012
        output.write(", and more")
        output.end()
    assert str(error.value) == f"{out} was {message.format(out)}"
    output.close()
    assert {path.name: path.read_text() for path in out.parent.iterdir()} == texts


def test_only_an_ordinary_file_can_be_written(out: Path) -> None:
    pipe, nowhere = out.with_name("pipe"), out.parent / "nowhere" / "OUT.txt"
    os.mkfifo(pipe)
    for path, reason in (
        (out.parent, "it is a directory"),
        (pipe, "not a regular file: use > instead"),
        (nowhere, "No such file or directory"),
    ):
        with pytest.raises(OutputError, match=f"^cannot write {path}: {reason}$"):
            OutputFile.open(path)


# Resuming


OTHER = "does not have the text that the checkpoint continues"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "is missing, but the checkpoint continues it: restore it"),
        (lambda path: os.truncate(path, 9_999), OTHER),
        (lambda path: path.write_bytes(path.read_bytes()[:9_999] + b"?" * 500), OTHER),
        (lambda path: path.write_bytes(b"?" + path.read_bytes()), OTHER),
    ],
)
def test_a_file_changed_since_is_refused_and_left_alone(
    out: Path, change: Callable[[Path], None], message: str
) -> None:
    with OutputFile.open(out) as output:
        output.write("kept " * 2000)
        at = output.sync()
        output.write("lost " * 2000)
    change(out)
    before = out.read_bytes() if out.exists() else None
    with pytest.raises(OutputError, match=message):
        OutputFile.open(out, at)
    assert (out.read_bytes() if out.exists() else None) == before


# Failing disks


def run(out: Path, pieces: list[str]) -> tuple[list[tuple[int, Position]], str]:
    """Write pieces, with a checkpoint every tenth; return those before the disk failed, and why."""
    checkpoints: list[tuple[int, Position]] = []
    try:
        with OutputFile.open(out) as output:
            for done, piece in enumerate(pieces):
                if done % 10 == 0:
                    checkpoints.append((done, output.sync()))
                output.write(piece)
    except OutputError as error:
        return checkpoints, str(error)
    return checkpoints, ""


def test_any_failed_call_is_an_error_and_the_latest_checkpoint_can_be_resumed_again_and_again(
    tmp_path: Path,
) -> None:
    """A disk may report an error only on close. No empty file is left."""
    drawn = random.Random(5)
    pieces = ["".join(drawn.choices("abc \n\té€😀", k=drawn.randint(0, 8))) for _ in range(60)]
    with FailingDisk(tmp_path).used() as disk:
        assert run(tmp_path / "OUT.txt", pieces)[1] == ""
    assert set(disk.calls) == {"open", "write", "sync", "close"}
    for fails_at in range(len(disk.calls)):
        out = tmp_path / f"{fails_at}" / "OUT.txt"
        out.parent.mkdir()
        with FailingDisk(out.parent).used() as disk:
            disk.failing, disk.max_bytes = [fails_at], 3
            checkpoints, error = run(out, pieces)
        assert error == f"cannot write {out}: {os.strerror(errno.ENOSPC)}"
        assert not out.exists() or out.stat().st_size > 0
        if not checkpoints:
            continue
        # Resumed, killed after another checkpoint, and resumed again.
        done, at = checkpoints[-1]
        for end in (done + 5, len(pieces)):
            with OutputFile.open(out, at) as output:
                for piece in pieces[done:end]:
                    output.write(piece)
                done, at = end, output.sync()
                output.write("lost" if end < len(pieces) else "")
        assert out.read_bytes().decode() == "".join(pieces), f"{disk.calls[-1]} {fails_at}"
