"""Where things lie on this machine: configuration, history, conversations, converted models."""

from pathlib import Path

import platformdirs


def config_file() -> Path:
    return Path(platformdirs.user_config_dir("mlxchat")) / "config.toml"


def history_file() -> Path:
    """What was typed into chats, for the up-arrow."""
    return Path(platformdirs.user_state_dir("mlxchat")) / "history"


def saved_chats_dir() -> Path:
    """Conversations that were saved by name, one JSON Lines file each."""
    return Path(platformdirs.user_data_dir("mlxchat")) / "chats"


def imported_models_dir() -> Path:
    """Directory of models converted from GGUF files, one directory each."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "models"
