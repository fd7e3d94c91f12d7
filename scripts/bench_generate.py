"""Time `mlxchat` against mlx-lm on the same weights, the same BLAS, in turn: A B A B.

    python -m scripts.bench_generate prefill|decode|overhead|startup|memory [-m MODEL] [--rounds N]

Each prints what it measured, the median of each side and the ratio of the medians. `prefill`,
`decode` and `startup` need a real model (the embedded one unless -m names another), which is first
written out in float32 so that both sides load the same; `overhead` and `memory` use a tiny random
one, where the loops' own cost shows.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlxchat

# isort: split

import mlx.core as mx
import numpy as np
import psutil

from mlxchat import platform
from mlxchat.cache import make_cache
from mlxchat.models.load import Model, load_directory
from mlxchat.models.resolve import resolve_model
from mlxchat.models.skeleton import named_parameters, read_json
from mlxchat.settings import GenerationSettings
from scripts.tiny_model import tiny_config, write_tiny_model

PROMPT_TOKENS = 4232
Timed = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=sorted(BENCHMARKS))
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.device_name()}, {os.cpu_count()} cores, BLAS {platform.blas_name()}")
    with tempfile.TemporaryDirectory() as scratch:
        BENCHMARKS[options.what](options.model, options.rounds, Path(scratch))


def compare(rounds: int, unit: str, sides: dict[str, Timed]) -> dict[str, float]:
    """Run the sides in turn, after one round that is not counted; print and return the medians."""
    results: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, run in sides.items():
            value = run()
            if round_number:
                results[name].append(value)
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, values in results.items():
        listed = " ".join(f"{value:.4g}" for value in values)
        print(f"{name:12} median {medians[name]:.4g} {unit}   ({listed})")
    return medians


def bench_prefill(name: str, rounds: int, scratch: Path) -> None:
    """Tokens a second and peak memory over a prompt of PROMPT_TOKENS tokens, one generated."""
    model, wrapper = both(float32_copy(name, scratch))
    text = "\n".join(path.read_text() for path in sorted(Path("mlxchat").rglob("*.py")))
    ids = model.tokenizer.encode(text * 3)[:PROMPT_TOKENS]
    peaks: dict[str, int] = {}

    def ours() -> float:
        generation = our_generation(model, ids, 1)
        list(generation)
        peaks["mlxchat"] = generation.stats.peak_memory_bytes
        return generation.stats.prefill_tokens_per_s

    def theirs() -> float:
        mx.reset_peak_memory()
        rate = [r.prompt_tps for r in their_generation(model, wrapper, ids, 1)][-1]
        peaks["mlx-lm"] = mx.get_peak_memory()
        return rate

    medians = compare(rounds, "tok/s", {"mlxchat": ours, "mlx-lm": theirs})
    print(f"ratio of speeds {medians['mlxchat'] / medians['mlx-lm']:.3f}")
    print(
        f"peak memory {peaks['mlxchat'] / 1e9:.3f} GB against {peaks['mlx-lm'] / 1e9:.3f} GB, "
        f"ratio {peaks['mlxchat'] / peaks['mlx-lm']:.3f}"
    )


def bench_decode(name: str, rounds: int, scratch: Path) -> None:
    """Tokens a second over 200 generated after a short prompt."""
    model, wrapper = both(float32_copy(name, scratch))
    ids = model.tokenizer.prompt("Write a long story about a lighthouse.").ids
    medians = compare(
        rounds,
        "tok/s",
        {
            "mlxchat": lambda: 1 / our_token_s(model, ids, 200),
            "mlx-lm": lambda: 1 / their_token_s(model, wrapper, ids, 200),
        },
    )
    print(f"ratio of speeds {medians['mlxchat'] / medians['mlx-lm']:.3f}")


def bench_overhead(_: str, rounds: int, scratch: Path) -> None:
    """Milliseconds a token on a tiny model, above a loop that does nothing but compute."""
    config = tiny_config(layers=8, width=128, vocabulary=49152)
    model, wrapper = both(write_tiny_model(scratch / "tiny", config=config))
    ids = model.tokenizer.encode("x" * 32)
    sides: dict[str, Timed] = {
        "bare loop": lambda: 1e3 * bare_token_s(model, ids, 600),
        "mlxchat": lambda: 1e3 * our_token_s(model, ids, 600),
        "mlx-lm": lambda: 1e3 * their_token_s(model, wrapper, ids, 600),
    }
    medians = compare(rounds, "ms/token", sides)
    ours, theirs = (medians[side] - medians["bare loop"] for side in ("mlxchat", "mlx-lm"))
    print(f"above the bare loop: {ours:.3f} against {theirs:.3f} ms, ratio {ours / theirs:.3f}")


def bench_startup(name: str, rounds: int, scratch: Path) -> None:
    """Seconds from the start of the process to help, and to the first token of a 20-token prompt.

    Neither side applies the chat template, so that both read the same tokens.
    """
    directory = str(float32_copy(name, scratch))
    bin_ = Path(sys.executable).parent
    prompt = " one two three four five six seven eight nine ten" * 2
    theirs = ["--model", directory, "--max-tokens", "1", "--ignore-chat-template"]
    commands = {
        "mlxchat": ["generate", "-m", directory, "-n", "1", "--raw", prompt],
        "mlx-lm": [*theirs, "--prompt", prompt],
    }
    compare(rounds, "s", {"--help": lambda: seconds_to_output([bin_ / "mlxchat", "--help"])})
    medians = compare(
        rounds,
        "s",
        {
            "mlxchat": lambda: seconds_to_output([bin_ / "mlxchat", *commands["mlxchat"]]),
            "mlx-lm": lambda: seconds_to_output([bin_ / "mlx_lm.generate", *commands["mlx-lm"]]),
        },
    )
    print(f"ratio of times {medians['mlxchat'] / medians['mlx-lm']:.3f}")


def bench_memory(_: str, rounds: int, scratch: Path) -> None:
    """Resident memory over 20,000 tokens with a window of 512."""
    directory = write_tiny_model(scratch / "tiny")
    command = [sys.executable, "-m", "mlxchat", "generate", "-m", str(directory), "--json"]
    command += ["--max-kv-size", "512", "-n", "20000", "--ignore-eos", "Hello"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    sizes: list[int] = []
    for count, _line in enumerate(process.stdout):
        if count % 1000 == 0 and process.poll() is None and len(sizes) <= 20:
            sizes.append(psutil.Process(process.pid).memory_info().rss)
    print("MB resident by 1,000 tokens:", " ".join(f"{size / 1e6:.1f}" for size in sizes))
    print(f"most after the first 1,000 against then: {max(sizes[1:]) / sizes[1]:.4f}")


def float32_copy(name: str, scratch: Path) -> Path:
    """A directory with the model in plain float32, so that both sides load the same weights."""
    source = resolve_model(
        name, offline=True, ask=None, notify=lambda _: None, show_progress=False
    ).directory
    target = scratch / "float32"
    target.mkdir()
    for file in source.iterdir():
        if file.suffix == ".json" and "index" not in file.name:
            shutil.copy(file, target)
    config = read_json(source / "config.json")
    config.pop("quantization", None)
    (target / "config.json").write_text(json.dumps(config))
    model = load_directory(source, name, dtype="float32", notify=lambda _: None)
    weights = dict(named_parameters(model.network))
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    return target


def both(directory: Path) -> tuple[Model, Any]:
    """The model as we load it, and mlx-lm's tokenizer for the same directory."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    from mlx_lm.tokenizer_utils import load as load_their_tokenizer

    model = load_directory(directory, "float32", dtype="float32", notify=lambda _: None)
    return model, load_their_tokenizer(directory)


def our_generation(model: Model, ids: np.ndarray, max_tokens: int) -> mlxchat.Generation:
    settings = GenerationSettings(max_tokens=max_tokens, ignore_eos=True)
    cache = make_cache(model.network, model.context_length)
    return mlxchat.Generation(model, ids, cache, settings=settings)


def their_generation(model: Model, wrapper: Any, ids: np.ndarray, max_tokens: int) -> Iterator[Any]:
    from mlx_lm.generate import stream_generate

    wrapper._eos_token_ids = set()
    return stream_generate(model.network, wrapper, mx.array(ids), max_tokens)


def our_token_s(model: Model, ids: np.ndarray, max_tokens: int) -> float:
    return token_s(our_generation(model, ids, max_tokens))


def their_token_s(model: Model, wrapper: Any, ids: np.ndarray, max_tokens: int) -> float:
    return token_s(their_generation(model, wrapper, ids, max_tokens))


def bare_token_s(model: Model, ids: np.ndarray, max_tokens: int) -> float:
    return token_s(bare_loop(model, ids, max_tokens))


def bare_loop(model: Model, ids: np.ndarray, max_tokens: int) -> Iterator[int]:
    """Model call, argmax, `async_eval`, one token ahead, with mlx-lm's own plain cache."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model.network)

    def step(tokens: mx.array) -> mx.array:
        token = mx.argmax(model.network(tokens[None], cache=cache)[:, -1], axis=-1)
        mx.async_eval(token)
        return token

    token = step(mx.array(ids))
    for _ in range(max_tokens):
        following = step(token)
        yield token.item()  # type: ignore[misc]
        token = following


def token_s(tokens: Iterator[Any] | mlxchat.Generation) -> float:
    """Median seconds between two tokens."""
    gaps: list[float] = []
    previous_s: float | None = None
    for _ in tokens:
        now_s = time.perf_counter()
        if previous_s is not None:
            gaps.append(now_s - previous_s)
        previous_s = now_s
    return statistics.median(gaps)


def seconds_to_output(command: list[Any]) -> float:
    """Seconds until the first character of the answer, behind mlx-lm's rule of equals signs."""
    # mlx-lm does not load OpenBLAS by itself.
    same_blas = {"LD_PRELOAD": "libopenblas.so.0"} if sys.platform == "linux" else {}
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | same_blas,
    )
    assert process.stdout is not None
    while process.stdout.read(1) in (b"=", b"\n"):
        pass
    elapsed_s = time.perf_counter() - started_s
    process.stdout.read()
    if process.wait() != 0:
        raise SystemExit(f"{command[0]} failed")
    return elapsed_s


BENCHMARKS: dict[str, Callable[[str, int, Path], None]] = {
    "prefill": bench_prefill,
    "decode": bench_decode,
    "overhead": bench_overhead,
    "startup": bench_startup,
    "memory": bench_memory,
}

if __name__ == "__main__":
    main()
