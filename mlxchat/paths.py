"""The version of this release, and the paths of its files on a user's disk."""

from pathlib import Path

import platformdirs

__version__ = "0.1.0"


def config_file() -> Path:
    return Path(platformdirs.user_config_dir("mlxchat")) / "config.toml"


def history_file() -> Path:
    """Lines typed in chats, for the up arrow."""
    return Path(platformdirs.user_state_dir("mlxchat")) / "history"


def sessions_dir() -> Path:
    """The database of all chats, and their saved states."""
    return Path(platformdirs.user_data_dir("mlxchat")) / "sessions"


def prefix_cache_dir() -> Path:
    """Keys and values of prompts prefilled before."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "prefixes"


def document_indexes_dir() -> Path:
    """Indexes of large documents, and the answers from their sections."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "documents"


def imported_models_dir() -> Path:
    """Models converted from GGUF files, one directory each."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "models"


def shards_dir() -> Path:
    """This machine's shards of sessions saved on other machines."""
    return sessions_dir().parent / "shards"
