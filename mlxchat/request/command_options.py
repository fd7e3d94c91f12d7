"""The options of the commands that run a model, by field."""

from dataclasses import replace

from mlxchat.options import Option, options_of
from mlxchat.request.answer import Answer
from mlxchat.request.batch import BatchInput, BatchRequest
from mlxchat.request.chat import ChatOptions
from mlxchat.request.generate import Request
from mlxchat.request.overnight import Overnight
from mlxchat.request.setup import Setup
from mlxchat.settings import GenerationSettings, SamplingSettings


def _all_of(*kinds: type) -> dict[str, Option]:
    return {name: each for kind in kinds for name, each in options_of(kind).items()}


CHAT_KEEP = replace(options_of(Setup)["keep"], default=ChatOptions().setup.keep)

# Generation is greedy without a recommendation; a chat always has one.
CHAT_SAMPLING = {
    name: replace(each, if_unset=each.if_unset or "as recommended for the model")
    for name, each in options_of(SamplingSettings).items()
}

IN_CHAT = ("max_tokens", "min_tokens", "stop", "lookup", "num_draft_tokens")

GENERATE = _all_of(Request, Setup, SamplingSettings, Answer, Overnight)
CHAT = {
    **_all_of(ChatOptions, Setup),
    **CHAT_SAMPLING,
    **{name: options_of(GenerationSettings)[name] for name in IN_CHAT},
    **options_of(Answer),
    "keep": CHAT_KEEP,
}

# A batch runs on one machine, and its answers are whole texts.
NOT_IN_BATCH = ("pipeline", "extract", "extract_last")

BATCH = {
    name: each
    for name, each in _all_of(BatchInput, BatchRequest, Setup, SamplingSettings, Answer).items()
    if name not in NOT_IN_BATCH
}
