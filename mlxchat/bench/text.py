"""A long text to read: a file named by the user, or one found on most machines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import InputError
from mlxchat.text.documents import piped_stdin, read_input
from mlxchat.wording import Field

# Upper bound for texts that the tokenizer was made for.
MAX_CHARS_PER_TOKEN = 16

# Prose that comes with macOS (Perl, Vim) or with Linux (Vim, Debian's licences).
FILES = (
    "System/Library/Perl/*/pods/perlfaq4.pod",
    "usr/share/vim/vim*/doc/options.txt",
    "usr/share/common-licenses/GPL-3",
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name of its source."""

    source: str
    text: str
    notices: tuple[str, ...] = ()


def read_text(path: str) -> Text:
    """The file named by the user, `-` for standard input. Raises what `read_input` raises."""
    stdin = piped_stdin() if path == "-" else None
    read = read_input(None, (path,), stdin, headings=False)
    return Text(path, read.text, read.notices)


def find_text(candidates: Sequence[Callable[[], Iterator[Text]]] | None = None) -> Text:
    """The longest known text on this machine. Raises InputError if none is found."""
    found = [text for candidate in candidates or (pydoc_topics, files) for text in candidate()]
    if not found:
        raise InputError("found no long text on this machine: give one with ", Field("text"))
    return max(found, key=lambda text: len(text.text))


def pydoc_topics() -> Iterator[Text]:
    """Python's own reference, which is the same on all machines with the same Python."""
    try:
        from pydoc_data import topics
    except ImportError:
        return
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    yield Text(f"Python's reference in {topics.__file__}", text)


def files(root: Path = Path("/")) -> Iterator[Text]:
    for pattern in FILES:
        for path in sorted(root.glob(pattern)):
            try:
                yield Text(str(path), path.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
