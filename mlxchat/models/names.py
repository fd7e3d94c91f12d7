"""The names by which a model can be called, for completion. Imports no MLX: Tab must be quick."""

from contextlib import suppress

from mlxchat import paths
from mlxchat.config.file import read_user_config
from mlxchat.models.catalog import BUILT_IN_ALIASES
from mlxchat.models.hub_cache import cached_repo_ids


def all_names() -> list[str]:
    """The user's aliases, the built-in ones, and the models on this disk."""
    return [*aliases(), *BUILT_IN_ALIASES, *names_here()]


def aliases() -> list[str]:
    """The user's own; none if the configuration cannot be read."""
    with suppress(Exception):
        return sorted(read_user_config().aliases)
    return []


def names_here() -> list[str]:
    """Models on this disk, from mlxchat or from the Hub's cache."""
    converted = sorted(each.name for each in paths.imported_models_dir().glob("[!.]*/"))
    return [*cached_repo_ids(), *converted]
