"""A chat template that the user gives instead of the model's."""

from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import UsageError
from mlxchat.files import open_to_read
from mlxchat.text.folder import readable_name
from mlxchat.text.template import ChatTemplate
from mlxchat.wording import Field

# The largest of a model is a thirtieth of this.
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class GivenTemplate:
    """A template's source; messages call it `name`."""

    source: str
    name: str


def read_template(path: Path) -> GivenTemplate:
    """Read the file, and try the template. Raises UsageError if it cannot be read, TemplateError if
    it is no template for a chat."""
    field, name = Field("chat_template"), readable_name(str(path))
    try:
        with open_to_read(path.expanduser()) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(field, f": cannot read {name}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(field, f": {name} is larger than {MAX_BYTES:,} bytes")
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(field, f": {name} is not UTF-8 text") from error
    if not source.strip():
        raise UsageError(field, f": {name} is empty")
    given = GivenTemplate(source, name)
    # Some templates need the special tokens' texts, which are not known yet.
    ChatTemplate(source, {}, given.name)
    return given
