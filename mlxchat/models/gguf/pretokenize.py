"""How a byte-level vocabulary splits text before merging, by llama.cpp's names.

A wrong split would run but give worse text, so unknown names are refused. The patterns come from
the models' own tokenizer.json files.
Source of names and patterns: src/llama-vocab.cpp of ggml-org/llama.cpp.
"""

from dataclasses import dataclass

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
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """Patterns applied one after another, each to what the previous ones left unmatched.

    `ignore_merges`: a piece that is itself a token becomes that token. `add_bos`: the default if
    the file does not specify it. `nfc`: text is first normalized to Unicode's composed form.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_DIGITS_THEN_GPT2 = Splitting((r"\p{N}", _GPT2))
_LLAMA3_SPLITTING = Splitting((_LLAMA3,), ignore_merges=True, add_bos=True)

SPLITTINGS = {
    "deepseek-coder": Splitting(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
    ),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "deepseek-v3": Splitting((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    "default": Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon3": _LLAMA3_SPLITTING,
    "gpt-2": Splitting((_GPT2,)),
    "llama-bpe": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "llama3": _LLAMA3_SPLITTING,
    "megrez": Splitting((_QWEN2,)),
    "minerva-7b": _DIGITS_THEN_GPT2,
    "qwen2": Splitting((_QWEN2,), nfc=True),
    "refact": _DIGITS_THEN_GPT2,
    "smaug-bpe": Splitting((_LLAMA3,)),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "tekken": Splitting((_TEKKEN,), ignore_merges=True, add_bos=True),
}
