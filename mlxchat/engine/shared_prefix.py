"""Read once what several prompts begin with.

The prefix worth keeping is found by comparing a prompt with the ones that follow it. Caches are
kept in memory and forked, which copies nothing until a fork is written to.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mlxchat.cache import Cache
from mlxchat.text.spans import TokenIds

# Shorter prefixes are not worth a cache.
MIN_TOKENS = 16

# The number of prefixes kept, of which the least recently used is dropped.
MAX_PREFIXES = 4

# Puts the tokens `ids[start:stop]` into a cache that holds the ones before; returns how many are
# in it now, and how many of them came from elsewhere.
Read = Callable[[Cache, TokenIds, int, int], tuple[int, int]]


class Begun(NamedTuple):
    """A cache with the first `held` tokens of a prompt, of which `cached` were not computed for it.
    It begins with the tokens in `start`, if a prefix is known."""

    cache: Cache
    held: int
    cached: int
    start: Cache | None


class SharedPrefixes:
    """Caches of the prefixes that prompts share. `make` returns an empty cache, with this window.

    No prefix is longer than the window: beyond that, where reading pauses decides what each token
    sees, so a prompt would be read differently from how it is read alone.
    """

    def __init__(self, make: Callable[[], Cache], window: int | None = None) -> None:
        self._make = make
        self._window = window
        # Tokens `(T,)` and a cache that holds them, the least recently used first.
        self._prefixes: list[tuple[TokenIds, Cache]] = []

    def begin(self, ids: TokenIds, following: Sequence[TokenIds], read: Read) -> Begun:
        """A cache with the first tokens of `ids: (T,)`. Leaves at least the last token.

        Reads a prefix if it is shared with `following` prompts; `read` may stop early.
        """
        start, known = self._longest_known(ids)
        # One more, which is never part of a prefix.
        within = ids if self._window is None else ids[: self._window + 1]
        stop = shared_length(within, following, start)
        cache = self._make() if known is None else known.fork()
        done = reused = 0
        if stop - start >= MIN_TOKENS:
            done, reused = read(cache, ids, start, stop)
            if done == stop - start:
                known = cache.fork()
                self._prefixes = [*self._prefixes, (ids[:stop].copy(), known)][-MAX_PREFIXES:]
        return Begun(cache, start + done, start + reused, known)

    def start_of(self, ids: TokenIds) -> Cache | None:
        """The cache of the longest known prefix of these tokens."""
        return self._longest_known(ids)[1]

    def _longest_known(self, ids: TokenIds) -> tuple[int, Cache | None]:
        """Its length and its cache."""
        known = [x for x in self._prefixes if _common_length(ids[:-1], x[0]) == len(x[0])]
        if not known:
            return 0, None
        longest = max(known, key=lambda each: len(each[0]))
        self._prefixes = [each for each in self._prefixes if each is not longest] + [longest]
        return len(longest[0]), longest[1]


def shared_length(ids: TokenIds, following: Sequence[TokenIds], known: int) -> int:
    """How many of the tokens `ids: (T,)` to keep for the `following` prompts: the length that saves
    the most, less than T. The first `known` are kept already."""
    lengths = [min(_common_length(ids, each), len(ids) - 1) for each in following]
    common = sorted(lengths, reverse=True)
    savings = [(length - known) * count for count, length in enumerate(common, 1)]
    best = max(savings, default=0)
    return common[savings.index(best)] if best > 0 else known


def _common_length(a: TokenIds, b: TokenIds) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
