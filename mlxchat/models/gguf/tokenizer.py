"""Turns a GGUF file's vocabulary into Hugging Face's tokenizer: byte-level BPE, or SentencePiece's.

transformers reads GGUF only with PyTorch, and splits the text of some models as GPT-2 does.
Control tokens become special tokens, so that encoding a text can never produce one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gguf import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.read import GgufFile

PREFIX = "tokenizer.ggml"
ADDS_EOS = f"{PREFIX}.add_eos_token"
SPACE = "\u2581"  # SentencePiece's space

# How a byte-level vocabulary splits text before merging: patterns applied one after another, each
# to what the previous ones left unmatched, by llama.cpp's names. A wrong split would run but give
# worse text, so unknown names are refused. The patterns come from the models' own tokenizer.json
# files. Source of the names: src/llama-vocab.cpp of ggml-org/llama.cpp.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTINGS = {
    "gpt-2": (_GPT2,),
    "smaug-bpe": (_LLAMA3,),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("falcon3", "llama-bpe", "llama-v3", "llama3"), (_LLAMA3,)),
    **dict.fromkeys(("minerva-7b", "refact", "smollm", "starcoder"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "qwen2"), (_QWEN2,)),
}
# Models that begin a text with a token, and for which a piece that is a token becomes that token.
LIKE_LLAMA3 = ("falcon3", "llama-bpe", "llama-v3", "llama3", "tekken")

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

# generation_config.json's names for the metadata.
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Tokens by id, their types, the ids of special tokens by name (None if the model has none),
    and every token that ends generation, eos first."""

    tokens: list[str]
    kinds: list[int]
    special: dict[str, int | None]
    ends: list[int]

    def of_kind(self, *kinds: TokenType) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]

    def text(self, name: str) -> str | None:
        index = self.special[name]
        return None if index is None else self.tokens[index]

    def ids(self) -> dict[str, Any]:
        """The ids of special tokens, by Hugging Face's names."""
        ids = self.special | {"eos": self.ends or None}
        return {f"{n}_token_id": each for n, each in ids.items() if n != "unk" and each is not None}


def read_vocabulary(file: GgufFile, embedded_tokens: int) -> TokenTable:
    """Read the vocabulary of a model with `embedded_tokens` embeddings.

    Raises ModelBroken if its lists do not match each other or the model.
    """
    # As in llama.cpp: two empty tokens would be indistinguishable.
    stored = _texts(file, f"{PREFIX}.tokens")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(stored)]
    if not 1 <= len(tokens) <= embedded_tokens:
        raise file.broken(f"{len(tokens)} tokens but {embedded_tokens} embeddings")
    if len(set(tokens)) != len(tokens):
        raise file.broken("the vocabulary contains a token twice")
    kinds = file.get(f"{PREFIX}.token_type", list, [int(TokenType.NORMAL)] * len(tokens))
    if len(kinds) != len(tokens):
        raise file.broken(f"{len(tokens)} tokens but {len(kinds)} token types")

    # llama.cpp's defaults, which only SentencePiece files rely on.
    is_llama = file.get(f"{PREFIX}.model", str) == "llama"
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if is_llama else {}

    def find(name: str) -> int | None:
        # For a token the model lacks, files have -1 or 2^32 - 1, or no key.
        candidates = (file.get(f"{PREFIX}.{name}_token_id", int, -1), defaults.get(name, -1))
        return next((index for index in candidates if 0 <= index < len(tokens)), None)

    special = {name: find(name) for name in ("bos", "eos")}
    special |= {"unk": find("unknown"), "pad": find("padding")}
    ends = [index for index in (special["eos"], find("eot"), find("eom")) if index is not None]
    control = [index for index, kind in enumerate(kinds) if kind == TokenType.CONTROL]
    ends += [index for index in control if tokens[index] in END_OF_TURN]
    return TokenTable(tokens, kinds, special, list(dict.fromkeys(ends)))


def _texts(file: GgufFile, key: str) -> list[str]:
    texts = file.get(key, list)
    if not all(isinstance(each, str) for each in texts):
        raise file.broken(f"{key} is not a list of strings")
    return texts


def recommended_sampling(file: GgufFile) -> dict[str, Any]:
    """What the model's makers recommend, if the file has it."""
    values = {name: file.metadata.get(key) for name, key in SAMPLING_KEYS.items()}
    # Stored in float32, in which 0.95 is 0.949999988.
    numbers = {name: each for name, each in values.items() if isinstance(each, int | float)}
    return {name: round(each, 6) for name, each in numbers.items()}


def tokenizer_config(file: GgufFile, vocabulary: TokenTable) -> dict[str, Any]:
    """The content of tokenizer_config.json, including the chat template, if any."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(file),
        "add_eos_token": file.get(ADDS_EOS, bool, False),
        **{f"{name}_token": vocabulary.text(name) for name in vocabulary.special},
    }
    if "tokenizer.chat_template" in file.metadata:
        config["chat_template"] = file.get("tokenizer.chat_template", str)
    return config


def build_tokenizer(file: GgufFile, vocabulary: TokenTable) -> Tokenizer:
    """Build the tokenizer. Raises ModelUnsupported, naming the kind, if it is another one."""
    model = file.get(f"{PREFIX}.model", str)
    if model not in ("gpt2", "llama"):
        raise file.unsupported(f"unsupported kind of tokenizer {model!r}; supported: gpt2, llama")
    tokenizer = (_byte_level if model == "gpt2" else _sentencepiece)(file, vocabulary)
    special = vocabulary.of_kind(TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    # Matched anywhere in a text.
    others = vocabulary.of_kind(TokenType.USER_DEFINED)
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in others])
    _add_frame(file, tokenizer, vocabulary)
    return tokenizer


def _splitting(file: GgufFile) -> str:
    name = file.get(f"{PREFIX}.pre", str, "")
    if not name:
        raise ModelUnsupported(
            f"{file.path} does not specify how its tokenizer splits text: it was made before "
            "April 2024; use a newer one"
        )
    if name not in SPLITTINGS:
        raise file.unsupported(
            f"unknown pre-tokenizer {name!r}; known: {', '.join(sorted(SPLITTINGS))}"
        )
    return name


def _adds_bos(file: GgufFile) -> bool:
    default = file.get(f"{PREFIX}.model", str) == "llama" or _splitting(file) in LIKE_LLAMA3
    return file.get(f"{PREFIX}.add_bos_token", bool, default)


def _ids(vocabulary: TokenTable) -> dict[str, int]:
    return {token: index for index, token in enumerate(vocabulary.tokens)}


def _byte_level(file: GgufFile, vocabulary: TokenTable) -> Tokenizer:
    name = _splitting(file)
    ids, merges = _ids(vocabulary), list(_stored_merges(file, vocabulary))
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges, ignore_merges=name in LIKE_LLAMA3))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITTINGS[name]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _stored_merges(file: GgufFile, vocabulary: TokenTable) -> Iterator[tuple[str, str]]:
    """The file's merges, each stored as `left right`. Raises ModelBroken for an invalid one."""
    tokens, control = set(vocabulary.tokens), set(vocabulary.of_kind(TokenType.CONTROL))
    for merge in _texts(file, f"{PREFIX}.merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= tokens:
            raise file.broken(f"merge {merge!r} uses unknown tokens")
        if left + right not in control:  # else plain text could become a control token
            yield left, right


def _sentencepiece(file: GgufFile, vocabulary: TokenTable) -> Tokenizer:
    # Like llama.cpp, put a space before each stretch of text, also after special tokens.
    prefixed = file.get(f"{PREFIX}.add_space_prefix", bool, True)
    model = BPE(
        vocab=_ids(vocabulary),
        merges=_scored_merges(file, vocabulary),
        unk_token=vocabulary.text("unk"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    from_marks = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence([*from_marks, *strip])
    return tokenizer


def _scored_merges(file: GgufFile, vocabulary: TokenTable) -> list[tuple[str, str]]:
    """Every merge of two tokens into a third, best score first.

    SentencePiece merges the neighbours that form the best token. On a tie, the longer left part
    wins. Source: `generate_merges` of transformers, which made such models' tokenizer.json files.
    """
    scores = file.get(f"{PREFIX}.scores", list)
    if len(scores) != len(vocabulary.tokens) or not all(isinstance(x, float) for x in scores):
        raise file.broken(f"{len(vocabulary.tokens)} tokens but {len(scores)} scores")
    score_of = dict(zip(vocabulary.tokens, scores, strict=True))
    # Leave out merges into control tokens, or plain text could become one.
    tokens = dict.fromkeys(vocabulary.of_kind(TokenType.NORMAL, TokenType.USER_DEFINED))
    merges = [
        (-score_of[token], -cut, token)
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in tokens and token[cut:] in tokens
    ]
    merges.sort(key=lambda merge: merge[:2])
    return [(token[:-cut], token[-cut:]) for _, cut, token in merges]


def _add_frame(file: GgufFile, tokenizer: Tokenizer, vocabulary: TokenTable) -> None:
    """Make `encode(…, add_special_tokens=True)` add the model's begin and end tokens."""
    before = [vocabulary.text("bos")] if _adds_bos(file) else []
    after = [vocabulary.text("eos")] if file.get(ADDS_EOS, bool, False) else []
    added = {token for token in (*before, *after) if token is not None}
    if None in (*before, *after):
        raise file.broken("the tokenizer adds a begin or end token that it does not define")
    if added:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*map(str, before), "$A", *map(str, after)],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in added],
        )
