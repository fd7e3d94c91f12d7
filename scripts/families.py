"""Checks every model family of mlx-lm, in miniature: can its memory and positions be bounded?

    python -m scripts.families            # print the manual's table of families
    python -m scripts.families --write    # put it into the manual

`families.json` has a tiny configuration of each of mlx-lm's modules, including all that
the real family has: both kinds of layers if it has two, recurrent layers, shared keys, experts,
sinks. The models get random weights, and the table reports the result of `make_cache`.
"""

import argparse
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import mlx_lm.models
from mlx import nn
from mlx.utils import tree_map_with_path

from mlxchat.cache.build import make_cache, make_joinable
from mlxchat.cache.layers import Cache, positions_bounded, recurrent_states, windows
from mlxchat.errors import CacheError, ModelUnsupported
from mlxchat.models.skeleton import build_skeleton
from scripts import metal
from scripts.forms import FORMS, put_in_form
from scripts.tiny_model import tiny_config, write_tiny_model

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("families.json").read_text(encoding="utf-8")
)
COMMON = tiny_config(layers=4) | {"head_dim": 8, "rope_traditional": False, "rope_scaling": None}


PAGE = Path(__file__).parent.parent / "mlxchat" / "manual" / "window.md"
BEGIN, END = "<!-- families: made by scripts/families.py -->", "<!-- end of families -->"

# Their kernels are written in Metal, so they cannot run elsewhere and are not judged.
METAL_ONLY = {"bitnet", "muse_spark"}


def module_names() -> list[str]:
    """mlx-lm's modules that contain a model, including those added by newer versions."""
    names = [module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)]
    return [name for name in names if _holds_a_model(name)]


def _holds_a_model(name: str) -> bool:
    source = Path(mlx_lm.models.__path__[0], f"{name}.py").read_text(encoding="utf-8")
    return "class Model(" in source or "import Model" in source


def family_config(name: str) -> dict[str, Any]:
    """The tiny model's config.json."""
    return COMMON | CONFIGS[name] | {"model_type": name}


def build_family(name: str, **overrides: Any) -> nn.Module:
    """A module's tiny model with random weights, including those usually initialized to 0 or 1."""
    mx.random.seed(0)
    model = build_skeleton(family_config(name) | overrides)
    model.update(tree_map_with_path(_randomized, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def write_family(directory: Path, name: str, form: str = "float32", **overrides: Any) -> Path:
    """Write a module's tiny model with random weights into `directory`, in the given form."""
    network = build_family(name, **overrides)
    config = family_config(name) | overrides
    return write_tiny_model(directory, config=config, form=form, network=network)


def _randomized(name: str, weight: mx.array) -> mx.array:
    # Signs of a rotation are only 1 or -1.
    if not mx.issubdtype(weight.dtype, mx.floating) or name.endswith(".signs"):
        return weight
    return weight + 0.1 * mx.random.normal(weight.shape, dtype=weight.dtype)


@dataclass(frozen=True, slots=True, order=True)
class Verdict:
    """How a window affects a family, in the manual's words."""

    memory: str
    positions: str
    blocks: str


def judge(model: nn.Module, bounded_cache: Callable[[], Cache]) -> Verdict:
    """The result of building the model's cache with a window."""
    try:
        cache = bounded_cache()
    except CacheError as error:
        reason = str(error).partition(": ")[2] or str(error)
        reason = reason.partition("; run it")[0].partition(": run it")[0]
        return Verdict("refused", reason, _blocks(model, make_cache(model)))
    return Verdict(_memory(cache), _positions(cache), _blocks(model, cache))


def judge_family(name: str) -> Verdict:
    """The verdict on a family, which must be the same for every form of weights."""
    if name in METAL_ONLY:
        return Verdict("needs Metal", "not tested: it does not run on Linux", "not tested")
    try:
        verdicts = {_judge_form(name, form) for form in FORMS}
    except ModelUnsupported:
        return Verdict("not built", "needs a package that mlx-lm does not install", "")
    (verdict,) = verdicts
    return verdict


def _judge_form(name: str, form: str) -> Verdict:
    model = build_family(name)
    put_in_form(model, family_config(name), form)
    return judge(model, lambda: make_cache(model, max_kv_size=24))


def _memory(cache: Cache) -> str:
    if not windows(cache):
        return "constant"
    return "bounded, plus recurrent state" if recurrent_states(cache) else "bounded"


def _positions(cache: Cache) -> str:
    shifts = [window.shift for window in windows(cache)]
    if not any(shift is None or shift.dims for shift in shifts):
        return "none"
    if positions_bounded(cache):
        return "bounded"
    return "keep growing: the layer does more than rotate its keys"


def _blocks(model: nn.Module, cache: Cache) -> str:
    try:
        make_joinable(model, cache)
    except CacheError as error:
        return f"refused: {error}"
    return "works"


def families_table() -> str:
    """The manual's table: all modules, grouped by verdict."""
    by_verdict: dict[Verdict, list[str]] = {}
    with metal.imitated():
        for name in sorted(CONFIGS, key=str.lower):
            by_verdict.setdefault(judge_family(name), []).append(f"`{name}`")
    rows = [
        f"| {verdict.memory} | {verdict.positions} | {verdict.blocks} | {', '.join(names)} |"
        for verdict, names in sorted(by_verdict.items())
    ]
    return "\n".join(["| memory | positions | `--block` | modules |", "|---|---|---|---|", *rows])


def listed_verdicts() -> dict[str, Verdict]:
    """Each module's verdict in the manual's table."""
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    verdicts: dict[str, Verdict] = {}
    for row in table.strip().splitlines()[2:]:
        memory, positions, blocks, names = (cell.strip() for cell in row.strip("|").split("|"))
        for name in names.split(", "):
            verdicts[name.strip("`")] = Verdict(memory, positions, blocks)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description="The manual's table of families.")
    parser.add_argument("--write", action="store_true", help="put it into the manual")
    table = families_table()
    if not parser.parse_args().write:
        print(table)
        return
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
