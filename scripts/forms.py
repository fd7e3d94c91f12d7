"""The forms of a model's weights: cast to a dtype, or packed like mlx-lm's `convert` does.

A packed model has bfloat16 scales, like nearly all on the hub. A family's own rules apply: which
weights stay precise (`cast_predicate`), and which stay unpacked or get more bits
(`quant_predicate`). The group size is 32, so that tiny models can be packed too.
"""

import inspect
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map_with_path

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
BITS = {"4-bit": 4, "8-bit": 8}
FORMS = (*DTYPES, *BITS)
GROUP_SIZE = 32


def put_in_form(network: nn.Module, config: dict[str, Any], form: str) -> dict[str, Any]:
    """Convert the weights of `network` to one of FORMS; return the matching config.json.

    If `config` already specifies a packing, because its family has only one, it is kept.
    """
    if form in DTYPES:
        _cast(network, DTYPES[form])
        return config | {"torch_dtype": form}
    _cast(network, mx.bfloat16)
    packing = config.get("quantization") or {"group_size": GROUP_SIZE, "bits": BITS[form]}
    quantization = packing | _pack(network, packing["group_size"], packing["bits"])
    return config | {"torch_dtype": "bfloat16", "quantization": quantization}


def _cast(network: nn.Module, dtype: mx.Dtype) -> None:
    may_cast: Any = getattr(network, "cast_predicate", lambda _: True)

    def cast(name: str, weight: mx.array) -> mx.array:
        wanted = mx.issubdtype(weight.dtype, mx.floating) and may_cast(name)
        return weight.astype(dtype) if wanted else weight

    network.update(tree_map_with_path(cast, network.parameters()))


def _pack(network: nn.Module, group_size: int, bits: int) -> dict[str, dict[str, Any]]:
    """Quantize every module that can be; return the packing of those that need their own."""
    wishes: Any = getattr(network, "quant_predicate", None) or (lambda _path, _module: True)
    named: dict[str, dict[str, Any]] = {}

    def packing(path: str, module: Any) -> bool | dict[str, Any]:
        if not _can_pack(module, group_size):
            return False
        wish = wishes(path, module)
        if isinstance(wish, dict):
            # Many families want groups of 64, which are wider than a tiny layer.
            wish = named[path] = wish | {"group_size": group_size}
        return wish

    nn.quantize(network, group_size=group_size, bits=bits, class_predicate=packing)
    return named


def _can_pack(module: Any, group_size: int) -> bool:
    """Whether `nn.quantize` can pack it. afm7's fused layers take no mode, so mlx-lm cannot."""
    to_quantized = getattr(module, "to_quantized", None)
    if to_quantized is None or "mode" not in inspect.signature(to_quantized).parameters:
        return False
    return module.weight.shape[-1] % group_size == 0
