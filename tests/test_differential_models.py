"""Our loader and mlx-lm's on the same changed files: equal logits, or refused as mlx-lm fails. Each
change is made alone to a tiny model: by default a few, of every kind; in slow tests, all."""

import json
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from mlxchat import platform
from mlxchat.cache.powers import mlx_lms_own
from mlxchat.errors import MlxchatError, device_failures
from mlxchat.models.load import load_directory
from mlxchat.models.skeleton import MODULE_OF_ARCHITECTURE, MODULE_OF_TYPE, named_parameters
from mlxchat.settings import recommended
from scripts.families import CONFIGS, METAL_ONLY, build_family, family_config, write_family
from tests.in_process import run_in_process

Json = dict[str, Any]
Change = Callable[[Path], object]
TOKENS = mx.array([[72, 101, 108, 108, 111]])
REMOVED = ...
VALUES = [REMOVED, None, "x", -1, 0, 64, 2, "mxfp4", [], {}, 1.5, True, 10**400, [None, "a"]]
VALUES += [{"__float__": "Infinity"}]
FAMILIES = ["llama", "gemma3", "qwen3_moe", "qwen3_5", "mistral3", "gpt_oss", "falcon_h1", "phi3"]
# mlx-lm's `load_model` reads them and we do not: a sliding window that holds no token has no
# meaning, and transformers, which its `load` calls, fails on the configuration.
REFUSED = re.compile(
    "refused, .*(the model's own window is (0|-1) tokens|transformers cannot read the tokenizer)"
)


def ours(directory: Path, dtype: str) -> np.ndarray:
    model = load_directory(directory, "tiny", dtype=dtype, notify=lambda _: None)
    recommended(model.generation_config)
    with mlx_lms_own(), device_failures():
        logits = model.network(TOKENS, cache=model.make_cache())
    return np.array(logits.astype(mx.float32))


def theirs(directory: Path) -> np.ndarray:
    network, _ = platform.import_from_mlx_lm("utils").load_model(directory)
    with mlx_lms_own():
        logits = network(TOKENS, cache=make_prompt_cache(network))
    return np.array(logits.astype(mx.float32))


def verdict(directory: Path) -> str:
    """How our loader compares; `is_good` judges."""
    found: dict[str, np.ndarray] = {}
    expected, refusal = None, ""
    with suppress(Exception):  # whatever mlx-lm raises
        expected = theirs(directory)
    for dtype in ("stored", "float32"):
        try:
            found[dtype] = ours(directory, dtype)
        except MlxchatError as error:
            refusal = str(error)
            assert "\n" not in refusal
    if expected is None:
        return "read by us" if found else "refused"
    if len(found) < 2:
        return f"refused, though mlx-lm reads it: {refusal}"
    for dtype, tolerance in (("stored", 1e-4), ("float32", 0.05)):
        # Packed weights are computed in the dtype of their scales, or in bfloat16.
        if not np.allclose(found[dtype], expected, rtol=0, atol=tolerance, equal_nan=True):
            return f"other logits in {dtype}, by {np.abs(found[dtype] - expected).max():.2g}"
    return "equal"


def is_good(found: str) -> bool:
    return found in ("equal", "refused", "read by us") or REFUSED.match(found) is not None


# Changes


def edit(file: str, *path: str, to: Any) -> Change:
    def change(directory: Path) -> None:
        whole = value = json.loads((directory / file).read_text())
        for key in path[:-1]:
            value = value[key]
        value.pop(path[-1], None)
        if to is not REMOVED:
            value[path[-1]] = to
        (directory / file).write_text(json.dumps(whole))

    return change


def config(**values: Any) -> Change:
    return put("config.json", values)


def put(file: str, values: Json) -> Change:
    """The values in a JSON file, which need not be there."""

    def change(directory: Path) -> None:
        path = directory / file
        held = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(held | values))

    return change


def text(file: str, data: bytes) -> Change:
    return lambda directory: (directory / file).write_bytes(data)


def both(*changes: Change) -> Change:
    return lambda directory: [change(directory) for change in changes]


def keys(value: Json, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*above, key)
        if isinstance(inner, dict):
            yield from keys(inner, (*above, key))


def renamed(target: str, model_type: str, architectures: Any) -> Change:
    def change(directory: Path) -> None:
        shutil.rmtree(directory)
        write_family(directory, target)
        config(model_type=model_type, architectures=architectures)(directory)

    return change


MODULES = {
    f"{name} for {model_type}": renamed(name, model_type, None)
    for model_type, name in MODULE_OF_TYPE.items()
    if name in CONFIGS.keys() - METAL_ONLY
} | {
    f"{name} for {model_type} as {given}": renamed(name, model_type, given)
    for (model_type, architecture), name in MODULE_OF_ARCHITECTURE.items()
    for given in ([architecture], architecture, ["Other", architecture], None, [], 5)
}


def sharded(*parts: str) -> Change:
    """The weights in files of these names."""

    def change(directory: Path) -> None:
        weights: Any = mx.load(str(directory / "model.safetensors"))
        names = sorted(weights)
        mx.eval(weights)
        (directory / "model.safetensors").unlink()
        for i, part in enumerate(parts):
            held = {name: weights[name] for name in names[i :: len(parts)]}
            mx.save_safetensors(str(directory / part), held)

    return change


INDEX = "model.safetensors.index.json"
TWO = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FILES: dict[str, Change] = {
    "two": sharded(*TWO),
    "one of two missing": both(sharded(*TWO), lambda d: (d / TWO[1]).unlink()),
    "an extra one": sharded("model-00001-of-00001.safetensors", "model-extra.safetensors"),
    "a name that is not read": sharded("weights.safetensors"),
    "the model's own code": config(model_file="model.py"),
    "a broken hf_quant_config.json": text("hf_quant_config.json", b"{"),
}


def reweighed(change: Callable[[dict[str, mx.array]], object]) -> Change:
    def changed(directory: Path) -> None:
        weights: Any = mx.load(str(directory / "model.safetensors"))
        mx.eval(weights)
        change(weights)
        mx.save_safetensors(str(directory / "model.safetensors"), weights)

    return changed


def cast(part: str, dtype: mx.Dtype) -> Change:
    return reweighed(lambda w: w.update({n: a.astype(dtype) for n, a in w.items() if part in n}))


NORM, ROUTE = "model.norm.weight", "model.layers.0.self_attn.q_proj"
WEIGHTS: dict[str, Change] = {
    f"{part or 'all'} in {str(dtype).removeprefix('mlx.core.')}": cast(part, dtype)
    for part in ("norm", "q_proj", "embed", "")
    for dtype in (mx.float16, mx.bfloat16, mx.int8, mx.uint8)
} | {
    "one missing": reweighed(lambda w: w.pop(NORM)),
    "one too many": reweighed(lambda w: w.update(extra=w[NORM])),
    "one of another shape": reweighed(lambda w: w.update({NORM: w[NORM][:3]})),
    "no head": both(reweighed(lambda w: w.pop("lm_head.weight")), config(tie_word_embeddings=True)),
    "a head, tied": config(tie_word_embeddings=True),
    "none": reweighed(lambda w: w.clear()),
}


def packed(
    group_size: int = 32, bits: int = 4, mode: str = "affine", family: str = "llama", **each: Any
) -> Change:
    """Packed weights; the paths with a part of `each` in that way."""

    def packing(path: str, module: Any) -> bool | Json:
        ways = (way for part, way in each.items() if part in path)
        return hasattr(module, "to_quantized") and next(ways, True)

    def change(directory: Path) -> None:
        network = build_family(family)
        nn.quantize(network, group_size, bits, mode=mode, class_predicate=packing)
        mx.save_safetensors(str(directory / "model.safetensors"), dict(named_parameters(network)))

    return change


def pack_as_autoawq(weights: dict[str, mx.array]) -> None:
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights.pop(name).shape
        start = name.removesuffix("weight")
        weights[start + "qweight"] = mx.random.randint(0, 2**31, (columns, rows // 8))
        weights[start + "qzeros"] = mx.random.randint(0, 2**31, (columns // 32, rows // 8))
        weights[start + "scales"] = mx.random.uniform(0, 0.01, (columns // 32, rows))


SCALED = {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True}
packed_by_others = reweighed(pack_as_autoawq)
AFFINE = {"group_size": 32, "bits": 4}
PACKINGS = [(32, 4, "affine"), (32, 8, "affine"), (32, 3, "affine")]
PACKINGS += [(32, 4, "mxfp4"), (16, 4, "nvfp4"), (32, 8, "mxfp8")]
LEFT_OVER: dict[str, Any] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "compressed": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    "modelopt": {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}},
    "mxfp4": {"quant_method": "mxfp4"},
    "unheard of": {"quant_method": "unheard-of"},
    "empty": {},
    "text": "4-bit",
}

QUANTIZATIONS: dict[str, Change] = {
    "bits of other layers": both(packed(embed=AFFINE | {"bits": 8}), config(quantization=AFFINE)),
    "beside plain weights": config(quantization=AFFINE),
    "inputs": both(packed(16, 4, "nvfp4"), config(quantization=AFFINE, quantize_activations=True)),
    "experts with a scale each": both(
        renamed("qwen3_moe", "qwen3_moe", None),
        packed(family="qwen3_moe", switch_mlp=SCALED, model=False),
        config(quantization=SCALED),
    ),
    "awq": both(packed_by_others, config(quantization_config=LEFT_OVER["awq"])),
    "gptq": both(packed_by_others, config(quantization_config=LEFT_OVER["gptq"])),
}
for method, left in LEFT_OVER.items():
    setting = {"quantization_config": left}
    QUANTIZATIONS |= {
        f"left over {method}": both(packed(), config(quantization=AFFINE, **setting)),
        f"plain with {method}": config(**setting),
    } | {
        f"only {method} in {file} {place}": both(packed(16, 4, "nvfp4"), put(file, values))
        for file, place, values in (
            ("config.json", "", setting),
            ("config.json", "text_config", {"text_config": setting}),
            ("hf_quant_config.json", "", left if isinstance(left, dict) else {}),
        )
    }

SETTINGS = {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "do_sample": True}
# Models of which every key in these files is changed, as is each file as a whole.
BASES: dict[str, tuple[Change, str, Json]] = {
    "llama": (both(), "config.json", family_config("llama") | {"x": VALUES[-1]}),
    "generation": (both(), "generation_config.json", SETTINGS | {"eos_token_id": [1]}),
    "an index for one": (both(), INDEX, {"weight_map": {"a": TWO[0]}}),
    "an index for two": (sharded(*TWO), INDEX, {"weight_map": {"a": TWO[0], "b": TWO[1]}}),
} | {
    f"{values}": (packed(*values), "config.json", {"quantization": said | {ROUTE: said}})
    for values in PACKINGS
    for said in [dict(zip(("group_size", "bits", "mode"), values, strict=True))]
}
# MLX divides by the one, and mlx-lm makes the other's layers until no memory is left.
ENDLESS = [("group_size", 0), ("num_hidden_layers", 10**400)]
WHOLE = (b"\xef\xbb\xbf{}", b"[]", b"null", b"{", b"\xff\xfe")


def mutations(file: str, contents: Json) -> dict[str, Change]:
    """The file as it is, as something else, and with every key removed or of another value."""
    found = {"": both()} | {f"{data}": text(file, data) for data in WHOLE}
    for path in keys(contents):
        for new in VALUES:
            if (path[-1], new) in ENDLESS:
                continue
            found[f"{'.'.join(path)}={new!r:.9}"] = edit(file, *path, to=new)
    return found


KINDS = {"module": MODULES, "files": FILES, "weights": WEIGHTS, "quantization": QUANTIZATIONS} | {
    base: {
        name: both(make, put(file, contents), change)
        for name, change in mutations(file, contents).items()
    }
    for base, (make, file, contents) in BASES.items()
}
CHANGES = {f"{kind}: {name}": each for kind, of in KINDS.items() for name, each in of.items()}
# Of these, most differ in one value only.
SLOW = re.compile(r".*=(?!Ellipsis|'x')|\((?!32, 4).*: .|quantization: only .* in (?!config.json )")


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("unchanged") / "m", "llama")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] if SLOW.match(each) else []) for each in CHANGES],
)
def test_a_changed_model_is_read_as_by_mlx_lm(name: str, unchanged: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unchanged, tmp_path / "m"))
    CHANGES[name](directory)
    assert is_good(verdict(directory))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_a_family_is_read_as_by_mlx_lm(family: str, tmp_path: Path) -> None:
    directory = write_family(tmp_path / "m", family)
    before = (directory / "config.json").read_text()
    wrong: dict[str, str] = {}
    for name, change in mutations("config.json", family_config(family)).items():
        (directory / "config.json").write_text(before)
        change(directory)
        if not is_good(found := verdict(directory)):
            wrong[name] = found
    assert wrong == {}


def test_mlx_lms_utilities_change_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing them lowers the limit of open files, for the whole process and for good."""
    changed: list[object] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *given: changed.append(given))
    monkeypatch.delitem(sys.modules, "mlx_lm.utils", raising=False)
    assert platform.import_from_mlx_lm("utils").load_model
    assert changed == []


def test_a_model_whose_code_fails_ends_in_one_line(tmp_path: Path) -> None:
    """A wrong value in config.json that only the first forward pass meets ended in a traceback."""
    model = write_family(tmp_path / "m", "deepseek_v3")
    config(routed_scaling_factor="x")(model)
    done = run_in_process("generate", "Hi", "-m", str(model))
    assert (done.returncode, done.stdout) == (1, "")
    assert "the model's code failed: Cannot perform multiplication" in done.stderr
    assert done.stderr.count("\n") == 1
