"""One-line summaries: of a run, of a turn, of forgotten turns. And the window as a chart."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from mlxchat.chat.rendering import RESERVE
from mlxchat.chat.state import Change, Compacted, Recalled, State, Usage
from mlxchat.engine.reply import Stats
from mlxchat.store.snapshot import Written
from mlxchat.terminal import visible
from mlxchat.units import and_rate, count, format_bytes

# How many characters of a forgotten message are quoted.
QUOTED = 30
MAX_CHART_COLUMNS = 90
GAP = "  "


def stats_line(stats: Stats, written: Written | None = None) -> str:
    """The closing figures, and the size and time of the last checkpoint."""
    parts = [_prompt_figures(stats)]
    if stats.ttft_s:
        generated = count(stats.generated_tokens, "token")
        parts.append(f"generated {generated}{and_rate(stats.decode_tokens_per_s)}")
        if stats.thought_tokens or stats.thought_cut:
            cut = ", cut off" * stats.thought_cut
            parts.append(f"thought {count(stats.thought_tokens, 'token')}{cut}")
        if stats.drafted_tokens:
            parts.append(f"drafted {stats.drafted_tokens:,}, accepted {stats.accepted_tokens:,}")
        parts.append(f"first token {stats.ttft_s:.2f} s")
    parts += [
        f"KV {stats.kv_tokens:,} tokens, {format_bytes(stats.kv_bytes)}",
        f"evicted {stats.evicted_tokens:,}",
        f"peak memory {format_bytes(stats.peak_memory_bytes)}",
        f"finish reason: {stats.finish_reason}",
    ]
    if written is not None:
        parts.append(f"checkpoint {format_bytes(written.size_bytes)} in {written.seconds:.2f} s")
    return " · ".join(parts)


def turn_line(turn: int, stats: Stats, seconds: float) -> str:
    return f"turn {turn} · {seconds:.2f} s · {stats_line(stats)}"


def window_line(change: Change) -> str:
    """The turns that have left the window, or those quoted before the message."""
    tokens = count(change.tokens, "token")
    if isinstance(change, Recalled):
        pairs = zip(change.numbers, change.messages, strict=True)
        quoted = [f'turn {number} "{first_words(message)}"' for number, message in pairs]
        return f"recalled {' and '.join(quoted)} ({tokens})"
    if change.turns == 0:
        be = "is" if change.tokens == 1 else "are"
        number, forgotten = change.numbers[0], f"its oldest {tokens} {be} forgotten"
        if not change.message:
            return f"turn {number}: with the reply, {forgotten}"
        return f"turn {number} is larger than the window: {forgotten}; see `mlxchat help documents`"
    if change.turns == 1:
        return f'forgot turn {change.numbers[0]} "{first_words(change.message)}" ({tokens})'
    return f"forgot {numbered(change.numbers)} ({tokens})"


def compacted_line(compacted: Compacted) -> str:
    """The turns that a note stands for, and what the note cost."""
    stats = compacted.stats
    cost = f"read {stats.prefilled_tokens:,}, wrote {count(stats.generated_tokens, 'token')}"
    note = f"a note of {count(compacted.tokens, 'token')}"
    return f"compacted {numbered(compacted.numbers)} into {note} ({cost})"


def staying_line(numbers: Sequence[int]) -> str:
    """The turns that the window has room for beside the next message."""
    if not numbers:
        return "the window has no room for earlier turns beside your next message"
    return f"not all turns fit the window: your next message leaves at most {numbered(numbers)}"


def first_words(message: str, max_chars: int = QUOTED) -> str:
    """The start of a message, on one line."""
    line = " ".join(message.split())
    return line if len(line) <= max_chars else f"{line[:max_chars].rstrip()}…"


def numbered(numbers: Sequence[int]) -> str:
    """Numbers in ascending order: "turns 1 to 4, 7 and 9"."""
    written: list[str] = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        written += map(str, run) if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
    ranges = " and ".join(filter(None, [", ".join(written[:-1]), written[-1]]))
    return f"turn{'s' * (len(numbers) > 1)} {ranges}"


def _prompt_figures(stats: Stats) -> str:
    parts = [f"prompt {count(stats.prompt_tokens, 'token')}"]
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens:,} cached")
    if stats.cached_tokens + stats.prefilled_tokens < stats.prompt_tokens:
        parts.append(f"{stats.prefilled_tokens:,} read")
    return ", ".join(parts) + and_rate(stats.prefill_tokens_per_s)


def incomplete(stats: Stats) -> str:
    """The notice for an answer that is not all that was asked for."""
    return stats.problem or f"the answer is not complete (finish reason: {stats.finish_reason})"


def draw_window(usage: Usage, state: State, attached_tokens: int, columns: int) -> Iterator[str]:
    """The window as a bar chart with a row per turn, whose tokens add up to the total.

    Lines are no wider than `columns`; `attached_tokens` are for the next message.
    """
    from rich.text import Text

    rows = list(_rows(usage, state, attached_tokens))
    total = sum(tokens for _, tokens in rows)
    number_width = max(len(f"{tokens:,}") for _, tokens in rows)
    room = max(min(columns, MAX_CHART_COLUMNS) - number_width - 2 * len(GAP), 2)
    bar_width = room // 3
    for label, tokens in rows:
        bar = "█" * max(round(bar_width * tokens / total) if total else 0, 1 if tokens else 0)
        text = Text(" ".join(visible(label).split()))
        text.truncate(room - bar_width, overflow="ellipsis")
        # The label is last, so that no character in it can move anything.
        yield f"{tokens:>{number_width},}{GAP}{bar:{bar_width}}{GAP}{text.plain}".rstrip()


def _rows(usage: Usage, state: State, attached_tokens: int) -> Iterator[tuple[str, int]]:
    """Labels, and their numbers of tokens."""
    numbers = {id(turn): number for number, turn in enumerate(state.turns, 1)}
    yield "system prompt and template", usage.pinned - usage.note - usage.remembered
    if state.remembered:
        yield f"remembered: {' · '.join(state.remembered)}", usage.remembered
    if state.note is not None:
        yield f"note: {state.note}", usage.note
    for turn, tokens in usage.turns:
        yield f"{numbers[id(turn)]}{' (pinned)' * turn.pinned}: {turn.question}", tokens
    if attached_tokens:
        yield "attached to your next message", attached_tokens
    if usage.window is not None:
        yield "free", max(usage.window - usage.tokens - attached_tokens, 0)


def summary(usage: Usage, attached_tokens: int, forgotten: int, recalled: Sequence[int]) -> str:
    """The total, the turns the last message recalled, and whether the next will push some out."""
    used, window = usage.tokens + attached_tokens, usage.window
    limit = "" if window is None else f" of {window:,}"
    is_over = window is not None and used > window
    held = f"{used:,} tokens for a window{limit}" if is_over else f"{used:,}{limit} tokens"
    parts = [held, f"{count(forgotten, 'turn')} forgotten"]
    if recalled:
        parts.append(f"recalled {' and '.join(f'turn {number}' for number in recalled)}")
    if window is not None and used + RESERVE > window and usage.turns:
        freed = sum(tokens for turn, tokens in usage.turns if not turn.pinned)
        is_full = any(turn.pinned for turn, _ in usage.turns) and used - freed + RESERVE > window
        effects = ("will push out the oldest turns", "does not fit next to the pinned turns")
        parts.append(f"your next message {effects[is_full]}")
    return " · ".join(parts)
