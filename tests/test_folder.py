"""`-f` with folders and patterns: which files are read, in which order, and what is left out."""

import os
from pathlib import Path

import pytest

from mlxchat.errors import InputError
from mlxchat.text.documents import files_in, read_input

SHOWN = ["a.md", "a.py", "b.py", "sub/c.py", "sub/deep/d.py", "sub-d/e.py"]


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `src` in the working directory, which is the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b.py", *SHOWN, ".env", ".git/config"):
        path = Path("src", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")


def found(path: str) -> list[str]:
    return [each.split("src/", 1)[1] for each in files_in(path) or []]


@pytest.mark.parametrize(
    ("path", "files"),
    [
        *(("src", SHOWN), ("src/*", ["a.md", "a.py", "b.py"]), ("src/*.py", ["a.py", "b.py"])),
        *(("src/[!b].py", ["a.py"]), ("src/**/*.py", SHOWN[1:]), ("**/d.py", ["sub/deep/d.py"])),
        ("src/sub*/?.py", ["sub/c.py", "sub-d/e.py"]),
        ("src/.git", [".git/config"]),
        ("src/.*", [".env"]),
        ("~/*/a.*", ["a.md", "a.py"]),
        # Those that a shell hides were read below a name with a dot; this was a traceback.
        ("src/sub/../*", ["sub/../a.md", "sub/../a.py", "sub/../b.py"]),
        ("src/**.py", ["a.py", "b.py"]),
    ],
)
def test_files_are_found_as_by_a_shell_in_the_order_of_names(path: str, files: list[str]) -> None:
    assert found(path) == files


def test_circles_of_links_end_and_links_to_files_are_read() -> None:
    Path("src/sub/a[1]*.py").write_text("text of a.py")
    Path("src/up").symlink_to("..")
    Path("src/sub/self").symlink_to("self")
    Path("src/link.py").symlink_to("a.py")
    Path("src/gone.py").symlink_to("nowhere")
    assert "link.py" in found("src")
    assert found("src/**/c.py") == ["sub/c.py"]
    read = read_input(None, ["src"], None)
    assert read.text.count("text of a.py") == 3
    assert files_in("src/sub/a[1]*.py") is None
    assert read.notices == (
        "left out 2 files: src/gone.py (No such file or directory), "
        "src/sub/self (Too many levels of symbolic links)",
    )


def test_what_is_not_text_is_left_out_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxchat.text.documents.MAX_NAMED", 3)
    Path("src/a.png").write_bytes(b"\x89PNG\0")
    Path("src/b.txt").write_text("text", encoding="utf-16")
    Path("src/c\nd.txt").write_text(" \n")
    os.mkfifo("src/e")
    Path("src/f.png").write_bytes(b"\0")
    read = read_input(None, ["src"], None)
    assert "PNG" not in read.text
    assert read.notices == (
        "left out 5 files: src/a.png (binary), src/b.txt (UTF-16), src/c\\nd.txt (empty), 2 more",
    )


@pytest.mark.parametrize("path", ["empty", "src/*.rs", "a\n*"])
def test_nothing_found_is_an_error_that_names_it(path: str) -> None:
    Path("empty/sub").mkdir(parents=True)
    Path("empty/.env").write_text("secret")
    with pytest.raises(InputError) as raised:
        read_input("Why?", [path], None)
    error = "the folder has no files, or only hidden ones" if path == "empty" else "no file matches"
    assert str(raised.value) == f"{path}: {error}".replace("\n", "\\n")
