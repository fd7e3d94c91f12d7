"""A chat's turns in a line: what one took, and what was forgotten."""

from mlxchat.chat.turn import Forgot
from mlxchat.engine.generate import Stats
from mlxchat.units import and_rate, count


def turn_line(turn: int, stats: Stats, seconds: float) -> str:
    """The figures of one turn, for people."""
    parts = [f"turn {turn}", f"{seconds:.2f} s"]
    if stats.ttft_s:
        parts[-1] += f", first token {stats.ttft_s:.2f} s"
    parts.append(f"prefilled {stats.prefilled_tokens:,} of {stats.prompt_tokens:,} tokens")
    if stats.ttft_s:
        parts.append(f"generated {stats.generated_tokens:,}{and_rate(stats.decode_tokens_per_s)}")
    return " · ".join([*parts, f"stopped: {stats.finish_reason}"])


def forgotten_line(forgot: Forgot) -> str:
    """What has left the window, in words."""
    if forgot.turns == 0:
        return f"this turn is larger than the window: {forgot.tokens:,} of its tokens were evicted"
    turns = count(forgot.turns, "turn")
    return f"{turns} forgotten ({forgot.tokens:,} tokens), memory begins after that"
