"""Load a tokenizer from a model directory.

`tokenizers` reads tokenizer.json. Older formats are converted by transformers, which takes a second
to import.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from mlxchat.errors import ModelBroken, ModelUnsupported
from mlxchat.failures import first_line
from mlxchat.models.skeleton import read_generation_config, read_json, text_config
from mlxchat.models.template_file import GivenTemplate
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer

SPECIAL_TEXTS = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_tokenizer(
    directory: Path, config: dict[str, Any], given: GivenTemplate | None = None
) -> Tokenizer:
    """Read the tokenizer, its chat template and the ids that end a reply. A `given` template
    replaces the model's.

    Raises ModelBroken if files are missing or unreadable, TemplateError if the template is.
    """
    options = _optional_json(directory / "tokenizer_config.json")
    backend = _load_backend(directory)
    texts = _special_texts(options, directory)
    source = _template_source(directory, options)
    template = ChatTemplate(source, texts) if source is not None and given is None else None
    if given is not None:
        template = ChatTemplate(given.source, texts, given.name)
        template.check()
    generation_config = read_generation_config(directory, lambda _: None)
    eos_ids = set(_eos_ids(config)) | set(_eos_ids(generation_config))
    eos_id = backend.token_to_id(texts["eos_token"]) if "eos_token" in texts else None
    if eos_id is not None:
        eos_ids.add(eos_id)
    return Tokenizer(backend, template, eos_ids)


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _load_backend(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        return _convert_with_transformers(directory)
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise ModelBroken(f"cannot read {path}: {first_line(error)}") from error


def _convert_with_transformers(directory: Path) -> tokenizers.Tokenizer:
    if not any((directory / name).is_file() for name in ("tokenizer.model", "vocab.json")):
        raise ModelBroken(
            f"{directory} has no tokenizer: tokenizer.json or tokenizer.model is missing"
        )
    # transformers warns on stderr if PyTorch, which is not needed here, is missing.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:
        raise ModelBroken(
            f"cannot convert the tokenizer in {directory}: {first_line(error)}"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelUnsupported(
            f"the tokenizer in {directory} is custom Python code ({type(tokenizer).__name__}); "
            "mlxchat needs a tokenizer.json"
        )
    return backend


def _special_texts(options: dict[str, Any], directory: Path) -> dict[str, str]:
    """The special tokens' texts by name, for templates."""
    named = _optional_json(directory / "special_tokens_map.json") | options
    texts: dict[str, str] = {}
    for name in SPECIAL_TEXTS:
        value = named.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            texts[name] = content
    return texts


def _template_source(directory: Path, options: dict[str, Any]) -> str | None:
    jinja_file = directory / "chat_template.jinja"
    if jinja_file.is_file():
        return jinja_file.read_text(encoding="utf-8")
    template = _optional_json(directory / "chat_template.json").get("chat_template")
    template = template or options.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _eos_ids(config: dict[str, Any]) -> Iterator[int]:
    for part in (config, text_config(config)):
        ids = part.get("eos_token_id")
        yield from (
            id_ for id_ in (ids if isinstance(ids, list) else [ids]) if isinstance(id_, int)
        )
