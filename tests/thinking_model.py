"""A model that thinks before it answers, always the same, for tests of thoughts.

A llama with one layer that adds nothing to its input, so that each token alone determines the next.
Greedy output is a chain that starts where the template's generation prompt ends. The template is
modelled on Qwen 3's: if `enable_thinking` is false, the prompt ends with an empty thought, and
older turns are rendered without theirs.
"""

import json
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Tokenizer

from mlxchat.models.skeleton import build_skeleton
from scripts.tiny_model import byte_tokenizer, tiny_config
from tests.chat_templates import FORGETS_THOUGHTS

THOUGHT, ANSWER = "Hm, duck?", "Yes!"

# If the prompt ends with a newline it thinks; after the blank line of a thought it answers.
_BLANK_LINE = "\n\n"
_CHAIN = ("\n", "<think>", *THOUGHT, "</think>", _BLANK_LINE, *ANSWER, "<|im_end|>")


def write_thinking_model(directory: Path) -> Path:
    """Write the model into `directory`, which is created, and return it."""
    directory.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    # One token, as in Qwen: a single newline is followed by something else.
    tokenizer.add_tokens([AddedToken(_BLANK_LINE, special=False)])
    tokenizer.save(str(directory / "tokenizer.json"))
    # Wide enough to give each token its own direction.
    config = tiny_config(layers=1, width=288)
    (directory / "config.json").write_text(json.dumps(config))
    weights = _weights(tokenizer, build_skeleton(config).parameters())
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    options = {"eos_token": "<|im_end|>", "chat_template": FORGETS_THOUGHTS}
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    return directory


def _weights(tokenizer: Tokenizer, random: object) -> dict[str, mx.array]:
    weights: dict[str, mx.array] = dict(tree_flatten(random))
    silent = [name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))]
    return {
        **weights,
        **{name: mx.zeros_like(weights[name]) for name in silent},
        "model.embed_tokens.weight": mx.eye(288),
        "lm_head.weight": _successors(tokenizer),
    }


def _successors(tokenizer: Tokenizer) -> mx.array:
    """Which token (row) follows which (column); any token outside the chain ends it."""
    ids = [id_ for text in _CHAIN for id_ in tokenizer.encode(text).ids]
    assert len(set(ids)) == len(ids) == len(_CHAIN)
    follows = dict(pairwise(ids))
    rows = [follows.get(id_, ids[-1]) for id_ in range(288)]
    return mx.eye(288)[mx.array(rows)].T
