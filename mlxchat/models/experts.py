"""Check that the device can run a mixture's experts in their dtype.

MLX's CPU backend runs unquantized experts only in float32, and fails only when they run. Quantized
experts and GPUs have no such limit.
"""

import mlx.core as mx
from mlx import nn
from mlx_lm.models.switch_layers import SwitchLinear

from mlxchat.errors import ModelUnsupported


def check_experts(network: nn.Module) -> None:
    """Raise ModelUnsupported if this device cannot run the experts in their dtype."""
    dtypes = {
        module["weight"].dtype
        for _, module in network.named_modules()
        if isinstance(module, SwitchLinear)
    }
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
