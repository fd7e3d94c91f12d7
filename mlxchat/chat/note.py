"""What stays in view of what is forgotten: lines that the user wants remembered, and a note, which
the model writes in a prompt of its own."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from mlxchat.chat.answering import Means, Watch
from mlxchat.chat.rendering import Rendering, room_for_more
from mlxchat.chat.state import Compacted, State, Turn
from mlxchat.chat.window import Window
from mlxchat.engine.brief import MAX_TEMP, SPARE_TOKENS, write_brief
from mlxchat.engine.reply import Reply
from mlxchat.errors import UsageError
from mlxchat.settings import GenerationSettings
from mlxchat.text.encoder import TokenIds

# The maximum share of the window that all remembered lines have.
REMEMBERED_SHARE = 8
# A note's maximum share of the window, and its maximum tokens.
NOTE_SHARE = 4
NOTE_TOKENS = 512
# A note needs at least this many tokens to be of use.
MIN_NOTE_TOKENS = 32
# Tokens of thoughts before a note, if there is no window.
THOUGHT_TOKENS = 4_096


def write_note(
    means: Means, window: Window, state: State, words: str, *, seed: int, watch: Watch
) -> Compacted | None:
    """A note about the turns that may be forgotten: if they do not fit in the window next to it,
    the oldest, as many as do. None if stopped. Raises UsageError if there is nothing to write about
    or the note is useless, and StoppedEncoding if stopped while the prompt is tokenized."""
    numbers, size = state.may_be_forgotten, window.ledger.window
    if not numbers:
        raise UsageError("nothing to compact: only the last turn is in view, or pinned ones")
    limit = note_limit(means.rendering, state, size)
    if limit < MIN_NOTE_TOKENS:
        raise UsageError(
            f"no room for a note: it needs {MIN_NOTE_TOKENS} tokens, and beside a message and its "
            f"reply{' and the pinned turns (/unpin)' * bool(state.pinned)} there are {limit}"
        )
    plain = means.rendering.with_thinking(False)
    turns = [state.turns[number - 1] for number in numbers]
    asked = Turn(request(limit, words, has_note=state.note is not None))

    def prompt(count: int) -> TokenIds:
        return plain.ids(state.only(*turns[:count], asked), watch.count_encoding)

    def is_too_long(count: int) -> bool:
        return size is not None and len(prompt(count)) + limit > size

    count = bisect_right(range(1, len(turns) + 1), False, key=is_too_long)
    if count == 0:
        raise UsageError("no room in the window to write a note: forget a turn first")
    ids = prompt(count)
    # It begins as the conversation does, and is no part of it.
    cached = (aside := window.fork()).become(ids)
    most = limit + THOUGHT_TOKENS if size is None else size - len(ids)
    reply = Reply(
        means.model,
        ids,
        aside.cache,
        sampling=replace(means.sampling, temp=min(means.sampling.temp, MAX_TEMP), seed=seed),
        settings=GenerationSettings(max_tokens=most, think_budget=means.generation.think_budget),
        cached_tokens=cached,
        reader=means.model.tokenizer.reader(ids),
    )
    text = write_brief(
        reply,
        limit,
        watch.should_stop,
        on_tokens=lambda tokens: watch.on_note and watch.on_note(tokens, limit),
        step_size=means.settings.prefill_step_size,
        pace=means.pace,
        on_prefill=watch.on_prefill,
    )
    if reply.finish_reason == "interrupted":
        return None
    if reply.finish_reason == "loop":
        raise UsageError("the note repeats itself")
    if not text:
        raise UsageError("the note is empty")
    tokens = plain.note_tokens(replace(state, note=text))
    return Compacted(text, numbers[:count], tokens, reply.stats)


def note_limit(rendering: Rendering, state: State, window: int | None) -> int:
    """How many tokens a note may have in this window."""
    if window is None:
        return NOTE_TOKENS
    room = int(room_for_more(rendering, replace(state, note=""), window))
    return min(NOTE_TOKENS, window // NOTE_SHARE, max(room - SPARE_TOKENS, 0))


def request(limit: int, words: str, *, has_note: bool) -> str:
    """The message that asks for a note of at most `limit` tokens; `words` are what matters most."""
    parts = [
        f"Summarize our conversation so far in at most {limit // 2} words, in its language. Keep "
        "what I told you about myself, all names, numbers, dates and decisions, and what is still "
        "open.",
        "Include your earlier note." if has_note else "",
        f"Most important: {words}." if words else "",
        "Write only the summary.",
    ]
    return " ".join(filter(None, parts))


def with_system(rendering: Rendering, state: State, size: int | None, text: str | None) -> State:
    """The state with a system prompt. Raises UsageError if pinned turns leave no room for it."""
    changed = replace(state, system=text)
    if text and state.pinned and room_for_more(rendering, changed, size) < 0:
        raise UsageError("no room for it next to the pinned turns: shorten it, or use /unpin first")
    return changed


def with_remembered(rendering: Rendering, state: State, size: int | None, what: str | int) -> State:
    """The state with a text, or turn `what`, remembered. Raises UsageError for none, or no room."""
    if isinstance(what, int) and not 1 <= what <= len(state.turns):
        raise UsageError(f"no turn {what}")
    text = (state.turns[what - 1].question if isinstance(what, int) else what).strip()
    if not text:
        raise UsageError("nothing to remember: the text is empty")
    if text in state.remembered:
        raise UsageError("this is remembered already: /remember lists all lines")
    more = replace(state, remembered=(*state.remembered, text))
    if size is None:
        return more
    held, most = rendering.remembered_tokens(state), most_remembered(rendering, state, size)
    tokens, room = rendering.remembered_tokens(more) - held, most - held
    if tokens > room:
        instead = "shorten it, or " if most else ""
        if state.remembered:
            instead = "remove a line (/remember off N), or "
        raise UsageError(
            f"no room to remember this: it has {tokens:,} tokens, and {room:,} of {most:,} are "
            f"free: {instead}use a larger --max-kv-size"
        )
    return more


def most_remembered(rendering: Rendering, state: State, window: int) -> int:
    """The most tokens that may be remembered: an eighth of the window, if there is room."""
    # A template's own system prompt makes room for the first line.
    some = state if state.remembered else replace(state, remembered=("a",))
    held = rendering.remembered_tokens(some)
    room = min(window // REMEMBERED_SHARE - held, room_for_more(rendering, some, window))
    return max(held + int(room), rendering.remembered_tokens(state))
