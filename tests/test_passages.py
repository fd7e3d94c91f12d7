"""Passages of large documents: split without loss, found by what a question asks, read back."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxchat.passages.index import (
    MAX_BYTES,
    Outdated,
    PassageIndex,
    find_index,
    open_index,
    split,
)
from mlxchat.passages.search import Found, Search, quoted
from mlxchat.text.documents import READ_BYTES, Document, open_documents

FILLER = "The committee met on the usual day and talked about the budget at some length. "

OPEN: list[Document | PassageIndex] = []


@pytest.fixture(autouse=True)
def close_everything() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def opened(files: Sequence[str], stdin: BinaryIO | None = None) -> list[Document]:
    documents = list(open_documents(files, stdin, print, needs_pipe=not files))
    OPEN.extend(documents)
    return documents


def document_of(data: bytes) -> Document:
    return opened([], io.BytesIO(data))[0]


def indexed(document: Document) -> PassageIndex:
    OPEN.append(index := open_index([document], None, ignore, print))
    return index


def ignore(done: int, total: int) -> None: ...


def report(facts: dict[int, str], length: int = 60) -> str:
    """Paragraphs of filler, with facts in some of them."""
    return "\n\n".join(f"{FILLER * 3}{facts.get(n, '')}" for n in range(length))


def search_in(*texts: str) -> Search:
    return Search([indexed(document_of(text.encode())) for text in texts])


def found(search: Search, question: str, room: int = 1_000) -> Found:
    return search.find(question, room, lambda passage: len(passage.text))


def test_words_of_many_passages_are_found_if_nothing_else_is_and_few_have_them_all() -> None:
    """The first passages were read, as if none had a word of the question."""
    search = search_in("\n\n".join(f"{FILLER * 3}Hiring {each}." for each in range(100, 160)))
    (best,) = found(search, "Is hiring 103 late?", 300).passages
    assert best.text.endswith("Hiring 103.")
    for vague in ("Who is hiring?", "Summarize it in 103 words."):
        assert not found(search, vague).fit
    # Of equals, the first or the last were read.
    marks = report({5: "Ink.", 9: "Ink. " * 3, **dict.fromkeys(range(12, 20), "Ink.")})
    (best,) = found(search_in(marks), "Is there ink?", 300).passages
    assert best.text.endswith("Ink. Ink. Ink.")
    # Each part of a number was common.
    numbered = report({n: f"See {n % 7}.{n % 5}.2 on day {n}." for n in range(59)})
    for question in ("Where is 3.4.2?", "What happened on day 24?"):
        (best,) = found(search_in(numbered), question, 300).passages
        assert best.text.endswith("See 3.4.2 on day 24.")


TEXTS = st.lists(
    st.sampled_from(["\n", "\n\n", "word ", "A sentence. ", "x" * 700, "漢字。", "é" * 99, "\r\n"]),
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


def test_a_long_line_is_split_between_words_also_where_a_block_that_is_read_ends() -> None:
    data = (b"word and " * (READ_BYTES // 9 + 1))[: READ_BYTES + 1]
    pieces = [piece for _, piece in split(document_of(data))]
    assert b"".join(pieces) == data
    assert all(piece.endswith(b" ") for piece in pieces[:-1])


def test_a_passage_begins_at_a_paragraph_if_the_one_before_is_long_enough() -> None:
    text = "\n\n".join(["# Panel", FILLER * 3, FILLER * 3 + "end"])
    passages = [piece.decode() for _, piece in split(document_of(text.encode()))]
    assert passages == [f"# Panel\n\n{FILLER * 3}\n", f"{FILLER * 3}end"]


def test_the_passage_that_answers_is_found_with_its_neighbours_in_order() -> None:
    search = search_in(report({30: "Ada Lovelace was born in London.", 45: "The dog slept."}))
    result = found(search, "Where was Ada Lovelace born?")
    assert result.fit
    assert len(search) == 60
    assert [each.number for each in result.passages] == [29, 30, 31]


@pytest.mark.parametrize("shared", [False, True])
def test_each_passage_of_several_documents_is_found_in_its_own(shared: bool) -> None:
    sizes = [1, 3, 2, 1]
    texts = [
        [f"{FILLER * 3}The word is q{number}x{n}." for n in range(size)]
        for number, size in enumerate(sizes)
    ]
    documents = [document_of("\n\n".join(each).encode()) for each in texts]
    groups = [documents] if shared else [[each] for each in documents]
    OPEN.extend(indexes := [open_index(each, None, ignore, print) for each in groups])
    search = Search(indexes)
    assert len(search) == sum(sizes)
    for number, document in enumerate(documents):
        for n, text in enumerate(texts[number]):
            (passage,) = found(search, f"What about q{number}x{n}?", len(text)).passages
            assert (passage.document, passage.text) == (document, text)


def test_no_more_is_read_than_there_is_room_for_and_the_best_passage_is_cut() -> None:
    search = search_in(report({30: "Ada was born in London."}))
    for room in (0, 100, 300, 1_000, 5_000):
        passages = found(search, "Where was Ada born?", room).passages
        assert sum(len(each.text) for each in passages) <= room
        assert room == 0 or "Ada was born in London." in quoted(passages)[0]
        # What counts as read, of a passage that is cut, too.
        assert sum(each.span.end - each.span.start for each in passages) <= room + 2


def test_a_passage_that_is_cut_keeps_its_lines_and_their_places() -> None:
    rows = [f"{n},{n % 7}" if n != 44 else "zanzibar,1" for n in range(60)]
    for room in (60, 100, 200):
        (cut,) = found(search_in("\n".join(rows)), "What follows zanzibar?", room).passages
        assert cut.text == "\n".join(rows[cut.span.first_line - 1 : cut.span.last_line])
        assert set(rows[43:46]) <= {*cut.text.split("\n")}
        assert room // 2 < len(cut.text) <= room


def test_no_question_is_taken_for_a_query() -> None:
    search = search_in(report({5: "ก็ ความ"}))
    for question in ("", "???", '"', "a OR b", "NEAR(x", "col:x", "*", "ก็ ความ", "𝒜", "\0", "'"):
        found(search, question)


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


def test_a_kept_index_finds_what_a_new_one_finds_and_a_damaged_one_is_never_believed(
    tmp_path: Path, written: Callable[[str], Document]
) -> None:
    """Whatever byte is damaged, a passage is one of the document's, or the index is made again."""
    document = written(report({30: "Ada was born in London."}))
    genuine = {data.decode().strip() for _, data in split(document)}
    kept = tmp_path / "indexes"
    left: list[bool] = []  # by an interrupt
    OPEN.append(made := open_index([document], kept, lambda *_: left.append(kept.exists()), print))
    assert {*left} == {False}
    assert "London" in answer(made)
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    sound = file.read_bytes()

    def texts(damaged: bytes) -> set[str] | None:
        """Of the passages that are found; None if the index is refused."""
        file.write_bytes(damaged)
        try:
            index = find_index(document, kept)
            if index is None:
                return None
            OPEN.append(index)
            return {each.text for each in found(Search([index]), "Ada born").passages}
        except Outdated:
            return None

    assert texts(sound) == {each.text for each in found(Search([made]), "Ada born").passages}
    read = [texts(sound[:at] + b"\xff" * 8 + sound[at + 8 :]) for at in range(0, len(sound), 97)]
    assert None in read
    assert all(each is None or each <= genuine for each in read)
    assert set() not in [texts(sound[:size]) for size in range(0, len(sound), 4_096)]
    assert find_index(written(report({30: "Ada was born in Paris."})), kept) is None


def test_a_document_that_changes_while_it_is_read_is_noticed(
    written: Callable[[str], Document], tmp_path: Path
) -> None:
    document = written(report({30: "Ada was born in London."}))
    index = indexed(document)
    text = (tmp_path / "report.txt").read_text()
    (tmp_path / "report.txt").write_text(text.replace("London", "Venice"))
    with pytest.raises(Outdated):
        answer(index)
    # What is appended to a log meanwhile is not read, and no change.
    with (tmp_path / "report.txt").open("a") as file:
        file.write("more\n")
    assert sum(map(len, document.lines())) == document.size_bytes
