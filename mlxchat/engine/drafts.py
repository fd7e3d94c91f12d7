"""Decides how many tokens to draft: as many as are expected to pay.

Depends on the text, the costs and nothing else, so that the same command drafts the same tokens
again.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from mlxchat.engine.lookup import History, Match
from mlxchat.engine.row_costs import RowCosts, context_class

# Shortest match of each class; acceptance is tracked for each class.
CLASSES = (3, 4, 6, 9, 16, 32)

# The chance of acceptance assumed for the next drafted token, by class, with the weight of this
# many tokens.
ASSUMED = (0.3, 0.4, 0.55, 0.7, 0.8, 0.9)
ASSUMED_TOKENS = 4.0

# The weight of older tokens after each new one: the latest 50 or so count.
FORGETTING = 0.98

# A draft must promise this much more speed than decoding one token at a time.
WORTHWHILE = 1.05


@dataclass(slots=True)
class Acceptance:
    """How often the next drafted token was right lately, after matches of one class."""

    assumed: float
    right: float = 0.0
    judged: float = 0.0

    def learn(self, right: int, wrong: int) -> None:
        for outcome in [1.0] * right + [0.0] * wrong:
            self.right = self.right * FORGETTING + outcome
            self.judged = self.judged * FORGETTING + 1

    @property
    def chance(self) -> float:
        known = self.right + self.assumed * ASSUMED_TOKENS
        return known / (self.judged + ASSUMED_TOKENS)


@dataclass(slots=True)
class Drafter:
    """Proposes the tokens that followed the latest ones when they last appeared.

    `costs` are those of the model on this machine, by `context_class`; `on_measured` is called with
    each that had to be measured. `limit` is the length of the longest draft in tokens. `drafted`
    and `accepted` count tokens.
    """

    history: History
    limit: int
    costs: dict[int, RowCosts] = field(default_factory=dict)
    on_measured: Callable[[int, RowCosts], None] = lambda context, costs: None
    drafted: int = 0
    accepted: int = 0
    match: Match | None = None
    _predicted: int | None = None
    _chances: list[Acceptance] = field(
        default_factory=lambda: [Acceptance(assumed) for assumed in ASSUMED]
    )

    @property
    def counts(self) -> tuple[int, int]:
        return self.drafted, self.accepted

    def costs_at(self, held: int) -> RowCosts | None:
        """The costs with `held` tokens in the cache, if they have been measured."""
        return self.costs.get(context_class(held))

    def measured(self, held: int, costs: RowCosts) -> None:
        context = context_class(held)
        self.costs[context] = costs
        self.on_measured(context, costs)

    def add(self, id_: int, *, was_drafted: bool = False) -> None:
        """Add a generated token. If none was drafted, it shows if a draft would have been right."""
        if self.match is not None and not was_drafted:
            right = id_ == self._predicted
            self._class_of(self.match).learn(int(right), int(not right))
        self.history.add(id_)
        self.match = match = self.history.match()
        self._predicted = None if match is None else self.history.following(match.next, 1)[0]

    def is_promising(self, held: int, *, is_recurrent: bool = False) -> bool:
        """Whether a draft after the next token would probably pay, or its costs are to be measured.
        `held` is the number of tokens in the cache."""
        if self.match is None:
            return False
        costs = self.costs_at(held)
        return costs is None or self._best_length(self.match, self.limit, costs, is_recurrent) > 0

    def propose(self, room: int, held: int, *, is_recurrent: bool = False) -> list[int]:
        """At most `room` tokens expected to follow; none if drafting would not pay.

        With recurrent layers, the accepted part of a draft has to be computed again.
        """
        costs = self.costs_at(held)
        if self.match is None or costs is None:
            return []
        most = min(room, self.limit)
        length = self._best_length(self.match, most, costs, is_recurrent)
        return self.history.following(self.match.next, length)

    def learn(self, drafted: int, right: int) -> None:
        """The first `right` of the `drafted` tokens proposed last were right."""
        assert self.match is not None
        self.drafted += drafted
        self.accepted += right
        self._class_of(self.match).learn(right, int(right < drafted))

    def _class_of(self, match: Match) -> Acceptance:
        return self._chances[bisect_right(CLASSES, match.length) - 1]

    def _best_length(self, match: Match, most: int, costs: RowCosts, is_recurrent: bool) -> int:
        """The length with the most tokens for the time, 0 if that is no draft."""
        chance = self._class_of(match).chance
        best, best_rate, expected, term = 0, WORTHWHILE, 1.0, 1.0
        for length in range(1, most + 1):
            term *= chance
            expected += term
            cost = costs.of(length + 1)
            if is_recurrent:
                cost += (1 - term) * costs.of(round(expected))
            rate = expected * costs.of(1) / cost
            if rate > best_rate:
                best, best_rate = length, rate
        return best
