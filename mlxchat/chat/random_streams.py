"""The random numbers of a conversation: one seed, and from it a stream for each reply."""

RETRY = 1_000_003
SEEDS = 2**64


def stream_of(seed: int, turns: int, retries: int = 0, written: int = 0) -> int:
    """The seed of a reply, from the conversation's `seed`, its number of `turns`, the `retries` of
    this reply, and the tokens of it already `written`.

    Threefry, MLX's generator, has independent streams for neighbouring seeds.
    """
    return (seed + turns + RETRY * retries + (written << 32)) % SEEDS
