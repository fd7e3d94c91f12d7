"""An adapter that has been read: its arrays and how to add them to a network."""

from dataclasses import dataclass, field

import mlx.core as mx

from mlxchat.models.model import AppliedAdapter

# What mlx-lm calls the parameters of a low-rank module: the two factors, and DoRA's magnitude.
FACTOR_A, FACTOR_B, MAGNITUDE = "lora_a", "lora_b", "m"


@dataclass(frozen=True, slots=True)
class LowRank:
    """What one module gains: `scale` times the product of two factors of rank `rank`; with DoRA,
    rescaled to a magnitude. `arrays` by the names of mlx-lm's parameters."""

    rank: int
    scale: float
    dora: bool
    arrays: dict[str, mx.array] = field(default_factory=dict[str, mx.array])


@dataclass(frozen=True, slots=True)
class Adapter:
    """`low_rank` by the path of the adapted module; `weights` replace the network's parameters of
    those names. One of the two is empty, and arrays are unread.

    `digest` identifies the contents. `trained_on` is the model that the configuration names.
    """

    name: str
    low_rank: dict[str, LowRank]
    weights: dict[str, mx.array]
    digest: str
    trained_on: str | None = None

    @property
    def is_low_rank(self) -> bool:
        return not self.weights

    def applied(self) -> AppliedAdapter:
        return AppliedAdapter(self.name, self.digest, self.is_low_rank)
