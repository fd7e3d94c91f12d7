"""Answers from the sections of large documents, kept so that the same command continues a reading
that was stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mlxchat import paths
from mlxchat.app.opening import Loaded
from mlxchat.files import append_line, make_private_directory, write_atomically
from mlxchat.passages.quote import LineRange, heading
from mlxchat.request import Request
from mlxchat.text.document import Document

# What a model writes if a section says nothing about the question, as it is asked to.
NOTHING = "nothing"
SUFFIX = ".answers"


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer from a section of a document."""

    place: LineRange
    text: str

    @property
    def says_something(self) -> bool:
        return self.text.strip(" .!*\"'").casefold() not in ("", NOTHING)

    def quoted(self) -> str:
        """The answer with its place, as the model reads it."""
        return heading(self.place) + self.text


class SectionAnswers:
    """The file at `path` with an answer a line; None keeps nothing. `warn` gets a line if the file
    cannot be written."""

    def __init__(self, path: Path | None, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn

    @classmethod
    def of(
        cls,
        request: Request,
        documents: Sequence[Document],
        loaded: Loaded,
        warn: Callable[[str], None],
    ) -> SectionAnswers:
        """The answers that these documents, this question, model and window lead to."""
        if not request.setup.prefix_cache:
            return cls(None, warn)
        facts = [
            *([each.name, each.digest] for each in documents),
            [request.prompt, request.system, request.variables()],
            [str(loaded.fingerprint()), asdict(loaded.settings), asdict(loaded.sampling)],
        ]
        facts[-1][-1].pop("seed")
        digest = hashlib.blake2b(json.dumps(facts, default=str).encode(), digest_size=20)
        return cls(paths.document_indexes_dir() / f"{digest.hexdigest()}{SUFFIX}", warn)

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def read(self) -> list[Answered]:
        """The answers in the file; what follows a damaged line is deleted from it."""
        found: list[Answered] = []
        if self._path is None:
            return found
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except OSError:
            return found
        for line in lines:
            try:
                file, first, last, text = json.loads(line)
                found.append(Answered(LineRange(str(file), int(first), int(last)), str(text)))
            except (ValueError, TypeError):
                with suppress(OSError):
                    write_atomically(self._path, b"".join(lines[: len(found)]))
                break
        return found

    def add(self, answer: Answered) -> None:
        if self._path is None:
            return
        place = answer.place
        line = json.dumps([place.file, place.first, place.last, answer.text])
        try:
            if self._path.exists():
                append_line(self._path, line)
            else:
                make_private_directory(self._path.parent)
                write_atomically(self._path, f"{line}\n".encode())
        except OSError as error:
            self._path = None
            self._warn(f"answers so far are not kept: {error.strerror or error}")

    def discard(self) -> None:
        """Delete the file: the reading has ended."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
