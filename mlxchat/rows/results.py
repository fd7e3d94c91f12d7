"""The result of a row, and its line in the output: in our form, or in OpenAI's for its rows."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxchat.rows.row import Row

# JSON leaves these as they are. Many readers, such as Python's `splitlines`, treat some as line
# endings, and terminals obey others.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}

COUNTS = ("prompt_tokens", "cached_tokens", "generated_tokens", "evicted_tokens")

# The id that a row without one gets in OpenAI's form.
ROW_ID = "row-"


# A generated token: its text, its log-probability, and the likeliest tokens in its place.
Likely = tuple[str, float | None, list[tuple[str, float]]]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a row: an answer, or an `error`.

    `complete` is None without a constraint, and False with an `error` of the answer; `value` is the
    answer to a schema, if complete. `thought` is None if the row has none or hides it. `seconds`
    count from the first step of the row to the last, others running beside it. `notices` say what
    differs from a row run alone.
    """

    row: Row
    text: str = ""
    thought: str | None = None
    value: Any = None
    complete: bool | None = None
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    ttft_s: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    model: str = ""
    logprobs: Sequence[Likely] | None = None
    notices: tuple[str, ...] = ()
    error: str | None = None

    def line(self) -> str:
        """The line for the output, with its end."""
        record = _openai(self) if self.row.openai else _ours(self)
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        return text.translate(ESCAPED) + "\n"


def _ours(result: Result) -> dict[str, Any]:
    row = result.row
    if result.error is not None:
        id_ = row.number if row.id is None and row.error is None else row.id
        failed = {"id": id_, "row": row.number, "error": result.error}
        return failed | ({"text": result.text} if result.text else {})
    has_value = result.complete is True and result.value is not None
    record = {
        # The number is the name of a row without an id, and says so: another may have it as its id.
        "id": row.number if row.id is None else row.id,
        "row": row.number if row.id is None else None,
        **({"value": result.value} if has_value else {"text": result.text}),
        "finish_reason": result.finish_reason,
        "thought": result.thought,
        "complete": result.complete,
        "notices": list(result.notices) or None,
        "logprobs": _tokens(result, "text", "top"),
        **{name: getattr(result, name) for name in COUNTS},
        "ttft_s": round(result.ttft_s, 4),
        "seconds": round(result.seconds, 4),
        "seed": result.seed,
    }
    return {name: value for name, value in record.items() if value is not None}


def _openai(result: Result) -> dict[str, Any]:
    """Source: https://platform.openai.com/docs/guides/batch and the chat completion object."""
    row, id_ = result.row, f"{ROW_ID}{result.row.number}"
    if result.error is not None:
        code = "invalid_request" if row.error is not None else "failed"
        error = {"code": code, "message": result.error}
        return {"id": id_, "custom_id": row.id, "response": None, "error": error}
    usage = {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.generated_tokens,
        "total_tokens": result.prompt_tokens + result.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }
    body = {
        "id": f"chatcmpl-{id_}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": result.model,
        "choices": [_choice(result)],
        "usage": usage,
    }
    response = {"status_code": 200, "request_id": id_, "body": body}
    return {"id": id_, "custom_id": row.id, "response": response, "error": None}


def _choice(result: Result) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
    if result.thought is not None:
        message["reasoning_content"] = result.thought
    # OpenAI has no reason for a stop text apart.
    reason = "length" if result.finish_reason == "length" else "stop"
    tokens = _tokens(result, "token", "top_logprobs", bytes=None)
    logprobs = None if tokens is None else {"content": tokens}
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _tokens(result: Result, text: str, top: str, **more: Any) -> list[dict[str, Any]] | None:
    """The tokens with their log-probabilities, if wanted; the fields are named `text` and `top`."""

    def of(token: str, logprob: float | None) -> dict[str, Any]:
        is_number = logprob is not None and math.isfinite(logprob)
        return {text: token, "logprob": logprob if is_number else None, **more}

    if result.logprobs is None:
        return None
    return [
        {**of(token, logprob), top: [of(*each) for each in likeliest]}
        for token, logprob, likeliest in result.logprobs
    ]
