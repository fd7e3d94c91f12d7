"""Which tokenizers `tokenizers` reads from tokenizer.json exactly as transformers does.

transformers adds the tokens that other files name, and builds the tokenizers of some classes anew
from their vocabulary. It takes a second to import, so it is left out if it would change nothing,
and used in any doubt.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

# The special tokens with a name of their own. Source: transformers' SPECIAL_TOKENS_ATTRIBUTES.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Keys of tokenizer_config.json without effect on these tokenizers, whatever their value.
_INERT = {
    *("add_bos_token", "add_eos_token", "chat_template", "clean_up_tokenization_spaces"),
    *("errors", "legacy", "max_length", "model_input_names", "model_max_length", "name_or_path"),
    *("pad_to_multiple_of", "pad_token_type_id", "processor_class"),
    *("sp_model_kwargs", "spaces_between_special_tokens", "special_tokens_map_file", "stride"),
    *("tokenizer_file", "truncation_strategy", "use_default_system_prompt"),
    *("use_fast", "backend", "is_local", "local_files_only", "response_schema"),
    # These are looked at.
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    "tokenizer_class",
}
# These have none if they are off, or name a side.
_OFF = {"add_prefix_space", "split_special_tokens"}
_SIDES = {"padding_side", "truncation_side"}

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
    read_other: Callable[[str], dict[str, Any]],
) -> Specials | None:
    """The special tokens if transformers would read this `backend`, too; None in any doubt.

    `text` is tokenizer.json, `options` is tokenizer_config.json, and `read_other` reads another
    file of the directory by its name, {} if there is none.
    """
    if "mlxchat" in config:
        # Converted by us: the files describe all of it.
        return _specials(options)
    merged = _merged(options, backend, read_other)
    kind = None if merged is None else _kind(config, merged, text)
    specials = None if merged is None or kind is None else _specials(kind.defaults | merged)
    if merged is None or kind is None or specials is None:
        return None
    texts = {*specials.texts.values(), *specials.others}
    alike = (
        isinstance(backend.model, models.BPE)
        and backend.truncation is None
        and backend.padding is None
        and "model_name" not in config
        and all(_is_inert(key, value) for key, value in merged.items())
        and texts <= {token.content for token in _added(backend).values()}
        and (kind is _FILE or _is_built_alike(kind, backend, merged, texts))
    )
    return specials if alike else None


def _is_inert(key: str, value: Any) -> bool:
    """Whether this entry of tokenizer_config.json, unless looked at, changes nothing."""
    return (
        key in _INERT
        or key.endswith("_token")
        or (key in _OFF and not value)
        or (key in _SIDES and value in ("left", "right"))
    )


def _merged(
    options: dict[str, Any],
    backend: tokenizers.Tokenizer,
    read_other: Callable[[str], dict[str, Any]],
) -> dict[str, Any] | None:
    """The options with the special tokens of older files. None if any of the files has other added
    tokens than tokenizer.json."""
    added = _added(backend)
    if "added_tokens_decoder" in options:
        return options if _are_added(options["added_tokens_decoder"], added) else None
    ids = {token.content: id_ for id_, token in added.items()}
    named = _as_texts(read_other("special_tokens_map.json"))
    if not read_other("added_tokens.json").items() <= ids.items():
        return None
    if _lists(options) and _lists(named) not in ([], _lists(options)):
        return None
    return options | named


def _added(backend: tokenizers.Tokenizer) -> dict[int, AddedToken]:
    return backend.get_added_tokens_decoder()


def _as_texts(named: dict[str, Any]) -> dict[str, Any]:
    """special_tokens_map.json, whose tokens need no type."""
    return {
        key: value | {"__type": "AddedToken"} if isinstance(value, dict) else value
        for key, value in named.items()
    }


def _lists(options: Mapping[str, Any]) -> list[Any]:
    keys = ("extra_special_tokens", "additional_special_tokens")
    return [options[key] for key in keys if options.get(key)]


def _are_added(decoder: Any, added: Mapping[int, AddedToken]) -> bool:
    """Whether each token of `added_tokens_decoder` is `added`, with the same id and flags."""
    flags = {str(id_): repr(token) for id_, token in added.items()}
    try:
        return all(
            flags.get(id_) == repr(AddedToken(**known_flags(token)))
            for id_, token in decoder.items()
        )
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
    listed = [_text(each) for each in others] if isinstance(others, list) else [None]
    if None in texts.values() or None in listed:
        return None
    return Specials(
        {key: text for key, text in texts.items() if text is not None},
        tuple(text for text in listed if text is not None),
    )


def _text(value: Any) -> str | None:
    """The text of a special token, which may be an object."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        value = value.get("content")
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Class:
    """What one of transformers' classes builds around the vocabulary of tokenizer.json, and the
    special tokens that it assumes."""

    normalizer: Any
    pre_tokenizer: Any
    decoder: Any
    falls_back_to_bytes: bool
    flags_anew: bool
    defaults: dict[str, str]


_FILE = Class(None, None, None, falls_back_to_bytes=False, flags_anew=False, defaults={})


def _qwen(letters: str, *, flags_anew: bool) -> Class:
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
        flags_anew=flags_anew,
        defaults=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    )


# Source: the classes' own constructors. Others are left to transformers.
CLASSES = {
    "Qwen2Tokenizer": _qwen(r"\p{L}", flags_anew=True),
    "Qwen3_5Tokenizer": _qwen(r"[\p{L}\p{M}]", flags_anew=False),
    "GemmaTokenizer": Class(
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        falls_back_to_bytes=True,
        flags_anew=False,
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
    is_llama = name.removesuffix("Fast") == "LlamaTokenizer"
    if name in _PLAIN or (is_llama and '"ByteLevel"' in text):
        return _FILE
    return CLASSES.get(name.removesuffix("Fast"))


def _is_built_alike(
    kind: Class,
    backend: tokenizers.Tokenizer,
    options: Mapping[str, Any],
    specials: Collection[str],
) -> bool:
    """Whether the class builds the tokenizer that tokenizer.json describes."""
    model: Any = backend.model
    unknown = _text(kind.defaults["unk_token"] if kind.falls_back_to_bytes else None)
    added = _added(backend)
    given = options.get("added_tokens_decoder", {})
    new = [id_ for id_, token in added.items() if model.token_to_id(token.content) is None]
    first = backend.get_vocab_size(with_added_tokens=False)
    return (
        _described(backend.normalizer) == _described(kind.normalizer)
        and _described(backend.pre_tokenizer) == _described(kind.pre_tokenizer)
        and _described(backend.decoder) == _described(kind.decoder)
        and model.dropout is None
        and not model.ignore_merges
        and not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and model.unk_token == unknown
        and model.fuse_unk == model.byte_fallback == kind.falls_back_to_bytes
        and (not given or len(given) == len(added))
        # It numbers them anew, and some flag the special ones anew.
        and new == list(range(first, first + len(new)))
        and not (kind.flags_anew and any(_has_flags(added[id_], specials) for id_ in added))
    )


def _has_flags(token: AddedToken, specials: Collection[str]) -> bool:
    """Whether this special token has other flags than most."""
    usual = AddedToken(token.content, special=True)
    return token.content in specials and repr(token) != repr(usual)


def _described(part: Any) -> Any:
    """The part of a tokenizer without what only concerns offsets."""
    described = {} if part is None else json.loads(part.__getstate__())
    if isinstance(part, decoders.ByteLevel):
        return described["type"]
    for each in described.get("pretokenizers", ()):
        each.pop("trim_offsets", None)
    return described
