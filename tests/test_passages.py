"""Passages of large documents: split without loss, found by what a question asks, read back."""

import codecs
import io
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxchat.errors import InputError
from mlxchat.passages import index as index_module
from mlxchat.passages.index import (
    MAX_BYTES,
    Outdated,
    PassageIndex,
    find_index,
    make_index,
    open_index,
    split,
)
from mlxchat.passages.search import Found, Search, quoted
from mlxchat.text.documents import READ_BYTES, Document, open_documents, read_input

FILLER = "The committee met on the usual day and talked about the budget at some length. "


OPEN: list[Document | PassageIndex] = []
NOTICES: list[str] = []


@pytest.fixture(autouse=True)
def close_everything() -> Iterator[None]:
    yield
    NOTICES.clear()
    while OPEN:
        OPEN.pop().close()


def opened(files: Sequence[str], stdin: BinaryIO | None = None) -> list[Document]:
    documents = list(open_documents(files, stdin, NOTICES.append, needs_pipe=not files))
    OPEN.extend(documents)
    return documents


def document_of(data: bytes) -> Document:
    return opened([], io.BytesIO(data))[0]


def indexed(document: Document) -> PassageIndex:
    OPEN.append(index := open_index([document], None, ignore, print))
    return index


def ignore(done: int, total: int) -> None: ...


def paragraphs(*texts: str) -> str:
    return "\n\n".join(texts)


def report(facts: dict[int, str], length: int = 60) -> str:
    """Paragraphs of filler, with facts in some of them."""
    return paragraphs(*(f"{FILLER * 3}{facts.get(n, '')}" for n in range(length)))


def search_in(*texts: str) -> Search:
    documents = [document_of(text.encode()) for text in texts]
    return Search([indexed(document) for document in documents])


def found(search: Search, question: str, room: int = 1_000) -> Found:
    return search.find(question, room, lambda passage: len(passage.text))


TEXTS = st.lists(
    st.sampled_from(
        ["\n", "\n\n", "word ", "A sentence. ", "x" * 700, "漢字。", "é" * 301, "\r\n"]
    ),
    max_size=30,
).map("".join)


@given(TEXTS.filter(str.strip))
@example("\n\n  a\n\n\nb " * 400)
@example("漢" * 1_000)
def test_passages_are_the_document_but_for_the_blank_lines_between_them(text: str) -> None:
    data = text.encode()
    done = 0
    for span, piece in split(document_of(data)):
        assert data[span.start : span.end] == piece
        assert not data[done : span.start].strip()
        assert len(piece) <= MAX_BYTES
        assert "�" not in piece.decode("utf-8", "replace")
        assert span.first_line == data[: span.start].count(b"\n") + 1
        assert span.last_line == data[: span.end - 1].count(b"\n") + 1
        done = span.end
    assert not data[done:].strip()


@pytest.mark.parametrize("size", [1, 65_537, (1 << 20) + 1])
def test_a_single_long_line_is_split_wherever_the_blocks_it_is_read_in_end(size: int) -> None:
    data = (b"word and " * (size // 9 + 1))[:size]
    pieces = [piece for _, piece in split(document_of(data))]
    assert b"".join(pieces) == data.rstrip() or b"".join(pieces) == data
    assert all(piece.endswith(b" ") for piece in pieces[:-1])


def test_a_passage_begins_at_a_paragraph_if_the_one_before_is_long_enough() -> None:
    text = paragraphs("# Panel", FILLER * 3, FILLER * 3 + "end")
    passages = [piece.decode() for _, piece in split(document_of(text.encode()))]
    assert passages == [f"# Panel\n\n{FILLER * 3}\n", f"{FILLER * 3}end"]


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("before", [0, READ_BYTES - 1, READ_BYTES])
@pytest.mark.parametrize("invalid", ["é".encode()[:1], "😀".encode()[:3], b"\xff", b"\xe2\x82x"])
def test_invalid_bytes_are_replaced_and_reported_wherever_they_are(
    mark: bytes, before: int, invalid: bytes
) -> None:
    """One that ended within a character was read without a word."""
    data = mark + b"x" * before + invalid
    read = read_input(None, [], io.BytesIO(data if before else data + b" y"))
    assert "\ufffd" in read.text
    assert read.notices[0].endswith(f"the first at byte {len(mark) + before:,}")


def test_a_fifo_is_read_as_a_file(tmp_path: Path) -> None:
    """`-f <(command)` in a shell."""
    read, write = os.pipe()
    os.write(write, b"from a pipe")
    os.close(write)
    (document,) = opened([f"/dev/fd/{read}"])
    os.close(read)
    assert document.is_passing
    assert document.bytes_at(5, 6) == b"a pipe"


def test_a_pipe_without_an_end_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"y\n" * (size // 2)

    left = iter([5 << 30, 3 << 30, (1 << 30) - 1])
    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=next(left)))
    monkeypatch.setattr("mlxchat.text.documents.shutil", usage)
    with pytest.raises(InputError, match="the input is too large for the disk of /"):
        opened([], cast(BinaryIO, Endless()))


def test_the_passage_that_answers_is_found_with_its_neighbours_in_order() -> None:
    search = search_in(report({30: "Ada Lovelace was born in London.", 45: "The dog slept."}))
    result = found(search, "Where was Ada Lovelace born?")
    assert result.fit
    assert result.of == 60
    numbers = [each.number for each in result.passages]
    assert numbers == [29, 30, 31]


def test_many_small_documents_share_an_index() -> None:
    texts = [f"Room {n} has a {each} chair." for n, each in enumerate(["red", "blue"] * 500)]
    texts[700] = "The piano is in room 700."
    documents = [document_of(text.encode()) for text in texts]
    OPEN.append(index := open_index(documents, None, ignore, print))
    assert len(index) == 1_000
    (passage,) = found(Search([index]), "Where is the piano?").passages
    assert passage.document is documents[700]
    assert passage.text == texts[700]


def test_no_more_is_read_than_there_is_room_for() -> None:
    search = search_in(report({n: f"Ada wrote letter {n}." for n in range(60)}))
    for room in (0, 100, 300, 1_000, 5_000):
        passages = found(search, "Which letter did Ada write about number 12?", room).passages
        assert sum(len(each.text) for each in passages) <= room


def test_the_best_passage_is_cut_if_it_has_no_room() -> None:
    search = search_in(report({30: "Ada was born in London."}))
    (passage,) = found(search, "Where was Ada born?", room=100).passages
    assert "Ada was born in London." in passage.text
    assert len(passage.text) <= 100
    assert "Ada was born" in quoted([passage])[0]
    assert len(quoted([passage])[0]) < 150


@pytest.mark.parametrize(
    "question", ["", "???", '"', "a OR b", "NEAR(x", "col:x", "*", "ก็ ความ", "𝒜", "\0", "'"]
)
def test_no_question_is_taken_for_a_query(question: str) -> None:
    found(search_in(report({5: question.replace("\0", "") + " ก็ ความ"})), question)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


def file_of(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Document]:
    def write(text: str) -> Document:
        path = tmp_path / "report.txt"
        path.write_text(text)
        (document,) = opened([str(path)])
        return document

    return write


def answer(index: PassageIndex) -> str:
    return quoted(found(Search([index]), "Where was Ada born?").passages)[0]


def test_a_kept_index_finds_what_a_new_one_finds(
    kept: Path, written: Callable[[str], Document]
) -> None:
    document = written(report({30: "Ada was born in London."}))
    assert find_index(document, kept) is None
    OPEN.append(made := make_index(document, kept, ignore))
    assert "London" in answer(made)
    again = find_index(document, kept)
    assert again is not None
    OPEN.append(again)
    assert answer(again) == answer(made)
    assert file_of(kept).stat().st_mode & 0o077 == 0
    changed = written(report({30: "Ada was born in Paris."}))
    assert find_index(changed, kept) is None


def test_a_damaged_index_is_never_believed(kept: Path, written: Callable[[str], Document]) -> None:
    """Whatever byte is damaged, a passage is one of the document's, or the index is made again."""
    document = written(report({30: "Ada was born in London."}))
    make_index(document, kept, ignore).close()
    sound = file_of(kept).read_bytes()
    genuine = {data.decode().strip() for _, data in split(document)}

    def texts(damaged: bytes) -> set[str] | None:
        """Of the passages that are found; None if the index is refused."""
        file_of(kept).write_bytes(damaged)
        try:
            index = find_index(document, kept)
            if index is None:
                return None
            OPEN.append(index)
            return {each.text for each in found(Search([index]), "Ada born").passages}
        except Outdated:
            return None

    read = [
        texts(sound[:place] + b"\xff" * 8 + sound[place + 8 :])
        for place in range(0, len(sound), 97)
    ]
    assert None in read
    assert all(each is None or each <= genuine for each in read)
    assert set() not in [texts(sound[:size]) for size in range(0, len(sound), 4_096)]


def test_a_document_that_changes_while_it_is_read_is_noticed(
    written: Callable[[str], Document], tmp_path: Path
) -> None:
    document = written(report({30: "Ada was born in London."}))
    index = indexed(document)
    text = (tmp_path / "report.txt").read_text()
    (tmp_path / "report.txt").write_text(text.replace("London", "Venice"))
    with pytest.raises(Outdated):
        answer(index)


def test_an_unfinished_index_leaves_nothing(
    kept: Path,
    written: Callable[[str], Document],
) -> None:
    document = written(report({}))

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_index(document, kept, interrupt)
    assert list(kept.iterdir()) == []


def test_old_indexes_go_first(
    kept: Path,
    written: Callable[[str], Document],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_index(written(report({1: "first"})), kept, ignore).close()
    (old,) = kept.iterdir()
    os.utime(old, (1, 1))
    make_index(written(report({1: "second"})), kept, ignore).close()
    monkeypatch.setattr(index_module, "MAX_KEPT_BYTES", old.stat().st_size + 100)
    (kept / ".old.sqlite.xyz").touch()
    os.utime(kept / ".old.sqlite.xyz", (1, 1))
    make_index(written(report({1: "third"})), kept, ignore).close()
    assert old not in kept.iterdir()
    assert len(list(kept.iterdir())) == 2


def test_a_folder_may_have_more_files_than_can_be_open_at_once(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(80):
        (tmp_path / f"{number:02}.txt").write_text(f"note {number}")
    # What other tests have opened, and 40 more.
    most = max(int(each.name) for each in Path("/dev/fd").iterdir()) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        texts = [each.text() for each in opened([str(tmp_path)])]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert texts == [f"note {number}" for number in range(80)]
