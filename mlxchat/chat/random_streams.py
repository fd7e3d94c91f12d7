"""Random numbers in a conversation: each reply has its own stream, derived from one seed."""

RETRY = 1_000_003
SEEDS = 2**64


def stream_of(seed: int, turns: int, retries: int = 0, written: int = 0) -> int:
    """The seed of a reply, derived from the conversation's `seed`, its number of `turns`, the
    `retries` of this reply, and the number of its tokens already `written`.
    """
    return (seed + turns + RETRY * retries + (written << 32)) % SEEDS
