"""Unpack quantized weights to float32, quickly on a CPU too."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat import platform

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
    taken to float32 first: in float16 the product itself would be rounded. `global_scale: (E,)` is
    that of each expert.
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
