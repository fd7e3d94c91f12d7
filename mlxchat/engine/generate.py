"""Generate: read the prompt, then decode, and turn the tokens into text until the reply ends.

The only loop over the tokens of a reply. It prints, saves and shows nothing: that is for the
caller's own loop.
"""

import time
from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

from mlxchat.engine.decode import decode
from mlxchat.engine.ends import End, first_reason
from mlxchat.engine.pace import Pace
from mlxchat.engine.prefill import OnHeld, PromptReader, prefill
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Token
from mlxchat.errors import ConstraintError, device_failures
from mlxchat.platform import wired_limit
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress


def generate(
    reply: Reply,
    *,
    tokens: int = -1,
    ends: Sequence[End] = (),
    step_size: int = DEFAULT_PREFILL_STEP_SIZE,
    pace: Pace | None = None,
    reader: PromptReader | None = None,
    on_prefill: Progress | None = None,
    on_held: OnHeld | None = None,
) -> Iterator[Token]:
    """Yield the tokens of the reply up to its end, or at most `tokens` of them.

    The `ends` see each token after the caller has handled it, and also stop the reading of the
    prompt. If one of them has stopped the reply, or after `tokens`, the cache holds all tokens but
    the last, and nothing is being computed: the moment to save both, and to call this again.

    `reader`, if given, reads the prompt in place of `prefill`. `on_held` is called with all ids
    that the cache holds: those of each step of the prompt, and each generated one.
    """
    network, cache, meter = reply.model.network, reply.cache, reply.meter
    stopped: str | None = None

    def should_stop() -> bool:
        nonlocal stopped
        stopped = stopped or first_reason(ends, None)
        return stopped is not None

    def hold_prompt(step: TokenIds) -> None:
        meter.read += len(step)
        if on_held is not None:
            on_held(step)

    if not meter.began_s:
        mx.reset_peak_memory()
        meter.began_s = time.perf_counter()
    with device_failures(), wired_limit():
        try:
            # All but the last token, whose logits begin the decoding.
            prompt = reply.rest[:-1]
            if not reply.is_read:
                done = (reader or prefill)(
                    network,
                    cache,
                    prompt,
                    step_size=step_size,
                    pace=pace,
                    on_progress=on_prefill,
                    on_held=hold_prompt,
                    should_stop=should_stop,
                )
                meter.reused = 0 if reader is None else reader.reused_tokens
                reply.rest = reply.rest[done:]
                reply.is_read = done == len(prompt)
            if should_stop() and not reply.is_read:
                reply.finish_reason = stopped
                return
            decoded = decode(
                network,
                cache,
                reply.chooser,
                int(reply.rest[-1]),
                max_tokens=reply.remaining(tokens),
                should_stop=lambda: stopped is not None,
                on_held=on_held,
                drafter=reply.drafter,
            )
            for token in decoded if reply.finish_reason is None else ():
                if not meter.first_token_s:
                    meter.first_token_s = time.perf_counter()
                yield from reply.add(token)
                if reply.finish_reason is not None:
                    break
                stopped = stopped or first_reason(ends, token)
            reply.rest = np.array([reply.chooser.latest[-1]], np.int32)
            reply.finish_reason = reply.finish_reason or stopped
        except ConstraintError as error:
            reply.fail(error)
        finally:
            meter.ended_s = time.perf_counter()
    if reply.finish_reason is not None:
        yield from reply.finish()
