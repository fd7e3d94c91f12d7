"""Measures the database of sessions: saving while a reply streams, and listing, searching and
recalling from many.

    python -m scripts.bench_sessions
    python -m scripts.bench_sessions --sessions 1000 --turns 20

Fills a database in a temporary directory with random turns, whose words are as frequent as in
English (Zipf), and removes it.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.request.chat import AUTO_RECALL
from mlxchat.sessions.database import Database
from mlxchat.sessions.listing import listing, search
from mlxchat.sessions.recalling import earlier_turns
from mlxchat.sessions.records import SessionRecord, insert_session, insert_turn, now
from mlxchat.sessions.serials import Serials
from mlxchat.sessions.session import Session

VOCABULARY = 50_000
WORDS_OF_A_MESSAGE, WORDS_OF_A_REPLY = 12, 60
ROUNDS = 7
PIECES = 2_000
MESSAGES = 100


def main(
    sessions: Annotated[int, typer.Option(help="Sessions to fill the database with")] = 10_000,
    turns: Annotated[int, typer.Option(help="Turns of each")] = 200,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "sessions"
        paths.sessions_dir = lambda: directory
        _streaming("an empty database")
        began_s = time.perf_counter()
        _fill(sessions, turns)
        size_mb = (directory / "sessions.db").stat().st_size / 1e6
        print(f"{sessions:,} sessions of {turns} turns: {size_mb:,.0f} MB", end=", ")
        print(f"written in {time.perf_counter() - began_s:.0f} s")
        _print("list them", _seconds(listing))
        for what, wanted in _searches():
            found = len(search(wanted))
            _print(f"search for {what}, {found} shown", _seconds(lambda w=wanted: search(w)))
        _recalling()
        _streaming("this database")


def _streaming(where: str) -> None:
    with Session.open("streaming", create=True) as session:
        turn = Turn("hello")
        session.journal.record(None, [turn])
        each: list[float] = []
        for _ in range(PIECES):
            began_s = time.perf_counter()
            session.journal.show(" word")
            each.append(time.perf_counter() - began_s)
        turn.reply, turn.finish_reason = " word" * PIECES, "stop"
        began_s = time.perf_counter()
        session.journal.record(None, [turn])
        ended_s = time.perf_counter() - began_s
    micro = np.array(each) * 1e6
    print(
        f"a token shown, in {where}: median {np.median(micro):.0f} µs, mean {micro.mean():.0f} µs, "
        f"99 of 100 within {np.percentile(micro, 99):.0f} µs; the whole turn {ended_s * 1e3:.1f} ms"
    )


def _recalling() -> None:
    """Messages as a chat with `--recall-sessions` gets them."""
    texts = _texts(seed=1)
    messages = [next(texts) for _ in range(2 * MESSAGES)][::2]
    each: list[float] = []
    recalled = 0
    for message in messages:
        began_s = time.perf_counter()
        recalled += bool(earlier_turns(message, AUTO_RECALL, None))
        each.append(time.perf_counter() - began_s)
    median_s, most_s = np.percentile(each, [50, 95])
    print(
        f"recall for {MESSAGES} random messages: median {median_s:.3f} s, 95 of 100 within "
        f"{most_s:.3f} s; {recalled} recalled something"
    )


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
            created=now(),
            updated=now(),
            settings={"model": "smollm2"},
            serials=Serials((range(1, turns + 1),)),
            last_serial=turns,
            first=first,
        )
        id_ = insert_session(connection, record)
        for serial in range(1, turns + 1):
            turn = Turn(next(texts), next(texts), finish_reason="stop", time=now())
            insert_turn(connection, id_, serial, turn)


def _texts(seed: int = 0) -> Iterator[str]:
    """Endless texts, by turns as long as a message and as a reply."""
    random = np.random.default_rng(seed)
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


def _seconds(run: Callable[[], object]) -> list[float]:
    seconds: list[float] = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _print(what: str, seconds: list[float]) -> None:
    print(f"{what}: {median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")


if __name__ == "__main__":
    typer.run(main)
