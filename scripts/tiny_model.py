"""Write a model directory with random weights and a byte tokenizer: for tests and benchmarks.

    python -m scripts.tiny_model DIRECTORY [--layers 2] [--width 32] [--vocabulary 288]
                                           [--form float32]

One byte of text is one token, with ids 0 to 255; control tokens come after. The output of such a
model is noise, but its cost and behaviour are real.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import tokenizers
from mlx import nn
from mlx.utils import tree_flatten
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from mlxchat.models.skeleton import build_skeleton
from scripts.forms import FORMS, put_in_form

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK_TOKENS = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_config(layers: int = 2, width: int = 32, vocabulary: int = 288) -> dict[str, Any]:
    """A llama's configuration, with a trained context of 4,096 tokens."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": width * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "eos_token_id": 258,
    }


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A token for each byte; ids in the order of the bytes."""
    alphabet = _byte_alphabet()
    tokenizer = tokenizers.Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in THINK_TOKENS])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The character for each byte in byte-level BPE. Source: GPT-2's encoder."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    generation_config: dict[str, Any] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    config: dict[str, Any] | None = None,
    form: str = "float32",
    network: nn.Module | None = None,
) -> Path:
    """Write the model into `directory`, which is created, and return it.

    `form` is one of FORMS. `network` must match `config`, and is converted to that form; without
    it, a new network with random weights is written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = config or tiny_config()
    mx.random.seed(seed)
    network = network or build_skeleton(config)
    config = put_in_form(network, config, form)
    (directory / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    # Or transformers would build the tokenizer of some families anew.
    options: dict[str, Any] = {
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if chat_template is not None:
        options["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    if generation_config is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation_config))
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=288)
    parser.add_argument("--form", choices=FORMS, default="float32")
    options = parser.parse_args()
    config = tiny_config(options.layers, options.width, options.vocabulary)
    print(write_tiny_model(options.directory, config=config, form=options.form))


if __name__ == "__main__":
    main()
