"""Which tokenizers `tokenizers` reads from tokenizer.json exactly as transformers does.

transformers adds the tokens that other files name, and builds the tokenizers of some classes anew
from their vocabulary. It takes a second to import, so it is left out if it would change nothing,
and used in any doubt.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

# The special tokens with a name of their own. Source: transformers' SPECIAL_TOKENS_ATTRIBUTES.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Keys of tokenizer_config.json without effect on these tokenizers, or that are looked at.
_INERT = {
    *("add_bos_token", "add_eos_token", "chat_template", "clean_up_tokenization_spaces"),
    *("errors", "legacy", "max_length", "model_input_names", "model_max_length", "name_or_path"),
    *("pad_to_multiple_of", "pad_token_type_id", "processor_class", "tokenizer_class"),
    *("sp_model_kwargs", "spaces_between_special_tokens", "special_tokens_map_file", "stride"),
    *("tokenizer_file", "truncation_strategy", "use_default_system_prompt"),
    *("use_fast", "backend", "is_local", "local_files_only", "response_schema"),
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
}
# Others, with their values that have none.
_INERT_VALUES = {
    **dict.fromkeys(("add_prefix_space", "split_special_tokens"), (None, False)),
    **dict.fromkeys(("padding_side", "truncation_side"), ("left", "right")),
}
# Files of older tokenizers with further tokens, unless tokenizer_config.json lists all of them.
_OLDER = ("special_tokens_map.json", "added_tokens.json")

# The class that reads tokenizer.json as it is, by its names.
_PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}

# Types of models whose class transformers chooses whatever tokenizer_config.json names.
CHOSEN = {
    "qwen2": "Qwen2Tokenizer",
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "qwen4_exp": "Qwen3_5Tokenizer",
    "siglip2": "Siglip2Tokenizer",
    "hyperclovax_vision_v2": "GPT2Tokenizer",
}


@dataclass(frozen=True, slots=True)
class Specials:
    """The special tokens of a model's files: by name, as its chat template finds them, and others.

    They are special even if tokenizer.json does not flag them.
    """

    texts: dict[str, str]
    others: tuple[str, ...] = ()


def specials_if_alike(
    backend: tokenizers.Tokenizer,
    text: str,
    config: Mapping[str, Any],
    options: dict[str, Any],
    directory: Path,
) -> Specials | None:
    """The special tokens if transformers would read this `backend` from `directory`, too; None in
    any doubt. Some of its classes build parts of it anew, and so does this.

    `text` is tokenizer.json, `options` is tokenizer_config.json.
    """
    if "mlxchat" in config:
        # Converted by us: the files describe all of it.
        return _specials(options)
    kind = _kind(config, options, text)
    specials = None if kind is None else _specials(kind.defaults | options)
    if kind is None or specials is None:
        return None
    texts = {*specials.texts.values(), *specials.others}
    added = backend.get_added_tokens_decoder()
    alike = (
        isinstance(backend.model, models.BPE)
        and backend.truncation is None
        and backend.padding is None
        and "model_name" not in config
        and all(_is_inert(key, value) for key, value in options.items())
        and texts <= {token.content for token in added.values()}
        and _lists_the_same(options, added, directory)
        and (kind is _FILE or _build(kind, backend, options, texts))
    )
    return specials if alike else None


def _is_inert(key: str, value: Any) -> bool:
    """Whether this entry of tokenizer_config.json, unless looked at, changes nothing."""
    return key in _INERT or key.endswith("_token") or value in _INERT_VALUES.get(key, ())


def _lists_the_same(
    options: Mapping[str, Any], added: Mapping[int, AddedToken], directory: Path
) -> bool:
    """Whether no other file has tokens that are not `added`, with the same id and flags."""
    if "added_tokens_decoder" not in options:
        return not any((directory / name).exists() for name in _OLDER)
    flags = {str(id_): repr(token) for id_, token in added.items()}
    try:
        listed = options["added_tokens_decoder"].items()
        return all(flags.get(n) == repr(AddedToken(**known_flags(token))) for n, token in listed)
    except (AttributeError, TypeError):
        return False


def known_flags(token: dict[str, Any]) -> dict[str, Any]:
    """Without other keys, which `AddedToken` would report on stdout."""
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {key: value for key, value in token.items() if key in known}


def _specials(options: Mapping[str, Any]) -> Specials | None:
    others = options.get("extra_special_tokens") or options.get("additional_special_tokens") or []
    named = {
        key: value
        for key, value in options.items()
        if key in NAMED or (key.endswith("_token") and isinstance(value, str | dict))
    }
    if isinstance(others, dict):
        named, others = named | others, []
    texts = {key: _text(value) for key, value in named.items() if value is not None}
    listed: list[Any] = [_text(each) for each in others] if isinstance(others, list) else [None]
    return None if None in (*texts.values(), *listed) else Specials(texts, tuple(listed))


def _text(value: Any) -> Any:
    """The text of a special token, which may be an object; None if it is neither."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        value = value.get("content")
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Class:
    """What a class of transformers builds around tokenizer.json, and its special tokens."""

    normalizer: Any
    pre_tokenizer: Any
    decoder: Any
    falls_back_to_bytes: bool
    defaults: dict[str, str]


_FILE = Class(None, None, None, falls_back_to_bytes=False, defaults={})


def _qwen(letters: str) -> Class:
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}"
        rf"| ?[^\s{letters.strip('[]')}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return Class(
        normalizers.NFC(),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        decoders.ByteLevel(),
        falls_back_to_bytes=False,
        defaults=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    )


# Source: the classes' own constructors. Others are left to transformers.
CLASSES = {
    "Qwen2Tokenizer": _qwen(r"\p{L}"),
    "Qwen3_5Tokenizer": _qwen(r"[\p{L}\p{M}]"),
    "GemmaTokenizer": Class(
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        falls_back_to_bytes=True,
        defaults={f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad", "mask")},
    ),
}


def _kind(config: Mapping[str, Any], options: Mapping[str, Any], text: str) -> Class | None:
    """What transformers builds, if it is known: `_FILE` if exactly what the file describes."""
    model_type = config.get("model_type")
    name = options.get("tokenizer_class") or config.get("tokenizer_class")
    if model_type in CHOSEN:
        name = CHOSEN[model_type]
    elif name is None and model_type == "llama":
        return _FILE
    if not isinstance(name, str):
        return None
    if name in _PLAIN or (name.removesuffix("Fast") == "LlamaTokenizer" and '"ByteLevel"' in text):
        return _FILE
    return CLASSES.get(name.removesuffix("Fast"))


def _build(
    kind: Class,
    backend: tokenizers.Tokenizer,
    options: Mapping[str, Any],
    specials: Collection[str],
) -> bool:
    """Give `backend` the parts that the class builds, if that makes it the same otherwise."""
    backend.normalizer, backend.pre_tokenizer = kind.normalizer, kind.pre_tokenizer
    backend.decoder = kind.decoder
    model: Any = backend.model
    in_bytes = kind.falls_back_to_bytes
    model_flags = (model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges)
    added = backend.get_added_tokens_decoder()
    given = options.get("added_tokens_decoder", {})
    new = [id_ for id_, token in added.items() if model.token_to_id(token.content) is None]
    first = backend.get_vocab_size(with_added_tokens=False)
    return (
        model_flags == (kind.defaults["unk_token"] if in_bytes else None, in_bytes, in_bytes, False)
        and model.dropout is None
        and not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and (not given or len(given) == len(added))
        # It numbers them anew, and flags the special ones anew.
        and new == list(range(first, first + len(new)))
        and all(
            repr(token) == repr(AddedToken(token.content, special=True))
            for token in added.values()
            if token.content in specials
        )
    )
