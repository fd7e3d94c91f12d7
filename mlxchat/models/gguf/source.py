"""Identifies a GGUF file and its version, and so its conversion."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import ModelNotFound

# Increase it when the same GGUF file would convert differently; old conversions are then ignored.
FORMAT_VERSION = 3
MAX_STEM_CHARACTERS = 64

# Key in a converted model's config.json for the file it came from.
ORIGIN = "mlxchat"


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file as it is now. A change of its size or modification time makes it another one."""

    path: Path  # as the user gave it, for messages
    resolved: Path
    size_bytes: int
    mtime_ns: int

    def directory_name(self) -> str:
        """A readable stem and a hash of everything the conversion depends on except the content."""
        identity = repr((str(self.resolved), self.size_bytes, self.mtime_ns, FORMAT_VERSION))
        digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.path.stem)
        readable = plain[:MAX_STEM_CHARACTERS].strip("-.") or "model"
        return f"{readable}-{digest}"


def identify(path: Path) -> Source:
    """Stat the file at `path`. Raises ModelNotFound if it does not exist."""
    try:
        resolved = path.resolve(strict=True)
        stat = resolved.stat()
    except (OSError, RuntimeError) as error:
        raise ModelNotFound(
            f"cannot find the GGUF file {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not resolved.is_file():
        raise ModelNotFound(f"{path} is not a regular file")
    return Source(path, resolved, stat.st_size, stat.st_mtime_ns)
