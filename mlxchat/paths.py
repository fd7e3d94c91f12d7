"""Where things lie on this machine: configuration, history, conversations, converted models."""

from pathlib import Path

import platformdirs


def config_file() -> Path:
    return Path(platformdirs.user_config_dir("mlxchat")) / "config.toml"


def history_file() -> Path:
    """What was typed into chats, for the up-arrow."""
    return Path(platformdirs.user_state_dir("mlxchat")) / "history"


def sessions_dir() -> Path:
    """Conversations as they go, one directory each."""
    return Path(platformdirs.user_data_dir("mlxchat")) / "sessions"


def prefix_cache_dir() -> Path:
    """Keys and values of prompts that were prefilled before."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "prefixes"


def imported_models_dir() -> Path:
    """Directory of models converted from GGUF files, one directory each."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "models"


def shards_dir() -> Path:
    """What this machine's rank held of other machines' sessions."""
    return sessions_dir().parent / "shards"
