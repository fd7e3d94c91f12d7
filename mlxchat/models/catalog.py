"""The catalogue, models with an alias and their sizes, to recommend one that fits; and the
names of models for completion. Imports no MLX: Tab must be quick."""

from contextlib import suppress
from dataclasses import dataclass

from mlxchat import paths
from mlxchat.config import read_user_config
from mlxchat.models.gguf import directory_name, embedded_gguf
from mlxchat.models.hub_cache import cached_repos

EMBEDDED_ALIAS = "smollm2"
# What else it is called, in lower case.
EMBEDDED_NAMES = (EMBEDDED_ALIAS, "smollm2-135m", "smollm2-135m-instruct")

# The memory needed by a model includes a cache of this many tokens.
EXPECTED_CACHE_TOKENS = 8192

# A recommended model leaves the other half of the memory to other programs.
FREE_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An instruct model in 4 bits on the Hub.

    `kv_bytes_per_token` is for 16 bits, without layers that have a sliding window.
    """

    alias: str
    hub_id: str
    download_bytes: int
    parameters: int
    kv_bytes_per_token: int

    def memory_bytes(self, *, float32: bool) -> int:
        """The size of the weights and a cache, as stored or in float32 as on a CPU."""
        cache_bytes = self.kv_bytes_per_token * EXPECTED_CACHE_TOKENS
        if float32:
            return 4 * self.parameters + 2 * cache_bytes
        return self.download_bytes + cache_bytes


def _known(alias: str, name: str, gigabytes: float, parameters: int, kv_bytes: int) -> KnownModel:
    return KnownModel(alias, f"mlx-community/{name}", round(gigabytes * 1e9), parameters, kv_bytes)


# By memory needed. Every window works with these families, also in 4 bits. Sizes are those of the
# repositories in autumn 2026; parameters and cache sizes come from mlx-lm's model for config.json.
CATALOG = (
    _known("qwen3.5-0.8b", "Qwen3.5-0.8B-MLX-4bit", 0.66, 752_393_024, 12_288),
    _known("lfm2.5-1.2b", "LFM2.5-1.2B-Instruct-4bit", 0.66, 1_170_340_608, 12_288),
    _known("llama3.2-1b", "Llama-3.2-1B-Instruct-4bit", 0.713, 1_235_814_400, 32_768),
    _known("qwen3-0.6b", "Qwen3-0.6B-4bit", 0.351, 596_049_920, 114_688),
    _known("qwen3.5-2b", "Qwen3.5-2B-MLX-4bit", 1.72, 1_881_825_088, 12_288),
    _known("smollm3-3b", "SmolLM3-3B-4bit", 1.75, 3_075_098_624, 73_728),
    _known("llama3.2-3b", "Llama-3.2-3B-Instruct-4bit", 1.82, 3_212_749_824, 114_688),
    _known("qwen3.5-4b", "Qwen3.5-4B-MLX-4bit", 3.06, 4_205_751_296, 32_768),
    _known("qwen3-4b", "Qwen3-4B-Instruct-2507-4bit", 2.279, 4_022_468_096, 147_456),
    _known("gemma4-e2b", "gemma-4-e2b-it-4bit", 3.6, 4_628_569_379, 6_144),
    _known("gemma4-e4b", "gemma-4-e4b-it-4bit", 5.2, 8_878_591_018, 16_384),
    _known("qwen3.5-9b", "Qwen3.5-9B-MLX-4bit", 6.0, 8_953_803_264, 32_768),
    _known("ministral3-8b", "Ministral-3-8B-Instruct-2512-4bit", 5.63, 8_489_553_920, 139_264),
    _known("gemma4-12b", "gemma-4-12B-it-4bit", 6.74, 11_907_350_320, 16_384),
    _known("gpt-oss-20b", "gpt-oss-20b-MXFP4-Q8", 12.1, 20_914_757_184, 24_576),
    _known("gemma4-26b", "gemma-4-26b-a4b-it-4bit", 15.6, 25_233_141_790, 20_480),
    _known("qwen3.8-27b", "Qwen3.8-27B-4bit", 16.1, 26_895_998_464, 65_536),
    _known("glm4.7-flash", "GLM-4.7-Flash-4bit", 16.9, 29_943_393_920, 54_144),
    _known("qwen3-30b", "Qwen3-30B-A3B-Instruct-2507-4bit", 17.19, 30_532_122_624, 98_304),
    _known("gemma4-31b", "gemma-4-31b-it-4bit", 18.4, 30_697_345_340, 81_920),
    _known("qwen3.6-35b", "Qwen3.6-35B-A3B-4bit", 20.4, 34_660_610_688, 20_480),
    _known("llama3.3-70b", "Llama-3.3-70B-Instruct-4bit", 39.7, 70_553_706_496, 327_680),
    _known("qwen3-next-80b", "Qwen3-Next-80B-A3B-Instruct-4bit", 44.8, 79_674_391_296, 24_576),
    _known("glm4.5-air", "GLM-4.5-Air-4bit", 60.2, 106_852_245_504, 188_416),
    _known("gpt-oss-120b", "gpt-oss-120b-MXFP4-Q8", 63.4, 116_829_156_672, 36_864),
    _known("qwen3.5-122b", "Qwen3.5-122B-A10B-4bit", 69.6, 122_111_526_912, 24_576),
    _known("minimax-m2.7", "MiniMax-M2.7-4bit", 128.7, 228_689_764_864, 253_952),
    _known("qwen3-235b", "Qwen3-235B-A22B-Instruct-2507-4bit", 132.3, 235_093_634_560, 192_512),
)

HUB_ALIASES = {model.alias: model.hub_id for model in CATALOG}

BUILT_IN_ALIASES = (EMBEDDED_ALIAS, *HUB_ALIASES)

# Offered if none is chosen: fast for their size, and they answer without long thoughts.
_FIRST = ("llama3.2-1b", "qwen3-4b", "gemma4-e4b", "gemma4-26b", "qwen3-next-80b", "gpt-oss-120b")
RECOMMENDED = tuple(model for model in CATALOG if model.alias in _FIRST)


def recommended_that_fit(free_bytes: int, *, float32: bool) -> list[KnownModel]:
    """The recommended models that run well on a machine with `free_bytes` of memory, largest
    first; `float32` if weights are expanded, as on a CPU."""
    max_bytes = int(FREE_MEMORY_SHARE * free_bytes)
    fitting = [model for model in RECOMMENDED if model.memory_bytes(float32=float32) <= max_bytes]
    return sorted(fitting, key=lambda model: model.parameters, reverse=True)


def all_names() -> list[str]:
    """The user's aliases, the built-in ones, and the models on this disk."""
    return [*dict.fromkeys([*aliases(), *BUILT_IN_ALIASES, *names_here()])]


def is_model(name: str) -> bool:
    """Whether a model is called that, in any case."""
    return name.lower() in {each.lower() for each in (*EMBEDDED_NAMES, *all_names())}


def aliases() -> list[str]:
    """The user's own; none if the configuration cannot be read."""
    with suppress(Exception):
        return sorted(read_user_config().aliases)
    return []


def names_here() -> list[str]:
    """Models on this disk, from mlxchat or from the Hub's cache."""
    embedded = embedded_gguf()
    aliased = {} if embedded is None else {directory_name(embedded): EMBEDDED_ALIAS}
    found = (each.name for each in paths.imported_models_dir().glob("[!.]*/"))
    converted = sorted(aliased.get(each, each) for each in found)
    return [*(name for name, path in cached_repos() if path is not None), *converted]
