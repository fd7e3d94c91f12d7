"""Maps tensors of a GGUF file to parameters of mlx-lm's model, with their shapes.

llama.cpp changes some tensors: llama's query and key rows are interleaved, gemma3's norms have one
added. This is noted here and undone in `weights`.
"""

from dataclasses import dataclass

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.config import Dimensions
from mlxchat.models.gguf.pack import can_convert, is_packed
from mlxchat.models.gguf.read import GgufFile, Tensor
from mlxchat.models.gguf.rope import FACTORS

LLAMA_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
LLAMA_MLP = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of mlx-lm's model, named `module.leaf`."""

    module: str
    leaf: str  # weight or bias
    shape: tuple[int, ...]
    # Rows of a head if llama.cpp interleaves its two halves, else 1.
    interleaved_rows: int = 1
    plus_one: bool = False

    @property
    def name(self) -> str:
        return f"{self.module}.{self.leaf}"


def match_tensors(file: GgufFile, dims: Dimensions) -> list[tuple[Tensor, Parameter]]:
    """Pair the file's tensors with the model's parameters, in the model's order.

    Raises ModelBroken if a tensor is missing or has the wrong shape, ModelUnsupported if the model
    has no such parameter or the tensor's kind cannot be read.
    """
    parameters = _parameters(dims, file)
    for name in file.tensors:
        if name not in parameters and name != FACTORS:
            raise ModelUnsupported(
                f"{file.path}: mlx-lm's {dims.arch} has no parameter for tensor {name!r}"
            )
    return [(_checked(file, name, wanted), wanted) for name, wanted in parameters.items()]


def _checked(file: GgufFile, name: str, wanted: Parameter) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise file.broken(f"tensor {name!r} is missing")
    if tensor.shape != wanted.shape:
        raise file.broken(f"tensor {name!r} has shape {tensor.shape}, not {wanted.shape}")
    if not can_convert(tensor.kind) or (is_packed(tensor.kind) and len(tensor.shape) == 1):
        raise ModelUnsupported(
            f"{file.path}: tensor {name!r} stored as {tensor.kind.name} is not supported"
        )
    return tensor


def _parameters(dims: Dimensions, file: GgufFile) -> dict[str, Parameter]:
    """Every parameter of the model, by GGUF tensor name."""
    table = {
        "token_embd.weight": Parameter("model.embed_tokens", "weight", (dims.vocab, dims.hidden)),
        "output_norm.weight": _norm("model.norm", dims.hidden, dims),
    }
    for layer in range(dims.layers):
        source, target = f"blk.{layer}", f"model.layers.{layer}"
        for name, parameter in (
            _norms(dims, target) | _matrices(dims, target) | _biases(dims, target, file)
        ).items():
            table[f"{source}.{name}"] = parameter
    if "output.weight" in file.tensors:
        table["output.weight"] = Parameter("lm_head", "weight", (dims.vocab, dims.hidden))
    return table


def _norm(module: str, length: int, dims: Dimensions) -> Parameter:
    return Parameter(module, "weight", (length,), plus_one=dims.arch == "gemma3")


def _norms(dims: Dimensions, layer: str) -> dict[str, Parameter]:
    modules = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if dims.arch == "gemma3":
        modules |= {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    norms = {
        f"{name}.weight": _norm(f"{layer}.{module}", dims.hidden, dims)
        for name, module in modules.items()
    }
    if dims.arch in ("qwen3", "gemma3"):
        for side in ("q", "k"):
            norms[f"attn_{side}_norm.weight"] = _norm(
                f"{layer}.self_attn.{side}_norm", dims.head_dim, dims
            )
    return norms


def _projections(dims: Dimensions) -> dict[str, tuple[str, int, int]]:
    """GGUF name, mlx-lm module, rows and columns of each projection in a layer."""
    queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    return {
        "attn_q": ("self_attn.q_proj", queries, dims.hidden),
        "attn_k": ("self_attn.k_proj", keys, dims.hidden),
        "attn_v": ("self_attn.v_proj", keys, dims.hidden),
        "attn_output": ("self_attn.o_proj", dims.hidden, queries),
        "ffn_gate": ("mlp.gate_proj", dims.intermediate, dims.hidden),
        "ffn_up": ("mlp.up_proj", dims.intermediate, dims.hidden),
        "ffn_down": ("mlp.down_proj", dims.hidden, dims.intermediate),
    }


def _interleaved_rows(dims: Dimensions, name: str) -> int:
    return dims.head_dim if dims.arch == "llama" and name in ("attn_q", "attn_k") else 1


def _matrices(dims: Dimensions, layer: str) -> dict[str, Parameter]:
    return {
        f"{name}.weight": Parameter(
            f"{layer}.{module}", "weight", (rows, columns), _interleaved_rows(dims, name)
        )
        for name, (module, rows, columns) in _projections(dims).items()
    }


def _biases(dims: Dimensions, layer: str, file: GgufFile) -> dict[str, Parameter]:
    """Biases of mlx-lm's module: qwen2 always has them, llama if layer 0 does."""
    projections = _projections(dims)
    return {
        f"{name}.bias": Parameter(
            f"{layer}.{projections[name][0]}",
            "bias",
            (projections[name][1],),
            _interleaved_rows(dims, name),
        )
        for name in _biased(dims, file)
    }


def _biased(dims: Dimensions, file: GgufFile) -> list[str]:
    if dims.arch == "qwen2":
        return ["attn_q", "attn_k", "attn_v"]
    names: list[str] = []
    if dims.arch == "llama":
        # mlx-lm's llama can only switch each of these groups as a whole.
        for group in (LLAMA_ATTENTION, LLAMA_MLP):
            present = [name for name in group if f"blk.0.{name}.bias" in file.tensors]
            if present and len(present) < len(group):
                raise ModelUnsupported(
                    f"{file.path}: mlx-lm's llama does not support biases on "
                    f"{', '.join(present)} only"
                )
            names += present
    return names
