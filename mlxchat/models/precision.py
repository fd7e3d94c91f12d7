"""The dtype and packing of a network's weights, and what of it this device cannot run.

float16 is more precise than bfloat16, but overflows at 65,504.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear

from mlxchat import platform
from mlxchat.errors import ModelBroken, ModelUnsupported
from mlxchat.models.skeleton import named_parameters, text_config

# What a module's entry in the configuration can say.
PACKING = ("group_size", "bits", "mode", "global_scale", "quantize_input")
# The only modes whose scales are bytes, by bits and group size.
MODES = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}


def _packing(
    path: str, module: nn.Module, quantization: dict[str, Any], arrays: dict[str, mx.array]
) -> dict[str, Any] | None:
    """Group size, bits and mode of a module's packed weight, or None if it is not packed.

    From the module's entry in the configuration or from shapes and dtypes, since the global values
    need not apply to every tensor. Source: `load_model` and `infer_quant_config` in
    mlx_lm/utils.py, whose import takes a second.
    """
    if not hasattr(module, "to_quantized") or f"{path}.scales" not in arrays:
        return None
    if path in quantization:
        named = quantization if quantization[path] is True else quantization[path]
        found = {key: named[key] for key in PACKING if key in named} if named else None
        return found and {"mode": "affine"} | found
    scales = arrays[f"{path}.scales"]
    columns = module["weight"].shape[-1]
    group_size = columns // scales.shape[-1]
    bits = arrays[f"{path}.weight"].shape[-1] * 32 // columns
    in_bytes = scales.dtype == mx.uint8
    if in_bytes and (bits, group_size) not in MODES:
        raise ValueError(f"{path} has an unknown packing: {bits} bits, groups of {group_size}")
    mode = MODES[bits, group_size] if in_bytes else "affine"
    scaled = {"global_scale": True} if f"{path}.global_scale" in arrays else {}
    return {"group_size": group_size, "bits": bits, "mode": mode} | scaled


def quantize(network: nn.Module, quantization: dict[str, Any], arrays: dict[str, mx.array]) -> None:
    """Replace the modules that have packed weights with quantized ones."""

    def packing(path: str, module: nn.Module) -> dict[str, Any] | bool:
        return _packing(path, module, quantization, arrays) or False

    nn.quantize(network, class_predicate=packing)


def dequantized(
    network: nn.Module, config: dict[str, Any], arrays: dict[str, mx.array]
) -> dict[str, mx.array]:
    """The arrays with packed weights unpacked, without their scales and biases."""
    quantization = config.get("quantization") or {}
    arrays = dict(arrays)
    for path, module in network.named_modules():
        packing = _packing(path, module, quantization, arrays)
        if packing is not None:
            arrays[f"{path}.weight"] = dequantize(
                arrays[f"{path}.weight"],
                arrays.pop(f"{path}.scales"),
                arrays.pop(f"{path}.biases", None),
                packing,
                arrays.pop(f"{path}.global_scale", None),
            )
    return arrays


def in_dtype(net: nn.Module, arrays: dict[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
    """The arrays in `dtype`, but what the model keeps in higher precision; shared ones stay so."""
    may_cast: Any = getattr(net, "cast_predicate", lambda _: True)
    cast_once: dict[int, mx.array] = {}

    def cast(name: str, array: mx.array) -> mx.array:
        if not mx.issubdtype(array.dtype, mx.floating) or not may_cast(name):
            return array
        return cast_once.setdefault(id(array), array.astype(dtype))

    return {name: cast(name, array) for name, array in arrays.items()}


# Bit widths whose values do not straddle bytes.
NIBBLE, BYTE = 4, 8


def dequantize(
    weight: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    packing: dict[str, Any],
    global_scale: mx.array | None = None,
) -> mx.array:
    """Unpack `weight: (…, O, I * bits / 32)` uint32 to `(…, O, I)` float32.

    `packing` holds `group_size`, `bits` and `mode` as in `mx.dequantize`, whose affine values are
    `scale * q + bias` with a scale and a bias, `(…, O, I / group_size)`, for each group. They are
    taken to float32 first: float16 would round the product. `global_scale: (E,)` is per expert.
    """
    packing = {key: packing[key] for key in ("group_size", "bits", "mode") if key in packing}
    if global_scale is not None:
        experts = zip(weight, scales, global_scale, strict=True)
        unpacked = [mx.dequantize(w, s, global_scale=each, **packing) for w, s, each in experts]
        return mx.stack(unpacked).astype(mx.float32)
    if packing.get("mode", "affine") != "affine" or biases is None:
        return mx.dequantize(weight, scales, biases, **packing).astype(mx.float32)
    scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    if packing.get("bits") in (NIBBLE, BYTE) and not platform.on_gpu():
        # MLX's CPU kernel takes six times as long: 1.3 s compared with 0.2 s for 106M weights.
        return _dequantize_with_numpy(weight, scales, biases, packing["bits"])
    return mx.dequantize(weight, scales, biases, **packing)


def _dequantize_with_numpy(
    weight: mx.array, scales: mx.array, biases: mx.array, bits: int
) -> mx.array:
    packed = np.array(weight).astype("<u4", copy=False).view(np.uint8)
    values = np.empty((*packed.shape[:-1], packed.shape[-1] * 8 // bits), np.float32)
    if bits == NIBBLE:
        values[..., 0::2] = packed & 15
        values[..., 1::2] = packed >> 4
    else:
        values[...] = packed
    groups = values.reshape(*scales.shape, -1)
    groups *= np.array(scales)[..., None]
    groups += np.array(biases)[..., None]
    return mx.array(values)


# Families whose activations are known to exceed 65,504.
# Source: https://unsloth.ai/blog/gemma3; other Gemmas scale their embeddings the same way.
OVERFLOWING = ("gemma", "recurrent_gemma")


def overflows_float16(config: dict[str, Any]) -> bool:
    """Whether the model's family overflows in float16."""
    types = (config["model_type"], text_config(config).get("model_type", ""))
    return any(str(each).startswith(OVERFLOWING) for each in types)


def hold_in_bfloat16(network: nn.Module) -> None:
    """Convert float16 weights to bfloat16, scales of packed ones too; shared arrays stay so."""
    weights = [each for each in named_parameters(network) if each[1].dtype == mx.float16]
    cast = {id(array): array.astype(mx.bfloat16) for _, array in weights}
    network.load_weights([(name, cast[id(array)]) for name, array in weights], strict=False)


def first_logits_are_finite(network: nn.Module, config: dict[str, Any]) -> bool:
    """Whether the logits of a first token, which has the largest activations, are finite.

    Source: "Massive Activations in Large Language Models", https://arxiv.org/abs/2402.17762.
    """
    begin = config.get("bos_token_id")
    token = begin if isinstance(begin, int) else 0
    logits = network(mx.array([[token]]), cache=make_prompt_cache(network))
    # Some models exclude tokens with a logit of minus infinity.
    return not bool(mx.any(mx.isnan(logits) | mx.isposinf(logits)).item())


def activation_dtype(network: nn.Module) -> mx.Dtype:
    """The dtype of the first floating-point parameter; in a quantized model, a scale."""
    for _, array in named_parameters(network):
        if mx.issubdtype(array.dtype, mx.floating):
            return array.dtype
    raise ModelBroken("the model has no floating-point weights")


def check_experts(network: nn.Module) -> None:
    """Raise ModelUnsupported if this device cannot run the experts in their dtype."""
    modules = (module for _, module in network.named_modules())
    dtypes = {each["weight"].dtype for each in modules if isinstance(each, SwitchLinear)}
    for dtype in dtypes:
        if not _runs(dtype):
            name = str(dtype).removeprefix("mlx.core.")
            raise ModelUnsupported(
                f"MLX cannot run this model's experts in {name} on a CPU: load them as float32, or "
                "choose a quantized model"
            )


def _runs(dtype: mx.Dtype) -> bool:
    one = mx.ones((1, 1, 1), dtype)
    try:
        mx.eval(mx.gather_mm(one, one, rhs_indices=mx.zeros((1,), mx.uint32)))
    except RuntimeError:
        return False
    return True
