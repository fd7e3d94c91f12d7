"""The catalogue: names that can be typed, sizes in order, families that the program holds."""

from mlxchat.models.catalog import CATALOG, HUB_ALIASES, recommended_that_fit
from mlxchat.models.recommended import family_of
from mlxchat.models.resolve import is_hub_id
from mlxchat.models.skeleton import MODULE_OF_TYPE
from scripts.families import listed_verdicts

# The model types in config.json, by the beginnings of aliases.
TYPE_OF_ALIAS = {
    "qwen3.5": "qwen3_5",
    "qwen3.6": "qwen3_5_moe",
    "qwen3.8": "qwen3_5",
    "qwen3-next": "qwen3_next",
    "qwen3-30b": "qwen3_moe",
    "qwen3-235b": "qwen3_moe",
    "qwen3": "qwen3",
    "lfm2.5": "lfm2",
    "llama3": "llama",
    "smollm3": "smollm3",
    "gemma4": "gemma4",
    "gemma4-12b": "gemma4_unified",
    "ministral3": "mistral3",
    "gpt-oss": "gpt_oss",
    "glm4.7-flash": "glm4_moe_lite",
    "glm4.5-air": "glm4_moe",
    "minimax": "minimax_m2",
}


def test_each_name_can_be_typed_and_stands_for_one_model_in_the_order_of_their_memory() -> None:
    assert all(is_hub_id(model.hub_id) and not is_hub_id(model.alias) for model in CATALOG)
    assert len({model.hub_id for model in CATALOG}) == len(HUB_ALIASES) == len(CATALOG)
    needed = [model.memory_bytes(float32=False) for model in CATALOG]
    assert needed == sorted(needed)


def test_a_window_bounds_every_model_and_a_chat_knows_how_to_sample_it() -> None:
    verdicts = listed_verdicts()
    for model in CATALOG:
        model_type = TYPE_OF_ALIAS[max(filter(model.alias.startswith, TYPE_OF_ALIAS), key=len)]
        verdict = verdicts[MODULE_OF_TYPE.get(model_type, model_type)]
        assert verdict.memory.startswith("bounded"), model.alias
        assert verdict.positions == "bounded", model.alias
        assert family_of(model_type, model.hub_id) is not None, model.alias


def test_every_mac_from_8_to_256_gigabytes_gets_a_recommendation_the_larger_the_more() -> None:
    # What macOS lets a GPU have is about three quarters, of which other programs use some.
    free = [int(gb * 0.65e9) for gb in (8, 16, 32, 64, 128, 192, 256)]
    best = [recommended_that_fit(each, float32=False)[0] for each in free]
    assert all(m.memory_bytes(float32=False) < f for m, f in zip(best, free, strict=True))
    assert [m.parameters for m in best] == sorted(m.parameters for m in best)
