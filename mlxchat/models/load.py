"""Load a model directory: the network, its weights in the right dtype, and the tokenizer.

mlx-lm builds the network from its configuration. We load the weights ourselves, because the best
dtype depends on the machine and because mlx-lm's loader imports transformers. Formats that only
mlx-lm can unpack still go through its loader.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache.build import make_cache
from mlxchat.cache.powers import install_powers
from mlxchat.errors import MlxchatError, ModelBroken, device_failures, first_line
from mlxchat.models.adapter import Adapter, apply_adapter, find_adapter
from mlxchat.models.model import Model, report_shortage
from mlxchat.models.precision import (
    activation_dtype,
    check_experts,
    dequantized,
    first_logits_are_finite,
    hold_in_bfloat16,
    in_dtype,
    overflows_float16,
    quantize,
)
from mlxchat.models.resolve import resolve_model
from mlxchat.models.skeleton import (
    DTYPES,
    build_skeleton,
    context_length,
    named_parameters,
    parameter_count,
    read_config,
    read_generation_config,
    suitable_dtype,
)
from mlxchat.models.tokenizer_files import GivenTemplate, load_tokenizer
from mlxchat.models.weights import arrays_of, fitting, load_arrays, needs_mlx_lms_loader
from mlxchat.options import options_of
from mlxchat.request import Setup
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import Notify, Observer, format_bytes

Check = Callable[[nn.Module, Tokenizer], object] | None

# Larger shares of the free memory cause a warning, as in mlx-lm.
NEARLY_ALL = 0.9


def load(
    name: str | Path | None = None,
    *,
    dtype: str = "auto",
    adapter: str | None = None,
    offline: bool = False,
) -> Model:
    """Load a model by its directory, GGUF file, alias or hub id, or the default one.

    Raises ModelError, HubError or TemplateError, with a message that says what to do.
    """
    silent = Observer().note
    name = None if name is None else str(name)
    found = resolve_model(name, offline=offline, ask=None, notify=silent, show_progress=False)
    added = None if adapter is None else find_adapter(adapter)
    return load_directory(found.directory, found.name, dtype=dtype, notify=silent, adapter=added)


def load_directory(
    directory: Path,
    name: str,
    *,
    dtype: str,
    notify: Notify,
    check: Check = None,
    adapter: Adapter | None = None,
    template: GivenTemplate | None = None,
    ranks: int = 1,
    divide: Callable[[nn.Module], None] | None = None,
) -> Model:
    """Load the model in `directory`. `dtype` is one of Setup's choices; "auto" suits the device.
    `template` replaces the model's chat template.

    `check` gets the network and the tokenizer before any weights are read, so that it can refuse
    them early. `divide` reduces the network, whose weights are not evaluated yet, to this process's
    share among `ranks`: only that is ever in memory, and the caller must call `without_overflow`
    once all ranks have loaded.
    """
    options_of(Setup)["dtype"].check(dtype)
    config = read_config(directory)
    # The quick checks first.
    tokenizer = load_tokenizer(directory, config, template)
    network = build_skeleton(config)
    if check is not None:
        check(network, tokenizer)
    stored = load_arrays(directory)
    stored_bytes = sum(array.nbytes for array in stored.values())
    arrays = arrays_of(network, config, directory, stored)
    # A second reference would keep the stored arrays in memory along with the converted ones.
    del stored
    if adapter is not None:
        apply_adapter(adapter, build_skeleton(config))
    target = _target_dtype(dtype, parameter_count(network, arrays), stored_bytes, notify, ranks)
    network = _fill(network, config, directory, arrays, target, divide=divide)
    install_powers(network)
    activations = activation_dtype(network)
    if adapter is not None:
        apply_adapter(adapter, network, activations)
    if adapter is not None or needs_mlx_lms_loader(config):
        _check_first_pass(network, directory)
    model = Model(
        name=name,
        network=network,
        tokenizer=tokenizer,
        dtype=activations,
        context_length=context_length(config),
        generation_config=read_generation_config(directory, notify),
        config=config,
        adapter=adapter,
    )
    return model if divide is not None else without_overflow(model, dtype, notify)


def without_overflow(model: Model, dtype: str, notify: Notify) -> Model:
    """The model, converted to bfloat16 if it overflows in float16 and `dtype`, the user's choice,
    allows it. Computes a token: if the model is divided among ranks, all of them must call this."""
    if model.dtype != mx.float16 or first_logits_are_finite(model.network, model.config):
        return model
    name = model.name
    if dtype in DTYPES:
        notify(f"{name} overflows in {dtype}, so its output will be noise: choose another dtype")
        return model
    notify(f"{name} overflows in float16: using bfloat16")
    hold_in_bfloat16(model.network)
    _evaluate(model.network)
    return replace(model, dtype=mx.bfloat16)


def _target_dtype(
    choice: str, parameters: int, stored_bytes: int, notify: Notify, ranks: int
) -> mx.Dtype | None:
    """The dtype for all weights, divided among `ranks`, or None to keep the stored one.

    If the model does not fit, raises ModelError, or on macOS warns.
    """
    free_bytes = platform.free_memory_bytes() * ranks
    if choice in DTYPES:
        _require_memory(parameters * DTYPES[choice].size, free_bytes, notify)
        return DTYPES[choice]
    if choice == "auto":
        if (suitable := suitable_dtype(parameters, free_bytes)) is not None:
            return suitable
        if not platform.on_gpu():
            notify(
                f"float32 weights need {format_bytes(parameters * mx.float32.size)}, but only "
                f"{format_bytes(free_bytes)} is free: keeping the stored dtype, which is slow "
                "on a CPU"
            )
    _require_memory(stored_bytes, free_bytes, notify)
    return None


def _require_memory(needed_bytes: int, free_bytes: int, notify: Notify) -> None:
    if needed_bytes > (1 if platform.shortage_is_certain() else NEARLY_ALL) * free_bytes:
        report_shortage(
            f"the model's weights need {format_bytes(needed_bytes)} of memory, and "
            f"{format_bytes(free_bytes)} is free: choose a smaller or more heavily quantized model",
            notify,
        )


def _fill(
    network: nn.Module,
    config: dict[str, Any],
    directory: Path,
    arrays: dict[str, mx.array],
    target: mx.Dtype | None,
    *,
    divide: Callable[[nn.Module], None] | None,
) -> nn.Module:
    """Load the weights into the network, in bfloat16 if float16 would overflow."""
    named = config.get("quantization_config") if needs_mlx_lms_loader(config) else None
    with fitting(directory, named.get("quant_method") if isinstance(named, dict) else None):
        if needs_mlx_lms_loader(config):
            network = _load_with_mlx_lm(directory, target)
        else:
            _fill_with_arrays(network, config, arrays, target)
        if target is None and overflows_float16(config):
            hold_in_bfloat16(network)
        check_experts(network)
        if divide is not None:
            divide(network)
        _evaluate(network)
    network.eval()
    return network


def _fill_with_arrays(
    network: nn.Module, config: dict[str, Any], given: dict[str, mx.array], target: mx.Dtype | None
) -> None:
    # Here, too.
    arrays = dict(given)
    given.clear()
    if target is None:
        if "mlxchat" in config:
            # GGUF files store norms in float32, which would promote 16-bit activations to float32.
            arrays = in_dtype(network, arrays, DTYPES[config["torch_dtype"]])
        if config.get("quantization") is not None:
            quantize(network, config["quantization"], arrays)
    else:
        arrays = in_dtype(network, dequantized(network, config, arrays), target)
    network.load_weights(list(arrays.items()), strict=True)


def _load_with_mlx_lm(directory: Path, target: mx.Dtype | None) -> nn.Module:
    utils = platform.import_from_mlx_lm("utils")
    network, _ = utils.load_model(directory, lazy=True)
    if target is not None:
        network = utils.dequantize_model(network)
        arrays = in_dtype(network, dict(named_parameters(network)), target)
        network.load_weights(list(arrays.items()))
    return network


def _check_first_pass(network: nn.Module, directory: Path) -> None:
    """Raise ModelBroken if two tokens cannot be computed: MLX cannot run every packing here."""
    try:
        with device_failures(of_model=False):
            mx.eval(network(mx.zeros((1, 2), mx.int32), cache=make_cache(network)))
        # What the modules keep may not be left unevaluated for another thread.
        _evaluate(network)
    except MlxchatError:
        raise
    except Exception as error:
        raise ModelBroken(
            f"the model in {directory} fails on its first tokens: {first_line(error)}"
        ) from error


def _evaluate(network: nn.Module) -> None:
    """Evaluate all arrays of `network`: until then, an MLX array belongs to the thread that created
    it. `parameters()` omits those whose names begin with an underscore, such as a scaled rope's."""
    mx.eval(network, [vars(module) for _, module in network.named_modules()])
