"""Where things lie on this machine: the configuration file and what was imported or converted."""

from pathlib import Path

import platformdirs


def config_file() -> Path:
    return Path(platformdirs.user_config_dir("mlxchat")) / "config.toml"


def imported_models_dir() -> Path:
    """Directory of models converted from GGUF files, one directory each."""
    return Path(platformdirs.user_cache_dir("mlxchat")) / "models"
