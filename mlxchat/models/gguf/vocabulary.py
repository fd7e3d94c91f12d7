"""A GGUF file's vocabulary: its tokens, their types, and those that begin and end a text.

It is checked here once, so that `tokenizer` can rely on it.
"""

from dataclasses import dataclass

from gguf.constants import TokenType

from mlxchat.models.gguf.read import GgufFile

PREFIX = "tokenizer.ggml"

# Control tokens that end a turn even if the metadata does not list them; older files name only one.
# Source: src/llama-vocab.cpp of ggml-org/llama.cpp.
END_OF_TURN = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "</s>",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, their types, and the ids of special tokens (None if the model has none)."""

    tokens: list[str]
    kinds: list[TokenType]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: list[int]  # every token that ends generation, eos first

    def of_kind(self, *kinds: TokenType) -> list[int]:
        return [index for index, kind in enumerate(self.kinds) if kind in kinds]

    def text(self, index: int | None) -> str | None:
        return None if index is None else self.tokens[index]


def read_vocabulary(file: GgufFile, embedded_tokens: int) -> Vocabulary:
    """Read the vocabulary of a model with `embedded_tokens` embeddings.

    Raises ModelBroken if its lists do not match each other or the model.
    """
    tokens = file.texts(f"{PREFIX}.tokens")
    # As in llama.cpp: two empty tokens would be indistinguishable.
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if not 1 <= len(tokens) <= embedded_tokens:
        raise file.broken(f"{len(tokens)} tokens but {embedded_tokens} embeddings")
    if len(set(tokens)) != len(tokens):
        raise file.broken("the vocabulary contains a token twice")
    kinds = _kinds(file, len(tokens))
    # llama.cpp's defaults, which only SentencePiece files rely on.
    llama = file.text(f"{PREFIX}.model") == "llama"
    eos = _token_id(file, "eos", len(tokens), 2 if llama else None)
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        bos=_token_id(file, "bos", len(tokens), 1 if llama else None),
        eos=eos,
        unknown=_token_id(file, "unknown", len(tokens), 0 if llama else None),
        padding=_token_id(file, "padding", len(tokens)),
        ends=_ends(file, tokens, kinds, eos),
    )


def _kinds(file: GgufFile, count: int) -> list[TokenType]:
    if f"{PREFIX}.token_type" not in file.metadata:
        return [TokenType.NORMAL] * count
    stored = file.numbers(f"{PREFIX}.token_type")
    if len(stored) != count:
        raise file.broken(f"{count} tokens but {len(stored)} token types")
    known = {kind.value: kind for kind in TokenType}
    return [known.get(number, TokenType.NORMAL) for number in stored.tolist()]


def _token_id(file: GgufFile, name: str, count: int, default: int | None = None) -> int | None:
    key = f"{PREFIX}.{name}_token_id"
    for index in (file.integer(key, -1), default):
        # For a token the model lacks, files have -1 or 2^32 - 1, or no key.
        if index is not None and 0 <= index < count:
            return index
    return None


def _ends(file: GgufFile, tokens: list[str], kinds: list[TokenType], eos: int | None) -> list[int]:
    named = [eos] + [_token_id(file, name, len(tokens)) for name in ("eot", "eom")]
    ends = [index for index in named if index is not None]
    ends += [
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == TokenType.CONTROL and token in END_OF_TURN
    ]
    return list(dict.fromkeys(ends))
