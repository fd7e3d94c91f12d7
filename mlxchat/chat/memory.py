"""What the window forgot and a message needs: which turns to quote, and the quote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from mlxchat.chat.rendering import Rejected, Rendering, fitted, is_too_long
from mlxchat.chat.state import Recalled, State, Turn
from mlxchat.recall.choice import (
    CALENDAR_WORDS,
    COMMON,
    Fit,
    Index,
    Said,
    Text,
    chosen,
    closest,
    excerpt,
    informative,
    is_short_number,
    is_typed,
    sentences,
    words,
)
from mlxchat.text.encoder import TokenIds

# What was asked or answered counts less than what was stated, and has to say more of the message.
ASKED = 0.5
ENOUGH_ASKED = 0.4
# A text of more words repeats another if at most a tenth of them is new.
FEW_WORDS = 8
# Two turns are quoted if this many characters of each fit, else one; with its time, if they do.
MIN_CHARS = 40
# A quote's maximum share of the window, and its maximum tokens if there is no window.
QUOTE_SHARE = 8
QUOTE_TOKENS = 256
# A quote is not cut to fewer characters.
FEWEST_CHARS = 8

# A turn and its number, counted from 1.
Numbered = tuple[int, Turn]


class Memory:
    """An index of forgotten turns, each once. What was typed is found, however much was pasted."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._stated, self._asked, self._pasted, self._answered = (Index() for _ in range(4))
        self._indexed: dict[int, tuple[str, str]] = {}

    def find(self, message: str, state: State, at_most: int) -> list[int]:
        """The numbers of at most that many forgotten turns that the message needs, in order,
        counted from 1. None if nothing fits well, or a turn in view fits as well. Turns that were
        cleared away are never found, nor the message's own echo or what it quotes."""
        self._update(state)
        typed = _fits(self._stated, message, state)
        stated = _fits(self._pasted, message, state) | typed
        best = {number: (close.closeness, close.share) for number, close in stated.items()}
        top = max((close.share for close in stated.values()), default=0.0)
        asked = _fits(self._asked, message, state, named=True)
        for number, close in (_fits(self._answered, message, state) | asked).items():
            if close.share * ASKED > max(top, ENOUGH_ASKED):
                half = close.closeness * ASKED, close.share * ASKED
                best[number] = max(best.get(number, half), half)
        written = f"{message}\n{state.turns[-1].user}".splitlines()
        quotes = {line[2:] for line in written if line.startswith("> ")} - {""}
        for number in [*best]:
            if not quotes.isdisjoint("\n".join(self._indexed[number]).splitlines()):
                del best[number]
        if not best or in_view(message, state) >= max(best.values())[0]:
            return []
        numbers = chosen(best, at_most)
        if len(numbers) < at_most:
            said = [self._stated.texts[typed[n].number] for n in numbers if n in typed]
            numbers += _later_about(self._stated, said, message, state)
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
            typed = is_typed(said.stated)
            _add(self._stated if typed else self._pasted, number, said.stated, typed=typed)
            _add(self._asked, number, said.asked)
            _add(self._answered, number, reply, typed=False)


def _add(index: Index, number: int, text: str, *, typed: bool = True) -> None:
    for sentence in sentences(text):
        index.add(number, sentence, typed=typed)


def _fits(index: Index, message: str, state: State, *, named: bool = False) -> dict[int, Fit]:
    """The sentence of each forgotten turn that fits best, if it adds something to the message: with
    `named`, a name or a number. Of turns that say the same, the latest."""
    own, to_question = frozenset(informative(message)), bool(Said.of(message).asked)
    best: dict[int, Fit] = {}
    for close in closest(index, message):
        text = index.texts[close.number]
        numbers = _recallable(text, state)
        if numbers and (text.names - own if named else _adds(text, own, to_question=to_question)):
            best.setdefault(max(numbers), close)
    return best


def _adds(text: Text, message: frozenset[str], *, to_question: bool) -> bool:
    """Whether it says something that the message, of these words, does not."""
    new = text.words - message
    if len(text.words) > FEW_WORDS:
        return len(new) > len(text.words) // 10
    if not new:
        return to_question
    # "Step 3 of 9" repeats "step 2 of 9".
    counted = any(is_short_number(word) for word in message - text.words)
    return not counted or any(not is_short_number(word) for word in new)


def _recallable(text: Text, state: State) -> list[int]:
    """The turns that say it and are forgotten, but not cleared away; none if it is remembered."""
    if any(text.words <= {*words(line)} for line in state.remembered):
        return []
    return [n for n in text.numbers if n > state.cleared and state.turns[n - 1].forgotten]


def _later_about(index: Index, said: Sequence[Text], message: str, state: State) -> list[int]:
    """The latest turn after all of these sentences that says more of somebody or something that one
    of them names and the message does not: after "Our head is Carla", "Carla left"."""
    last = max((max(text.numbers) for text in said), default=0)
    named = {name for text in said for name in text.names} - set(words(message))
    found: set[int] = set()
    for name in named - CALENDAR_WORDS:
        with_name = index.with_word(name)
        if name.isalpha() and len(with_name) <= COMMON:
            texts = (index.texts[place] for place in with_name)
            found |= {n for text in texts for n in _recallable(text, state) if n > last}
    return sorted(found)[-1:]


def in_view(message: str, state: State) -> float:
    """How close what was stated in view is to the last turn's message; 0 if nothing fits."""
    index = Index()
    for text in (*state.remembered, *(turn.user for turn in state.retained[:-1])):
        stated = Said.of(text).stated
        _add(index, 0, stated, typed=is_typed(stated))
    return max((close.closeness for close in closest(index, message)), default=0.0)


def with_quote(
    rendering: Rendering, plain: State, ids: TokenIds, numbers: Sequence[int], window: int | None
) -> tuple[State, TokenIds, Recalled | None]:
    """The state with these turns quoted before the message, and its rendering: only one of them, if
    there is no room for more; as it is, rendered as `ids`, if none fits."""
    most = QUOTE_TOKENS if window is None else window // QUOTE_SHARE
    quoted = [(number, plain.turns[number - 1]) for number in numbers]
    for few, text in quotes(quoted, plain.turns[-1].question, 4 * most):
        try:
            tokens = len(rendering.ids(replace(plain, quote=text))) - len(ids)
        except Rejected:
            continue
        if tokens <= most:
            state, with_it = fitted(rendering, replace(plain, quote=text), window)
            if is_too_long(with_it, window):
                break
            shown = tuple(n for n, _ in few), tuple(turn.question for _, turn in few)
            return state, with_it, Recalled(*shown, tokens)
    return plain, ids, None


def quotes(
    quoted: Sequence[Numbered], message: str, limit: int
) -> Iterator[tuple[Sequence[Numbered], str]]:
    """Ever shorter ways to quote turns for a message, and which are in them. The first has at most
    `limit` characters of each text; then come those without replies, with one turn only, and
    without its time: the last with a word of the message, not "Carla left", but whom she led."""
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
    """The turns as said; of each text at most `limit` characters, around what is asked about."""
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
        return f" ({datetime.fromisoformat(turn.time).astimezone():%Y-%m-%d %H:%M})"
    except ValueError:
        return ""
