import errno
import os
import random
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.errors import OutputError, UsageError
from mlxchat.store.output_file import OutputFile, Position, volume_path
from tests.conftest import examples
from tests.failing_disk import FailingDisk

CHARACTERS = "abc \n\té€😀"


def pieces_of(seed: int, count: int = 60, longest: int = 8) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choices(CHARACTERS, k=drawn.randint(0, longest))) for _ in range(count)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def text_of(directory: Path) -> str:
    """The text of all volumes; `cat OUT*.txt` would not do, since volume 0 has no number."""
    numbers = {path: re.findall(r"\.(\d{3,})\.", path.name) for path in directory.iterdir()}
    parts = sorted(numbers, key=lambda path: int((numbers[path] or ["0"])[0]))
    return b"".join(path.read_bytes() for path in parts).decode()


def write_all(path: Path, pieces: list[str], rotate_bytes: int | None = None) -> Position:
    with OutputFile.open(path, rotate_bytes=rotate_bytes) as output:
        for piece in pieces:
            output.write(piece)
        return output.sync()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    directory = tmp_path / "out"
    directory.mkdir()
    return directory / "OUT.txt"


@pytest.fixture
def disk(out: Path) -> Iterator[FailingDisk]:
    with FailingDisk(out.parent).used() as disk:
        yield disk


def test_text_is_in_the_file_immediately_as_utf8(out: Path) -> None:
    output = OutputFile.open(out)
    output.write("Grüße, ")
    assert out.read_bytes() == "Grüße, ".encode()
    output.write("")
    output.write("日本\r\n")
    assert out.read_bytes() == "Grüße, 日本\r\n".encode()
    assert output.total_bytes == output.position.bytes == len(out.read_bytes())
    output.close()
    output.close()


def test_an_unpaired_surrogate_becomes_a_question_mark_as_on_stdout(out: Path) -> None:
    write_all(out, ["a\ud800b"])
    assert out.read_text() == "a?b"


def test_the_file_has_ordinary_permissions(out: Path) -> None:
    before = os.umask(0o027)
    try:
        write_all(out, ["a"] * 20, rotate_bytes=16)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in out.parent.iterdir()] == [0o640] * 2


# Starting an output


def test_an_empty_file_can_be_used_and_any_other_is_refused(out: Path) -> None:
    out.touch()
    write_all(out, ["once"])
    with pytest.raises(OutputError) as raised:
        OutputFile.open(out)
    assert str(raised.value) == (
        f"{out} exists and is not empty: choose another name, or continue it with resume"
    )
    assert out.read_text() == "once"


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_a_file_that_is_being_written_is_refused(
    out: Path, link: Callable[[Path, Path], None] | None
) -> None:
    """Two runs with the same output mixed their texts, and both succeeded."""
    other = out
    with OutputFile.open(out) as output:
        if link is not None:
            link(other := out.with_name("link"), out)
        for position in (None, output.position):
            with pytest.raises(OutputError, match=f"^{other} is being written by another process"):
                OutputFile.open(other, position)
        output.write("mine")
    assert out.read_text() == "mine"


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.with_name("other").write_text("theirs")
    path.with_name("other").replace(path)


@pytest.mark.parametrize(
    ("lose", "name"), [(remove, "OUT.txt"), (replace, "OUT.txt.1")], ids=["removed", "replaced"]
)
@pytest.mark.parametrize("continues", [True, False])
def test_a_file_that_is_deleted_is_reported_and_its_text_saved(
    out: Path, lose: Callable[[Path], None], name: str, continues: bool
) -> None:
    """The run succeeded, and its text was gone."""
    output = OutputFile.open(out)
    output.write("so ")
    output.write("far")
    lose(out)
    with pytest.raises(OutputError) as error:
        output.write("more") if continues else output.end()
    assert (
        str(error.value)
        == f"{out} was deleted or replaced: the text so far is in {out.with_name(name)}"
    )
    assert out.with_name(name).read_text() == "so far"
    assert out.read_text() in ("so far", "theirs")
    output.close()


def test_a_deleted_file_that_cannot_be_saved_is_reported(out: Path) -> None:
    output = OutputFile.open(out)
    output.write("so far")
    shutil.rmtree(out.parent)
    with pytest.raises(
        OutputError, match=r"^cannot save the text of .*, which was deleted: No such"
    ):
        output.write("more")
    output.close()


def test_a_file_that_loses_its_name_is_reported_at_the_end(out: Path) -> None:
    """As with another name of a file that is deleted; while it can be written, the text counts."""
    with OutputFile.open(out) as output:
        out.rename(out.with_name("moved"))
        output.write("all")
        with pytest.raises(OutputError, match=r"OUT\.txt was moved or replaced"):
            output.end()
    assert files(out.parent) == {"moved": b"all"}


def test_a_file_that_another_program_writes_is_reported(out: Path) -> None:
    with OutputFile.open(out) as output:
        output.write("mine")
        with out.open("a") as other:
            other.write(" theirs")
        with pytest.raises(OutputError, match=r"OUT\.txt was changed by another program"):
            output.write("more")
    assert out.read_text() == "mine theirs"


def test_with_rotation_the_next_volumes_name_must_be_free(out: Path) -> None:
    next_volume = out.with_name("OUT.001.txt")
    next_volume.write_text("notes")
    with pytest.raises(OutputError) as raised:
        OutputFile.open(out, rotate_bytes=100)
    assert str(raised.value) == (
        f"{next_volume} exists, and this output might need the name: choose another name, or move "
        "that file away"
    )
    assert files(out.parent) == {"OUT.001.txt": b"notes"}
    write_all(out, ["without rotation it is not in the way"])


def test_a_volume_created_by_another_program_is_not_overwritten(out: Path) -> None:
    output = OutputFile.open(out, rotate_bytes=16)
    out.with_name("OUT.001.txt").write_text("notes")
    with pytest.raises(OutputError, match=r"cannot write .*OUT\.001\.txt: File exists"):
        output.write("a" * 20)
    assert files(out.parent) == {"OUT.001.txt": b"notes", "OUT.txt": b"a" * 16}
    output.close()


def test_a_directory_a_pipe_and_a_missing_directory_are_refused(out: Path) -> None:
    with pytest.raises(OutputError, match=f"^cannot write {out.parent}: it is a directory$"):
        OutputFile.open(out.parent)
    pipe = out.with_name("pipe")
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match=f"^cannot write {pipe}: not a regular file$"):
        OutputFile.open(pipe)
    nowhere = out.parent / "nowhere" / "OUT.txt"
    with pytest.raises(OutputError, match=f"^cannot write {nowhere}: No such file or directory$"):
        OutputFile.open(nowhere)


def test_volumes_too_small_for_a_character_are_refused(out: Path) -> None:
    with pytest.raises(UsageError, match="rotate_bytes must be at least 4 bytes"):
        OutputFile.open(out, rotate_bytes=3)


# Volumes


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("OUT.txt", ["OUT.txt", "OUT.001.txt", "OUT.002.txt", "OUT.1000.txt"]),
        ("night", ["night", "night.001", "night.002", "night.1000"]),
        ("a.b.md", ["a.b.md", "a.b.001.md", "a.b.002.md", "a.b.1000.md"]),
        (".out", [".out", ".out.001", ".out.002", ".out.1000"]),
    ],
)
def test_volumes_are_numbered_before_the_suffix(name: str, names: list[str]) -> None:
    assert [volume_path(Path("d") / name, part) for part in (0, 1, 2, 1000)] == [
        Path("d") / each for each in names
    ]


def test_a_volume_ends_after_the_first_line_end_in_its_last_sixteenth(out: Path) -> None:
    write_all(out, ["x" * 149 + "\n", "y\n", "z" * 100 + "\n"], rotate_bytes=160)
    assert files(out.parent) == {
        "OUT.001.txt": b"y\n" + b"z" * 100 + b"\n",
        "OUT.txt": b"x" * 149 + b"\n",
    }


def test_a_line_end_before_the_last_sixteenth_does_not_end_a_volume(out: Path) -> None:
    write_all(out, ["x" * 148 + "\n", "y" * 20], rotate_bytes=160)
    assert files(out.parent) == {
        "OUT.001.txt": b"y" * 9,
        "OUT.txt": b"x" * 148 + b"\n" + b"y" * 11,
    }


def test_without_a_line_end_a_volume_ends_after_its_last_whole_character(out: Path) -> None:
    write_all(out, ["€" * 10], rotate_bytes=17)
    assert files(out.parent) == {"OUT.001.txt": "€€€€€".encode(), "OUT.txt": "€€€€€".encode()}


def test_a_full_volume_has_no_successor_until_there_is_more_text(out: Path) -> None:
    write_all(out, ["x" * 16], rotate_bytes=16)
    assert list(files(out.parent)) == ["OUT.txt"]


@settings(max_examples=examples(25))
@given(rotate_bytes=st.integers(4, 200), seed=st.integers(0, 10**6))
def test_volumes_depend_on_the_text_and_not_on_its_pieces(
    tmp_path_factory: pytest.TempPathFactory, rotate_bytes: int, seed: int
) -> None:
    pieces, directory = pieces_of(seed), tmp_path_factory.mktemp("parts")
    found: list[dict[str, bytes]] = []
    text = "".join(pieces)
    for name, each in ("tokens", pieces), ("once", [text]), ("letters", list(text)):
        (directory / name).mkdir()
        with FailingDisk(directory).used():
            write_all(directory / name / "OUT.txt", each, rotate_bytes)
        found.append(files(directory / name))
    assert found[0] == found[1] == found[2]
    assert text_of(directory / "tokens") == text
    for content in found[0].values():
        assert len(content) <= rotate_bytes
        content.decode()


# Resuming


@settings(max_examples=examples(50))
@given(
    rotate_bytes=st.none() | st.integers(4, 300),
    seed=st.integers(0, 10**6),
    kills=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9)), max_size=4
    ),
)
def test_a_run_killed_and_resumed_anywhere_writes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory,
    rotate_bytes: int | None,
    seed: int,
    kills: list[tuple[int, int, int]],
) -> None:
    """Each run is (pieces up to its checkpoint, pieces after it, maximum bytes per write)."""
    pieces = pieces_of(seed)
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    at, done = None, 0
    with FailingDisk(killed).used() as disk:
        write_all(whole / "OUT.txt", pieces, rotate_bytes)
        for until_checkpoint, lost, disk.max_bytes in kills:
            output = OutputFile.open(killed / "OUT.txt", at, rotate_bytes)
            checkpoint = min(done + until_checkpoint, len(pieces))
            for piece in pieces[done:checkpoint]:
                output.write(piece)
            at, done = output.sync(), checkpoint
            for piece in pieces[done : done + lost]:
                output.write(piece)
            # As after a kill: none of our code runs any more, and the system closes the file.
            output.close()
        with OutputFile.open(killed / "OUT.txt", at, rotate_bytes) as output:
            for piece in pieces[done:]:
                output.write(piece)
    assert files(killed) == files(whole)


def resumable(out: Path, rotate_bytes: int | None = None) -> Position:
    """A run that was killed: "kept" up to its checkpoint, "lost" after it."""
    with OutputFile.open(out, rotate_bytes=rotate_bytes) as output:
        output.write("kept " * 2000)
        at = output.sync()
        output.write("lost " * 2000)
    return at


def test_text_after_the_position_is_removed(out: Path) -> None:
    at = resumable(out)
    with OutputFile.open(out, at) as output:
        assert out.read_text() == "kept " * 2000
        assert output.position == at
        output.write("new")
    assert out.read_text() == "kept " * 2000 + "new"


def test_later_volumes_are_removed_and_other_files_stay(out: Path) -> None:
    at = resumable(out, rotate_bytes=3000)
    others = [out.with_name(name) for name in ("OUT.01.txt", "OUT.009.txt", "OUT.004.md", "a.txt")]
    for other in others:
        other.write_text("mine")
    assert len(files(out.parent)) == 7 + len(others)
    OutputFile.open(out, at, rotate_bytes=3000).close()
    assert files(out.parent) == {other.name: b"mine" for other in others} | {
        "OUT.txt": b"kept " * 600,
        "OUT.001.txt": b"kept " * 600,
        "OUT.002.txt": b"kept " * 600,
        "OUT.003.txt": b"kept " * 200,
    }


def test_finished_volumes_may_be_moved_away_before_resuming(out: Path) -> None:
    at = resumable(out, rotate_bytes=3000)
    out.unlink()
    with OutputFile.open(out, at, rotate_bytes=3000) as output:
        output.write("!")
        assert output.volume_path.name == "OUT.003.txt"
    assert output.volume_path.read_text() == "kept " * 200 + "!"


def shorten(path: Path) -> None:
    os.truncate(path, 9_999)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def alter_the_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:9_999] + b"?" + path.read_bytes()[10_000:])


def insert_a_byte_far_before(path: Path) -> None:
    path.write_bytes(b"?" + path.read_bytes())


def replace_by_other_text(path: Path) -> None:
    path.write_text("other" * 4000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorten, "has only 9,999 of the checkpoint's 10,000 bytes: it has been changed"),
        (empty, "has only 0 of the checkpoint's 10,000 bytes: it has been changed since"),
        (alter_the_last_byte, "does not end with the text that the checkpoint continues: it has"),
        (insert_a_byte_far_before, "does not end with the text that the checkpoint continues: it"),
        (replace_by_other_text, "does not end with the text that the checkpoint continues: it has"),
    ],
)
def test_a_file_changed_since_is_refused_and_left_alone(
    out: Path, change: Callable[[Path], None], message: str
) -> None:
    at = resumable(out)
    change(out)
    before = files(out.parent)
    with pytest.raises(OutputError, match=message) as error:
        OutputFile.open(out, at)
    assert "\n" not in str(error.value)
    assert files(out.parent) == before


def test_a_changed_volume_is_refused_before_later_ones_are_removed(out: Path) -> None:
    at = resumable(out, rotate_bytes=3000)
    current = out.with_name("OUT.003.txt")
    current.write_bytes(current.read_bytes().replace(b"kept", b"Kept"))
    before = files(out.parent)
    with pytest.raises(OutputError, match=r"OUT\.003\.txt does not end with"):
        OutputFile.open(out, at, rotate_bytes=3000)
    assert files(out.parent) == before


def test_a_missing_file_is_refused_and_not_created(out: Path) -> None:
    at = resumable(out)
    out.unlink()
    with pytest.raises(OutputError) as raised:
        OutputFile.open(out, at)
    assert str(raised.value) == (f"{out} is missing, but the checkpoint continues it: restore it")
    assert not out.exists()


def test_a_directory_in_place_of_the_file_is_refused(out: Path) -> None:
    at = resumable(out)
    out.unlink()
    out.mkdir()
    with pytest.raises(OutputError, match="it is a directory"):
        OutputFile.open(out, at)


def test_a_foreign_file_with_the_name_of_a_later_volume_is_not_removed(out: Path) -> None:
    with OutputFile.open(out, rotate_bytes=3000) as output:
        output.write("kept")
        at = output.sync()
        output.write("lost")
    notes = out.with_name("OUT.001.txt")
    notes.write_text("notes")
    with pytest.raises(OutputError) as raised:
        OutputFile.open(out, at, rotate_bytes=3000)
    assert str(raised.value) == (
        f"{notes} was not written by this run, which needs the name: move it away"
    )
    assert files(out.parent) == {"OUT.001.txt": b"notes", "OUT.txt": b"keptlost"}


def test_a_link_with_the_name_of_a_later_volume_is_not_removed(out: Path) -> None:
    at = resumable(out, rotate_bytes=3000)
    link = out.with_name("OUT.005.txt")
    link.unlink()
    link.symlink_to("elsewhere.txt")
    with pytest.raises(OutputError, match="was not written by this run"):
        OutputFile.open(out, at, rotate_bytes=3000)
    assert link.is_symlink()


def test_without_rotation_files_named_like_volumes_are_left_alone(out: Path) -> None:
    at = resumable(out)
    out.with_name("OUT.001.txt").write_text("notes")
    OutputFile.open(out, at).close()
    assert out.with_name("OUT.001.txt").read_text() == "notes"


# Failing disks


def run(out: Path, pieces: list[str]) -> list[tuple[int, Position]]:
    """Write the pieces, with a checkpoint every tenth; return those made before the disk failed."""
    checkpoints: list[tuple[int, Position]] = []
    message = ""
    try:
        with OutputFile.open(out, rotate_bytes=60) as output:
            for done, piece in enumerate(pieces):
                if done % 10 == 0:
                    checkpoints.append((done, output.sync()))
                output.write(piece)
    except OutputError as error:
        message = str(error)
    assert re.fullmatch(r"|cannot write \S*OUT(\.\d{3})?\.txt: [^\n]+", message)
    return checkpoints


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT])
def test_after_any_failed_call_the_latest_checkpoint_can_be_resumed(
    tmp_path: Path, error: int
) -> None:
    pieces = pieces_of(seed=5)
    (tmp_path / "whole").mkdir()
    with FailingDisk(tmp_path).used() as disk:
        run(tmp_path / "whole" / "OUT.txt", pieces)
    assert set(disk.calls) == {"open", "write", "sync", "close"}
    for fails_at in range(len(disk.calls)):
        directory = tmp_path / f"{fails_at}"
        directory.mkdir()
        with FailingDisk(directory).used() as disk:
            disk.failing, disk.error, disk.max_bytes = [fails_at], error, 3
            checkpoints = run(directory / "OUT.txt", pieces)
        if not checkpoints:
            continue
        done, at = checkpoints[-1]
        with OutputFile.open(directory / "OUT.txt", at, 60) as output:
            for piece in pieces[done:]:
                output.write(piece)
        assert files(directory) == files(tmp_path / "whole"), f"{disk.calls[-1]} {fails_at}"


@pytest.mark.parametrize("fails_at", range(6))
def test_resuming_can_fail_at_any_call_and_be_retried(
    out: Path, disk: FailingDisk, fails_at: int
) -> None:
    at = resumable(out, rotate_bytes=3000)
    disk.calls.clear()
    disk.failing, disk.error = [fails_at], errno.EIO
    with pytest.raises(OutputError):
        OutputFile.open(out, at, 3000).close()
    calls = ["open", "unlink", "unlink", "unlink", "truncate", "close"][: fails_at + 1]
    # The opened file is closed, whatever failed.
    assert disk.calls == calls + ["close"] * (0 < fails_at < 5)
    disk.failing = ()
    OutputFile.open(out, at, 3000).close()
    assert text_of(out.parent) == "kept " * 2000
    assert len(files(out.parent)) == 4


def test_after_a_failure_nothing_is_written_and_no_position_returned(
    out: Path, disk: FailingDisk
) -> None:
    disk.failing = [2]
    output = OutputFile.open(out)
    output.write("one ")
    with pytest.raises(OutputError, match="No space left on device"):
        output.write("two ")
    for forbidden in (lambda: output.write("three"), output.sync, lambda: output.position):
        with pytest.raises(OutputError, match="an earlier write failed"):
            forbidden()
    output.close()
    assert out.read_text() == "one tw"


def test_a_write_of_zero_bytes_ends_the_run_too(out: Path, disk: FailingDisk) -> None:
    disk.max_bytes = 0
    with (
        pytest.raises(OutputError, match="no more data can be written"),
        OutputFile.open(out) as output,
    ):
        output.write("a")


def test_a_volume_is_forced_to_the_disk_before_the_next_one(out: Path, disk: FailingDisk) -> None:
    with OutputFile.open(out, rotate_bytes=16) as output:
        output.write("a")
        output.sync()
        output.write("b" * 16)
        output.sync()
    assert disk.calls == [
        *("open", "write", "sync"),
        *("write", "sync", "open", "close", "write", "sync", "close"),
    ]


def test_an_error_reported_only_on_close_is_raised(out: Path, disk: FailingDisk) -> None:
    disk.failing, disk.error = [2], errno.EDQUOT
    output = OutputFile.open(out)
    output.write("a")
    with pytest.raises(OutputError, match=f"^cannot write {out}: {os.strerror(errno.EDQUOT)}$"):
        output.close()
    output.close()


def test_a_failure_to_close_does_not_hide_an_earlier_one(out: Path, disk: FailingDisk) -> None:
    disk.failing = [1]
    with pytest.raises(ValueError, match="first"), OutputFile.open(out):
        raise ValueError("first")
