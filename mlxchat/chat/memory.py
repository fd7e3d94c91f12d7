"""What the window forgot and a message needs: which turns to quote, and the quote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mlxchat.chat.rendering import Rejected, Rendering, fitted, is_too_long
from mlxchat.chat.state import Recalled, State, Turn
from mlxchat.recall.choice import COMMON, Fit, Index, chosen, closest
from mlxchat.recall.words import (
    CALENDAR_WORDS,
    Said,
    excerpt,
    informative,
    is_short_number,
    is_typed,
    names,
    sentences,
    words,
)
from mlxchat.text.spans import TokenIds

# What was asked or answered counts less than what was stated, and has to say more of the message.
ASKED = 0.5
ENOUGH_ASKED = 0.4
# A text of more words repeats another if at most a tenth of them is new.
FEW_WORDS = 8
# Two turns are quoted if this many characters of each fit, else only one; that with its time, if as
# many of it fit.
MIN_CHARS = 40
# A quote's maximum share of the window, and its maximum tokens if there is no window.
QUOTE_SHARE = 8
QUOTE_TOKENS = 256
# A quote is not cut to fewer characters.
FEWEST_CHARS = 8

# A turn and its number, counted from 1.
Numbered = tuple[int, Turn]


@dataclass(slots=True)
class _Text:
    """A sentence of turns, and its words. The same words in several turns count once."""

    words: frozenset[str]
    names: frozenset[str]
    numbers: list[int]

    def adds_to(self, message: frozenset[str], *, to_question: bool) -> bool:
        """Whether it says something that the message, of these words, does not."""
        new = self.words - message
        if len(self.words) > FEW_WORDS:
            return len(new) > len(self.words) // 10
        if not new:
            return to_question
        # "Step 3 of 9" repeats "step 2 of 9".
        counted = any(is_short_number(word) for word in message - self.words)
        return not counted or any(not is_short_number(word) for word in new)

    def recallable(self, state: State) -> list[int]:
        """The turns that say it and are forgotten, but not cleared away."""
        return [n for n in self.numbers if n > state.cleared and state.turns[n - 1].forgotten]


class Memory:
    """An index of forgotten turns. Each is indexed once. What was typed is found among what was
    typed, however much was pasted."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._stated, self._asked = _Texts(typed=True), _Texts(typed=True)
        self._pasted, self._answered = _Texts(typed=False), _Texts(typed=False)
        self._indexed: dict[int, tuple[str, str]] = {}

    def find(self, message: str, state: State, at_most: int) -> list[int]:
        """The numbers of at most that many forgotten turns that the message needs, in order,
        counted from 1. None if nothing fits well, or a turn in view fits as well. Turns that were
        cleared away are never found, and neither is the message's own echo."""
        self._update(state)
        typed = self._stated.find(message, state)
        stated = self._pasted.find(message, state) | typed
        best = {number: close.closeness for number, close in stated.items()}
        top = max((close.share for close in stated.values()), default=0.0)
        others = self._answered.find(message, state) | self._asked.find(message, state, named=True)
        for number, close in others.items():
            if close.share * ASKED > max(top, ENOUGH_ASKED):
                best[number] = max(best.get(number, 0.0), close.closeness * ASKED)
        if not best or in_view(message, state) >= max(best.values()):
            return []
        numbers = chosen(best, at_most)
        if len(numbers) < at_most:
            fits = [close for number, close in typed.items() if number in numbers]
            numbers += self._stated.later_about(fits, message, state)
        return sorted({*numbers})

    def _update(self, state: State) -> None:
        turns = enumerate(state.turns, 1)
        texts = {n: (turn.user, turn.reply) for n, turn in turns if turn.forgotten}
        known = self._indexed.items()
        if any(n > len(state.turns) or texts.get(n, text) != text for n, text in known):
            # Turns were taken back, or others said in their place.
            self._clear()
        for number in texts.keys() - self._indexed.keys():
            user, reply = self._indexed[number] = texts[number]
            said = Said.of(user)
            (self._stated if is_typed(said.stated) else self._pasted).add(number, said.stated)
            self._asked.add(number, said.asked)
            self._answered.add(number, reply)


class _Texts:
    """Sentences of turns, each with its words once."""

    def __init__(self, *, typed: bool) -> None:
        self._typed = typed
        self._index = Index()
        self._texts: list[_Text] = []
        self._known: dict[frozenset[str], _Text] = {}

    def add(self, number: int, text: str) -> None:
        for sentence in sentences(text):
            own = frozenset(informative(sentence))
            known = self._known.get(own)
            if known is not None:
                known.numbers.append(number)
            elif own:
                self._known[own] = _Text(own, own & names(sentence), [number])
                self._index.add(len(self._texts), sentence, typed=self._typed)
                self._texts.append(self._known[own])

    def find(self, message: str, state: State, *, named: bool = False) -> dict[int, Fit]:
        """The sentence of each forgotten turn that fits best, if it adds something to the message:
        with `named`, a name or a number. Of turns that say the same, the latest."""
        own, to_question = frozenset(informative(message)), bool(Said.of(message).asked)
        best: dict[int, Fit] = {}
        for close in closest(self._index, message):
            text = self._texts[close.number]
            numbers = text.recallable(state)
            adds = text.names - own if named else text.adds_to(own, to_question=to_question)
            if numbers and adds:
                best.setdefault(max(numbers), close)
        return best

    def later_about(self, fits: Sequence[Fit], message: str, state: State) -> list[int]:
        """The latest turn after all of these sentences that says more of somebody or something
        that one of them names and the message does not: after "Our head is Carla", "Carla left"."""
        said = [self._texts[close.number] for close in fits]
        last = max((max(text.numbers) for text in said), default=0)
        named = {name for text in said for name in text.names} - set(words(message))
        found: set[int] = set()
        for name in named - CALENDAR_WORDS:
            with_name = self._index.with_word(name)
            if name.isalpha() and len(with_name) <= COMMON:
                texts = (self._texts[number] for number in with_name)
                found |= {n for text in texts for n in text.recallable(state) if n > last}
        return sorted(found)[-1:]


def in_view(message: str, state: State) -> float:
    """How close what was stated in view is to the message, which is the last turn's; 0 if nothing
    fits."""
    index = Index()
    for turn in state.retained[:-1]:
        stated = Said.of(turn.user).stated
        for sentence in sentences(stated):
            index.add(len(index), sentence, typed=is_typed(stated))
    return max((close.closeness for close in closest(index, message)), default=0.0)


def with_quote(
    rendering: Rendering, plain: State, ids: TokenIds, numbers: Sequence[int], window: int | None
) -> tuple[State, TokenIds, Recalled | None]:
    """The state with these turns quoted before the message, and its rendering: only one of them, if
    there is no room for more; as it is, rendered as `ids`, if none fits."""
    most = QUOTE_TOKENS if window is None else window // QUOTE_SHARE
    quoted = [(number, plain.turns[number - 1]) for number in numbers]
    for few, text in quotes(quoted, plain.turns[-1].user, 4 * most):
        try:
            tokens = len(rendering.ids(replace(plain, quote=text))) - len(ids)
        except Rejected:
            continue
        if tokens <= most:
            state, with_it = fitted(rendering, replace(plain, quote=text), window)
            if is_too_long(with_it, window):
                break
            shown = tuple(n for n, _ in few), tuple(turn.user for _, turn in few)
            return state, with_it, Recalled(*shown, tokens)
    return plain, ids, None


def quotes(
    quoted: Sequence[Numbered], message: str, limit: int
) -> Iterator[tuple[Sequence[Numbered], str]]:
    """Ever shorter ways to quote turns for a message, and which are in them. The first has at most
    `limit` characters of each text; then come those without replies, with one turn only, and
    without its time. That is the last one with a word of the message: not "Carla left", but whom
    she led."""
    if not quoted:
        return
    known = frozenset(informative(message))
    fitting = [each for each in quoted if not known.isdisjoint(informative(each[1].user))]
    one = (fitting or quoted)[-1:]
    for few in (quoted, one) if len(quoted) > 1 else (quoted,):
        yield few, _quote(few, message, limit, replies=True)
        for size in _halves(limit, MIN_CHARS):
            yield few, _quote(few, message, size)
    for size in _halves(min(limit, 2 * MIN_CHARS), FEWEST_CHARS):
        yield one, _quote(one, message, size, times=False)


def _halves(most: int, least: int) -> Iterator[int]:
    while most >= least:
        yield most
        most //= 2


def _quote(
    quoted: Sequence[Numbered],
    message: str,
    limit: int,
    *,
    replies: bool = False,
    times: bool = True,
) -> str:
    """The turns as they were said; of each text at most `limit` characters, those around what the
    message asks about."""
    parts: list[str] = []
    for number, turn in quoted:
        when = f"in turn {number}{_when(turn) if times else ''}"
        part = f'(Earlier, {when}, I said: "{excerpt(turn.user, message, limit)}"'
        if replies and turn.reply.strip():
            part += f' You answered: "{excerpt(turn.reply, message, limit)}"'
        parts.append(f"{part})\n")
    return "".join([*parts, "\n"])


def _when(turn: Turn) -> str:
    """The local time, to the minute; empty if it is unknown."""
    try:
        time = datetime.fromisoformat(turn.time).astimezone()
    except ValueError:
        return ""
    return f" ({time:%Y-%m-%d %H:%M})"
