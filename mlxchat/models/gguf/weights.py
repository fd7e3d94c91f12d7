"""Turns a GGUF file's tensors into the arrays of mlx-lm's model, in MLX's affine form.

`value = scale * code + bias` in groups of 32. Q4_0, Q4_1, Q4_K and Q8_0 keep their codes; all other
quantizations are dequantized and packed in 8 bits. Plain tensors keep their type.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import MODEL_ARCH, ReaderTensor, get_tensor_name_map, quants
from gguf import GGMLQuantizationType as Kind

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.config import ROPE_FACTORS
from mlxchat.models.gguf.read import GgufFile, shape_of
from mlxchat.models.skeleton import build_skeleton, named_parameters

GROUP_SIZE = 32
BLOCK_BYTES = {Kind.Q4_0: 18, Kind.Q4_1: 20, Kind.Q4_K: 144, Kind.Q8_0: 34}
FOUR_BITS = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
PLAIN = {Kind.F32: "float32", Kind.F16: "float16", Kind.BF16: "bfloat16"}
# Dequantized values in memory at a time.
CHUNK_VALUES = 4 * 1024 * 1024

# Architectures whose activations can overflow float16.
TRAINED_IN_BFLOAT16 = {"gemma3"}

# Parameter of mlx-lm's model, such as model.norm.weight → its tensor.
Matched = dict[str, ReaderTensor]


def match_tensors(file: GgufFile, config: dict[str, Any]) -> Matched:
    """Pair the model's parameters with the file's tensors.

    Raises ModelBroken if a tensor is missing or has the wrong shape, ModelUnsupported if unknown.
    """
    network = build_skeleton(config)
    if config["tie_word_embeddings"] and "lm_head" in network:
        network.pop("lm_head")  # gemma3 makes one and drops it on loading
    arch = MODEL_ARCH[file.metadata["general.architecture"].upper()]
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    matched: Matched = {}
    for name, parameter in named_parameters(network):
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensor = file.tensors.get(stored_name or name)
        if tensor is None:
            raise file.broken(f"tensor {stored_name!r} is missing")
        if (shape := shape_of(tensor)) != parameter.shape:
            raise file.broken(f"tensor {tensor.name!r} has shape {shape}, not {parameter.shape}")
        if len(shape) == 1 and tensor.tensor_type not in PLAIN:
            raise _unreadable(file, tensor)
        matched[name] = tensor
    known = {ROPE_FACTORS, *(tensor.name for tensor in matched.values())}
    if unknown := file.tensors.keys() - known:
        raise file.unsupported(
            f"mlx-lm's {config['model_type']} has no parameter for tensor {min(unknown)!r}"
        )
    return matched


def _unreadable(file: GgufFile, tensor: ReaderTensor) -> ModelUnsupported:
    stored = f"tensor {tensor.name!r} stored as {tensor.tensor_type.name}"
    return file.unsupported(f"{stored} is not supported")


def storage_config(file: GgufFile, matched: Matched) -> dict[str, Any]:
    """The dtype to run the model in, and the bit widths of quantized modules.

    The most common width is the default; modules with another are listed by name. Scales stay in
    float16 in the file, and become bfloat16 if float16 would overflow or the file shows that the
    model was trained in bfloat16.
    """
    kinds = {name: each.tensor_type for name, each in matched.items()}
    bits = {
        name.removesuffix(".weight"): 4 if kind in FOUR_BITS else 8
        for name, kind in kinds.items()
        if kind not in PLAIN
    }
    dtype = "float16" if bits else PLAIN[kinds["model.embed_tokens.weight"]]
    trained_in_it = file.metadata["general.architecture"] in TRAINED_IN_BFLOAT16
    wide = trained_in_it or Kind.BF16 in kinds.values()
    stored: dict[str, Any] = {"torch_dtype": "bfloat16" if dtype == "float16" and wide else dtype}
    if bits:
        usual = Counter(bits.values()).most_common(1)[0][0]
        others = {name: _packing(each) for name, each in bits.items() if each != usual}
        stored["quantization"] = _packing(usual) | others
    return stored


def _packing(bits: int) -> dict[str, Any]:
    return {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}


def convert_weights(
    file: GgufFile, config: dict[str, Any], matched: Matched
) -> Iterator[tuple[str, mx.array]]:
    """The model's arrays by name, evaluated. Raises ModelBroken for values that are not finite,
    ModelUnsupported if the gguf package cannot read a tensor's kind."""
    arch = file.metadata["general.architecture"]
    for name, tensor in matched.items():
        rows, kind = tensor.data, tensor.tensor_type
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            # Each head's even rows come before its odd ones, as Hugging Face has them: llama.cpp
            # rotates adjacent pairs, mlx-lm's llama the two halves.
            pairs = rows.reshape(-1, config["head_dim"] // 2, 2, *rows.shape[1:])
            rows = pairs.swapaxes(1, 2).reshape(rows.shape)
        if kind in PLAIN:
            arrays = {name: _plain(rows, kind)}
            if arch == "gemma3" and name.endswith("norm.weight"):
                # llama.cpp adds one.
                arrays[name] = arrays[name].astype(mx.float32) - 1
        else:
            try:
                arrays = _packed(rows, kind, name.removesuffix("weight"))
            except NotImplementedError as error:
                raise _unreadable(file, tensor) from error
        for array in arrays.values():
            if array.dtype != mx.uint32 and not mx.isfinite(array).all().item():
                raise file.broken(f"tensor {tensor.name!r} contains infinite or NaN values")
        yield from arrays.items()


def _plain(rows: np.ndarray, kind: Kind) -> mx.array:
    if kind == Kind.BF16:  # numpy has none, so it comes as bytes
        return mx.array(np.ascontiguousarray(rows).view(np.uint16)).view(mx.bfloat16)
    return mx.array(rows)


def _packed(rows: np.ndarray, kind: Kind, prefix: str) -> dict[str, mx.array]:
    """Codes, scales and biases of a quantized tensor's rows, a few of them at a time."""
    step = max(CHUNK_VALUES // (2 * rows.shape[1]), 1)
    pieces: list[tuple[mx.array, ...]] = []
    for start in range(0, len(rows), step):
        pieces.append(_packed_piece(np.ascontiguousarray(rows[start : start + step]), kind))
        mx.eval(pieces[-1])
    whole = [mx.concatenate(list(each)) for each in zip(*pieces, strict=True)]
    return dict(zip((f"{prefix}weight", f"{prefix}scales", f"{prefix}biases"), whole, strict=True))


def _packed_piece(rows: np.ndarray, kind: Kind) -> tuple[mx.array, ...]:
    with np.errstate(over="ignore", invalid="ignore"):
        if kind not in BLOCK_BYTES:
            values = mx.array(quants.dequantize(rows, kind))
            weight, scales, biases = mx.quantize(values, GROUP_SIZE, 8)
        else:
            codes, *factors = _groups(rows.reshape(-1, BLOCK_BYTES[kind]), kind)
            if kind in FOUR_BITS:
                codes = codes[:, ::2] | (codes[:, 1::2] << 4)
            weight = mx.array(np.ascontiguousarray(codes).view(np.uint32).reshape(len(rows), -1))
            scales, biases = (mx.array(each.reshape(len(rows), -1)) for each in factors)
        return weight, scales.astype(mx.float16), biases.astype(mx.float16)


def _groups(blocks: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (groups, 32) uint8, scales and biases (groups,) of blocks in an affine kind."""
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16)[:, 0]
    if kind == Kind.Q8_0:
        return blocks[:, 2:] ^ 0x80, scales, scales * np.float16(-128)
    if kind == Kind.Q4_0:
        return _nibbles(blocks[:, 2:]), scales, scales * np.float16(-8)
    second = np.ascontiguousarray(blocks[:, 2:4]).view(np.float16)[:, 0]
    if kind == Kind.Q4_1:
        return _nibbles(blocks[:, 4:]), scales, second
    # Q4_K: the scales and minima of eight groups are 6-bit multiples of two numbers. float16 rounds
    # their products by at most one part in 2,048.
    multiples, minima = quants.Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    scales = scales.astype(np.float32)[:, None] * multiples
    biases = -second.astype(np.float32)[:, None] * minima
    # 32 bytes have one group in their low nibbles, the next one in the high ones.
    codes = _nibbles(blocks[:, 16:].reshape(-1, GROUP_SIZE)).reshape(-1, GROUP_SIZE)
    return codes, scales.reshape(-1), biases.reshape(-1)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The low nibbles of each row, then the high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)
