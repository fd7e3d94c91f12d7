"""The source of a chat template: the model's, or one that the user gives instead."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxchat.errors import ModelBroken, TemplateError, UsageError
from mlxchat.files import check_not_lfs_pointer
from mlxchat.models.skeleton import read_json
from mlxchat.text.documents import name_of
from mlxchat.text.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class GivenTemplate:
    """A template's source; messages call it `name`."""

    source: str
    name: str


def read_template(path: Path) -> GivenTemplate:
    """Read the file, and try the template. Raises UsageError if it cannot be read, TemplateError if
    it is no template for a chat."""
    name = name_of(str(path))
    try:
        source = path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--chat-template: cannot read {name}: {reason}") from error
    if not source.strip():
        raise UsageError(f"--chat-template: {name} is empty")
    given = GivenTemplate(source, name)
    # Some templates need the special tokens' texts, which are not known yet.
    ChatTemplate(source, {}, given.name)
    return given


def model_template(directory: Path, options: dict[str, Any]) -> str | None:
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
    return found


def _read(path: Path) -> str:
    check_not_lfs_pointer(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelBroken(f"cannot read {path}: {error}") from error
