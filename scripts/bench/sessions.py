"""The database of sessions: saving while a reply streams, and listing and searching many.

    python -m scripts.bench.sessions

Fills a database in a temporary directory with random turns, whose words are as frequent as in
English (Zipf), and removes it.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scripts.bench.common import parser, show

# isort: split

import numpy as np

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.sessions.database import Database
from mlxchat.sessions.listing import listing, search
from mlxchat.sessions.records import SessionRecord, insert_session, insert_turn
from mlxchat.sessions.session import Session

VOCABULARY = 50_000
WORDS_OF_A_MESSAGE, WORDS_OF_A_REPLY = 12, 60
ROUNDS, PIECES = 7, 2_000


def main() -> None:
    sessions, turns = (20, 20) if parser(__doc__).parse_args().quick else (10_000, 200)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "sessions"
        paths.sessions_dir = lambda: directory
        _streaming(0)
        _fill(sessions, turns)
        size_bytes = (directory / "sessions.db").stat().st_size
        show(bench="sessions", sessions=sessions, turns=turns, database_bytes=size_bytes)
        _show("list them", [_seconds(listing) for _ in range(ROUNDS)])
        for what, wanted in _searches():
            times_s = [_seconds(lambda: search(wanted)) for _ in range(ROUNDS)]  # noqa: B023
            _show(f"search for {what}", times_s)
        _streaming(sessions)


def _streaming(sessions: int) -> None:
    with Session.open("streaming", create=True) as session:
        session.record(None, [Turn("hello")])
        _show(
            f"save a token, in a database of {sessions:,} sessions",
            [_seconds(lambda: session.show(" word")) for _ in range(PIECES)],
        )
        turn = Turn("hello", " word" * PIECES, finish_reason="stop")
        session.record(None, [turn])


def _fill(sessions: int, turns: int) -> None:
    texts = _texts()
    with Database() as database:
        for first in range(0, sessions, 100):
            numbers = range(first, min(first + 100, sessions))
            database.write(lambda c, numbers=numbers: _insert(c, numbers, turns, texts))


def _insert(
    connection: sqlite3.Connection, numbers: range, turns: int, texts: Iterator[str]
) -> None:
    for number in numbers:
        first = next(texts)
        record = SessionRecord(
            f"session {number}",
            created=time.time(),
            updated=time.time(),
            settings={"model": "smollm2"},
            turns=turns,
            first=first,
        )
        id_ = insert_session(connection, record)
        for _ in range(turns):
            turn = Turn(next(texts), next(texts), finish_reason="stop")
            insert_turn(connection, id_, turn)


def _texts() -> Iterator[str]:
    """Endless texts, by turns as long as a message and as a reply."""
    random = np.random.default_rng(0)
    words = np.array([_word(n) for n in range(VOCABULARY)])
    while True:
        ranks = random.zipf(1.2, 1 << 16)
        spoken, at = words[ranks[ranks <= VOCABULARY] - 1], 0
        while at + WORDS_OF_A_MESSAGE + WORDS_OF_A_REPLY < len(spoken):
            for length in (WORDS_OF_A_MESSAGE, WORDS_OF_A_REPLY):
                yield " ".join(spoken[at : at + length])
                at += length


def _word(rank: int) -> str:
    """A word of its own for every rank; frequent ones are short."""
    letters = "etaoinshrdlu"
    text = ""
    rank += 1
    while rank:
        rank, digit = divmod(rank, len(letters))
        text += letters[digit]
    return f"{text}q"


def _searches() -> Iterator[tuple[str, str]]:
    yield "a rare word", _word(40_000)
    yield "a word of a thousand turns", _word(2_000)
    yield "the most frequent word", _word(0)
    yield "a frequent and a rare word", f"{_word(0)} {_word(30_000)}"
    yield "three words", f"{_word(50)} {_word(500)} {_word(800)}"


def _seconds(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _show(what: str, times_s: Sequence[float]) -> None:
    median_s, p95_s, p99_s = np.percentile(times_s, [50, 95, 99])
    show(bench="sessions", what=what, median_s=median_s, p95_s=p95_s, p99_s=p99_s)


if __name__ == "__main__":
    main()
