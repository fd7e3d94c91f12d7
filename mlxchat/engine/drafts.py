"""Decides how many tokens to draft: as many as are expected to pay.

Depends on the text, the costs and nothing else, so that the same command drafts the same tokens
again.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from mlxchat.engine.lookup import History, Match
from mlxchat.engine.row_costs import RowCosts

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

    `costs` are those of the model on this machine; until they are known, `on_measured` is called
    with them once. `limit` is the length of the longest draft in tokens. `drafted` and `accepted`
    count tokens.
    """

    history: History
    limit: int
    costs: RowCosts | None = None
    on_measured: Callable[[RowCosts], None] = lambda costs: None
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

    def measured(self, costs: RowCosts) -> None:
        self.costs = costs
        self.on_measured(costs)

    def add(self, id_: int, *, was_drafted: bool = False) -> None:
        """Add a generated token. If none was drafted, it shows if a draft would have been right."""
        if self.match is not None and not was_drafted:
            right = id_ == self._predicted
            self._class_of(self.match).learn(int(right), int(not right))
        self.history.add(id_)
        self.match = match = self.history.match()
        self._predicted = None if match is None else self.history.following(match.next, 1)[0]

    @property
    def is_promising(self) -> bool:
        """Whether a draft after the next token would probably pay."""
        return self.match is not None and (
            self.costs is None or self._best_length(self.match, self.limit, self.costs) > 0
        )

    def propose(self, room: int, *, is_recurrent: bool = False) -> list[int]:
        """At most `room` tokens expected to follow; none if drafting would not pay.

        With recurrent layers, the accepted part of a draft has to be computed again.
        """
        if self.match is None or self.costs is None:
            return []
        most = min(room, self.limit)
        length = self._best_length(self.match, most, self.costs, is_recurrent)
        return self.history.following(self.match.next, length)

    def learn(self, drafted: int, right: int) -> None:
        """The first `right` of the `drafted` tokens proposed last were right."""
        assert self.match is not None
        self.drafted += drafted
        self.accepted += right
        self._class_of(self.match).learn(right, int(right < drafted))

    def _class_of(self, match: Match) -> Acceptance:
        return self._chances[bisect_right(CLASSES, match.length) - 1]

    def _best_length(
        self, match: Match, most: int, costs: RowCosts, is_recurrent: bool = False
    ) -> int:
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
