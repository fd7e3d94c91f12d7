"""Turns GGUF's quantized blocks into MLX's affine form: codes, scales, biases per group of 32.

`value = scale * code + bias`. Kinds that are affine over 32 values keep their codes; all others
are dequantized and requantized to 8 bits. Pure numpy, a few rows at a time.
"""

from collections.abc import Callable

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

GROUP_SIZE = 32
FALLBACK_BITS = 8

Kind = GGMLQuantizationType
# Codes (groups, 32) uint8; scales and biases (groups,), float16 or to be rounded to it.
Groups = tuple[np.ndarray, np.ndarray, np.ndarray]


def is_packed(kind: Kind) -> bool:
    """Whether tensors of this kind are stored as codes, scales and biases."""
    return kind not in (Kind.F32, Kind.F16, Kind.BF16)


def can_convert(kind: Kind) -> bool:
    """Whether the gguf package or this module can read this kind."""
    if not is_packed(kind) or kind in _EXACT:
        return True
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def packed_bits(kind: Kind) -> int:
    """Bits per code in MLX's form."""
    return _EXACT[kind][0] if kind in _EXACT else FALLBACK_BITS


def pack(raw: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn rows of blocks into MLX's weight, scales and biases.

    raw: (rows, row_bytes) uint8, as stored. Returns uint32 (rows, columns * bits / 32) and two
    float16 arrays (rows, columns / 32). Scales too large for float16 become infinite.
    """
    rows = raw.shape[0]
    bits = packed_bits(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        codes, scales, biases = _groups(raw, kind)
        weight = np.ascontiguousarray(_pack_bits(codes, bits)).view("<u4").reshape(rows, -1)
        return (
            weight,
            scales.astype(np.float16).reshape(rows, -1),
            biases.astype(np.float16).reshape(rows, -1),
        )


def _groups(raw: np.ndarray, kind: Kind) -> Groups:
    if kind not in _EXACT:
        return _quantize(quants.dequantize(raw, kind).reshape(-1, GROUP_SIZE))
    return _EXACT[kind][1](raw.reshape(-1, GGML_QUANT_SIZES[kind][1]))


def _pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes (groups, 32), lowest bits first. Returns (groups, 4 * bits) uint8."""
    if bits == 8:
        return codes
    if bits == 4:
        return codes[:, ::2] | (codes[:, 1::2] << 4)
    single = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(single.reshape(len(codes), -1), axis=1, bitorder="little")


def _quantize(values: np.ndarray) -> Groups:
    """Quantize float32 (groups, 32) to 8 bits, with an error of at most half a step."""
    lowest = values.min(axis=1)
    # Round the bias down and the step up, so that rounding to float16 never clips a value.
    biases = _round_half(lowest, -np.inf)
    steps = (values.max(axis=1) - biases) / (2**FALLBACK_BITS - 1)
    scales = _round_half(steps, np.inf)
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)
    codes = np.rint((values - biases[:, None]) / divisors[:, None])
    return codes.astype(np.uint8), scales, biases


def _round_half(values: np.ndarray, towards: float) -> np.ndarray:
    """Round float32 to float16 in one direction. Returns float16."""
    rounded = values.astype(np.float16)
    beyond = rounded < values if towards > 0 else rounded > values
    return np.where(beyond, np.nextafter(rounded, np.float16(towards)), rounded)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte offset `at` of each block. Returns float16 (blocks,)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")[:, 0]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Unpack bytes whose low nibbles are the first half of a group, and high ones the second.

    packed: (groups, 16). Returns uint8 (groups, 32).
    """
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """One bit per value, to add to its nibble. packed: (groups, 4). Returns (groups, 32)."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> Groups:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, scales * np.float16(-8)


def _q4_1(blocks: np.ndarray) -> Groups:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> Groups:
    scales = _half(blocks, 0)
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return codes, scales, scales * np.float16(-16)


def _q5_1(blocks: np.ndarray) -> Groups:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> Groups:
    scales = _half(blocks, 0)
    return blocks[:, 2:] ^ 0x80, scales, scales * np.float16(-128)


def _q4_k(blocks: np.ndarray) -> Groups:
    return _k_codes(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: np.ndarray) -> Groups:
    # Bit g of byte i is the fifth bit of value i in group g of the block's eight.
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    return _k_codes(blocks[:, 48:]) | (bits.reshape(-1, GROUP_SIZE) << 4), *_k_scales(blocks)


def _k_codes(packed: np.ndarray) -> np.ndarray:
    """Codes of a K block: 32 bytes have one group in their low nibbles, the next in the high."""
    pairs = packed.reshape(-1, 1, GROUP_SIZE)
    return np.concatenate((pairs & 0x0F, pairs >> 4), axis=1).reshape(-1, GROUP_SIZE)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and biases of each K block's eight groups: 6-bit multiples of two float16s."""
    scale_codes, bias_codes = quants.Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    scales = _half(blocks, 0).astype(np.float32)[:, None] * scale_codes
    biases = _half(blocks, 2).astype(np.float32)[:, None] * bias_codes
    return scales.reshape(-1), -biases.reshape(-1)


# Kinds that are affine over groups of 32: bits per code, and how to unpack a block. In the two K
# kinds, scales and biases are products, which float16 rounds by at most one part in 2,048. That is
# a fifth of the error of requantizing to 8 bits, at half the size.
_EXACT: dict[Kind, tuple[int, Callable[[np.ndarray], Groups]]] = {
    Kind.Q4_0: (4, _q4_0),
    Kind.Q4_1: (4, _q4_1),
    Kind.Q5_0: (5, _q5_0),
    Kind.Q5_1: (5, _q5_1),
    Kind.Q8_0: (8, _q8_0),
    Kind.Q4_K: (4, _q4_k),
    Kind.Q5_K: (5, _q5_k),
}
