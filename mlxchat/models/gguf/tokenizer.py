"""Turns a GGUF file's tokenizer into Hugging Face's: byte-level BPE, or SentencePiece's BPE.

Control tokens become special tokens, so that encoding a text can never produce one.
"""

from typing import Any

from gguf.constants import TokenType
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
from mlxchat.models.gguf.pretokenize import SPLITTINGS, Splitting
from mlxchat.models.gguf.read import GgufFile
from mlxchat.models.gguf.vocabulary import PREFIX, Vocabulary

SPACE = "\u2581"  # SentencePiece's space


def build_tokenizer(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer. Raises ModelUnsupported, naming the kind, if it is another one."""
    model = file.text(f"{PREFIX}.model")
    if model == "gpt2":
        tokenizer = _byte_level(file, vocabulary)
    elif model == "llama":
        tokenizer = _sentencepiece(file, vocabulary)
    else:
        raise ModelUnsupported(
            f"{file.path}: unsupported kind of tokenizer {model!r}; supported: gpt2, llama"
        )
    _add_tokens(tokenizer, vocabulary)
    _add_frame(file, tokenizer, vocabulary)
    return tokenizer


def tokenizer_config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer_config.json, including the chat template, if any."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(file),
        "add_eos_token": _adds_eos(file),
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
    }
    if "tokenizer.chat_template" in file.metadata:
        config["chat_template"] = file.text("tokenizer.chat_template")
    return config


def _splitting(file: GgufFile) -> Splitting:
    name = file.text(f"{PREFIX}.pre", "")
    if not name:
        raise ModelUnsupported(
            f"{file.path} does not specify how its tokenizer splits text: it was made before "
            "April 2024; use a newer one"
        )
    if name not in SPLITTINGS:
        raise ModelUnsupported(
            f"{file.path}: unknown pre-tokenizer {name!r}; known: {', '.join(SPLITTINGS)}"
        )
    return SPLITTINGS[name]


def _adds_bos(file: GgufFile) -> bool:
    sentencepiece = file.text(f"{PREFIX}.model") == "llama"
    return file.flag(f"{PREFIX}.add_bos_token", sentencepiece or _splitting(file).add_bos)


def _adds_eos(file: GgufFile) -> bool:
    return file.flag(f"{PREFIX}.add_eos_token", False)


def _byte_level(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    splitting = _splitting(file)
    model = BPE(
        vocab=_ids(vocabulary),
        merges=_stored_merges(file, vocabulary),
        ignore_merges=splitting.ignore_merges,
    )
    tokenizer = Tokenizer(model)
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: index for index, token in enumerate(vocabulary.tokens)}


def _stored_merges(file: GgufFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The file's merges, each stored as `left right`. Raises ModelBroken for an invalid one."""
    tokens = set(vocabulary.tokens)
    control = {vocabulary.tokens[index] for index in vocabulary.of_kind(TokenType.CONTROL)}
    merges: list[tuple[str, str]] = []
    for merge in file.texts(f"{PREFIX}.merges"):
        left, _, right = merge.partition(" ")
        if left not in tokens or right not in tokens or left + right not in tokens:
            raise file.broken(f"merge {merge!r} uses unknown tokens")
        if left + right not in control:  # else plain text could become a control token
            merges.append((left, right))
    return merges


def _sentencepiece(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    # Like llama.cpp, put a space before each stretch of text, also after special tokens.
    prefixed = file.flag(f"{PREFIX}.add_space_prefix", True)
    model = BPE(
        vocab=_ids(vocabulary),
        merges=_scored_merges(file, vocabulary),
        unk_token=vocabulary.text(vocabulary.unknown),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    to_marks = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), to_marks]) if prefixed else to_marks
    )
    from_marks = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence([*from_marks, *strip])
    return tokenizer


def _scored_merges(file: GgufFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every merge of two tokens into a third, best score first.

    SentencePiece merges the neighbours that form the best token. On a tie, the longer left part
    wins. Source: `generate_merges` of transformers, which made such models' tokenizer.json files.
    """
    scores = file.numbers(f"{PREFIX}.scores").tolist()
    if len(scores) != len(vocabulary.tokens):
        raise file.broken(f"{len(vocabulary.tokens)} tokens but {len(scores)} scores")
    # Leave out merges into control tokens, or plain text could become one.
    indices = vocabulary.of_kind(TokenType.NORMAL, TokenType.USER_DEFINED)
    tokens = {vocabulary.tokens[index]: scores[index] for index in indices}
    merges = [
        (-score, -cut, token)
        for token, score in tokens.items()
        for cut in range(1, len(token))
        if token[:cut] in tokens and token[cut:] in tokens
    ]
    merges.sort(key=lambda merge: merge[:2])
    return [(token[:-cut], token[-cut:]) for _, cut, token in merges]


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Make control tokens special, and match user-defined tokens anywhere in a text."""
    for special, kinds in (
        (True, (TokenType.CONTROL, TokenType.UNKNOWN)),
        (False, (TokenType.USER_DEFINED,)),
    ):
        tokenizer.add_tokens(
            [
                AddedToken(vocabulary.tokens[index], special=special, normalized=False)
                for index in vocabulary.of_kind(*kinds)
            ]
        )


def _add_frame(file: GgufFile, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Make `encode(…, add_special_tokens=True)` add the model's begin and end tokens."""
    bos = vocabulary.text(vocabulary.bos) if _adds_bos(file) else None
    eos = vocabulary.text(vocabulary.eos) if _adds_eos(file) else None
    if (_adds_bos(file) and bos is None) or (_adds_eos(file) and eos is None):
        raise file.broken("the tokenizer adds a begin or end token that it does not define")
    frame = [token for token in (bos, eos) if token is not None]
    if not frame:
        return
    single = [token for token in (bos, "$A", eos) if token is not None]
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(frame)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
