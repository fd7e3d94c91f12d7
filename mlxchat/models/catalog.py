"""Models known by name: built-in aliases, and what to recommend for a machine's memory."""

from dataclasses import dataclass

EMBEDDED_ALIAS = "smollm2"

HUB_ALIASES = {
    "gemma3-1b": "mlx-community/gemma-3-1b-it-4bit",
    "llama3.1-8b": "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
    "llama3.2-1b": "mlx-community/Llama-3.2-1B-Instruct-4bit",
    "llama3.2-3b": "mlx-community/Llama-3.2-3B-Instruct-4bit",
    "mistral-7b": "mlx-community/Mistral-7B-Instruct-v0.3-4bit",
    "qwen3-0.6b": "mlx-community/Qwen3-0.6B-4bit",
    "qwen3-1.7b": "mlx-community/Qwen3-1.7B-4bit",
    "qwen3-4b": "mlx-community/Qwen3-4B-Instruct-2507-4bit",
    "qwen3-8b": "mlx-community/Qwen3-8B-4bit",
    "qwen3-30b": "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit",
}

BUILT_IN_ALIASES = (EMBEDDED_ALIAS, *HUB_ALIASES)

# The cache that a model is expected to need beside its weights, in tokens.
EXPECTED_CACHE_TOKENS = 8192

# A recommended model leaves the other half to whatever else is running.
FREE_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class RecommendedModel:
    """An instruct model in 4 bits. `kv_bytes_per_token` is in its own 16-bit form."""

    hub_id: str
    download_bytes: int
    parameters: int
    kv_bytes_per_token: int

    def memory_bytes(self, *, float32: bool) -> int:
        """Weights and an ordinary cache: as stored, or in float32 as a CPU runs them."""
        cache_bytes = self.kv_bytes_per_token * EXPECTED_CACHE_TOKENS
        if float32:
            return 4 * self.parameters + 2 * cache_bytes
        return self.download_bytes + cache_bytes


# All have plain global attention, so every window works, and answer without thinking aloud first.
RECOMMENDED = (
    RecommendedModel(HUB_ALIASES["llama3.2-1b"], 713_000_000, 1_235_814_400, 32_768),
    RecommendedModel(HUB_ALIASES["qwen3-4b"], 2_279_000_000, 4_022_468_096, 147_456),
    RecommendedModel(HUB_ALIASES["llama3.1-8b"], 4_527_000_000, 8_030_261_248, 131_072),
    RecommendedModel(HUB_ALIASES["qwen3-30b"], 17_190_000_000, 30_532_122_624, 98_304),
)


def recommended_that_fit(free_bytes: int, *, float32: bool) -> list[RecommendedModel]:
    """The recommended models that a machine with `free_bytes` of memory runs well, largest first.

    `float32` says that weights are expanded, as on a CPU.
    """
    most_bytes = FREE_MEMORY_SHARE * free_bytes
    fitting = [model for model in RECOMMENDED if model.memory_bytes(float32=float32) <= most_bytes]
    return sorted(fitting, key=lambda model: model.parameters, reverse=True)
