"""Load a tokenizer from a model directory, and its chat template, or one that the user gives.

`tokenizers` reads tokenizer.json if that is all there is to it; all else is left to transformers,
which takes a second to import.
"""

import logging
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models

from mlxchat.errors import ModelBroken, ModelUnsupported, TemplateError, UsageError, first_line
from mlxchat.files import check_not_lfs_pointer
from mlxchat.models.skeleton import as_list, read_generation_config, read_json, text_config
from mlxchat.models.tokenizer_rules import Specials, known_flags, specials_if_alike
from mlxchat.text.documents import name_of
from mlxchat.text.template import OF_THE_MODEL, ChatTemplate
from mlxchat.text.tokens import Tokenizer

# Files that a tokenizer can be made from without a tokenizer.json.
VOCABULARIES = (
    *("tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json", "spiece.model"),
    "vocab.txt",
)


@dataclass(frozen=True, slots=True)
class GivenTemplate:
    """A template's source; messages call it `name`."""

    source: str
    name: str = OF_THE_MODEL


def load_tokenizer(
    directory: Path, config: dict[str, Any], given: GivenTemplate | None = None
) -> Tokenizer:
    """Read the tokenizer, its chat template, unless one is `given`, and the ids that end a reply.

    Raises ModelBroken if files are missing or unreadable, TemplateError if the template is.
    """
    path = directory / "tokenizer_config.json"
    options = read_json(path) if path.is_file() else {}
    backend, specials = _load_backend(directory, config, options)
    found = given or _model_template(directory, options)
    template = found and ChatTemplate(found.source, specials.texts, found.name)
    if given is not None and template is not None:
        template.check()
    generation_config = read_generation_config(directory, lambda _: None)
    named = (part.get("eos_token_id") for part in (config, text_config(config), generation_config))
    eos_id = backend.token_to_id(specials.texts.get("eos_token", ""))
    eos_ids = {id_ for ids in (*named, eos_id) for id_ in as_list(ids) if type(id_) is int}
    return Tokenizer(backend, template, eos_ids)


def _load_backend(
    directory: Path, config: dict[str, Any], options: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, Specials]:
    """The tokenizer, which neither cuts nor pads, and its special tokens."""
    path = directory / "tokenizer.json"
    flagged: list[str] = []
    backend = specials = None
    if path.is_file():
        check_not_lfs_pointer(path)
        try:
            text = path.read_text(encoding="utf-8")
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise ModelBroken(f"cannot read {path}: {first_line(error)}") from error
        added = backend.get_added_tokens_decoder().values()
        flagged = [token.content for token in added if token.special]
        specials = specials_if_alike(backend, text, config, options, directory)
    if backend is None or specials is None:
        backend, specials = _read_with_transformers(directory, options)
    backend.no_truncation()
    backend.no_padding()
    if not backend.encode_special_tokens:
        _flag(backend, [*flagged, *specials.texts.values(), *specials.others])
    # A tokenizer that writes bytes as characters needs the decoder that reads them, whatever its
    # files say: published conversions have SentencePiece's.
    before = (backend.normalizer, backend.pre_tokenizer)
    if any(map(_has_bytes, before)) and not _has_bytes(backend.decoder):
        backend.decoder = decoders.ByteLevel()
    return backend, specials


def _read_with_transformers(
    directory: Path, options: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, Specials]:
    """What transformers' AutoTokenizer makes of the directory, without running its code."""
    names = ("tokenizer.json", *VOCABULARIES)
    if not any((directory / name).is_file() for name in names):
        raise ModelBroken(
            f"{directory} has no tokenizer: tokenizer.json or tokenizer.model is missing"
        )
    for name in (*names, "merges.txt", "added_tokens.json", "special_tokens_map.json"):
        check_not_lfs_pointer(directory / name)
    cleaned: dict[str, Any] = {}
    added = options.get("added_tokens_decoder")
    if isinstance(added, dict) and all(isinstance(each, dict) for each in added.values()):
        cleaned["added_tokens_decoder"] = {id_: known_flags(each) for id_, each in added.items()}
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    try:
        with warnings.catch_warnings(action="ignore"):
            from transformers import AutoTokenizer
            from transformers.utils.logging import set_verbosity

            # If it has been imported before.
            set_verbosity(logging.CRITICAL)
            tokenizer: Any = AutoTokenizer.from_pretrained(
                str(directory),
                local_files_only=True,
                trust_remote_code=False,
                mistral_format=False,
                **cleaned,
            )
    except Exception as error:
        reason = first_line(error).rstrip(" :")
        raise ModelBroken(
            f"transformers cannot read the tokenizer in {directory}: {reason}"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelUnsupported(
            f"the tokenizer in {directory} is custom Python code ({type(tokenizer).__name__}); "
            "mlxchat needs a tokenizer.json"
        )
    if tokenizer.clean_up_tokenization_spaces and not isinstance(backend.model, models.BPE):
        _clean_up(backend)
    return backend, Specials(tokenizer.special_tokens_map, tuple(tokenizer.extra_special_tokens))


def _clean_up(backend: tokenizers.Tokenizer) -> None:
    """Decode without the spaces that transformers removes after decoding."""
    spaced = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
    steps = [decoders.Replace(text, text.strip()) for text in spaced]
    first = [] if backend.decoder is None else [backend.decoder]
    backend.decoder = decoders.Sequence([*first, decoders.Fuse(), *steps])


def _flag(backend: tokenizers.Tokenizer, specials: Iterable[str]) -> None:
    """Flag as special what any of the files calls special."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for text in specials:
        token = added.get(text)
        if token is not None and not token.special:
            token.special = True
            backend.add_special_tokens([token])


def _has_bytes(part: Any) -> bool:
    return part is not None and b'"ByteLevel"' in part.__getstate__()


def read_template(path: Path) -> GivenTemplate:
    """Read and try the template. Raises UsageError if unreadable, TemplateError if it is none."""
    name = name_of(str(path))
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--chat-template: cannot read {name}: {reason}") from error
    if not source.strip():
        raise UsageError(f"--chat-template: {name} is empty")
    # Some templates need the special tokens' texts, which are not known yet.
    ChatTemplate(source, {}, name)
    return GivenTemplate(source, name)


def _model_template(directory: Path, options: dict[str, Any]) -> GivenTemplate | None:
    """The model's template, None if it has none; `options` is tokenizer_config.json.

    Its place and name are found as transformers finds them; chat_template.json, which that reads
    for other kinds of models only, comes last. Raises ModelBroken or TemplateError.
    """
    path = directory / "chat_template.jinja"
    found: Any = {"default": _read(path)} if path.is_file() else {}
    others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    found |= {each.stem: _read(each) for each in others}
    found = found or options.get("chat_template")
    json_file = directory / "chat_template.json"
    if found is None and json_file.is_file():
        found = read_json(json_file).get("chat_template")
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, dict)]
        found = {str(each.get("name")): each.get("template") for each in named}
    if isinstance(found, dict):
        if "default" not in found:
            raise TemplateError(
                "the model has several chat templates but none named default: give one "
                "with --chat-template"
            )
        found = found["default"]
    if found is not None and not isinstance(found, str):
        raise ModelBroken(f"the chat template in {directory} is not text")
    return None if found is None else GivenTemplate(found)


def _read(path: Path) -> str:
    check_not_lfs_pointer(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelBroken(f"cannot read {path}: {error}") from error
