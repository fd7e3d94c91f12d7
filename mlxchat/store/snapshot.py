"""A snapshot: the complete state of a cache and its ledger, in a file that each new one replaces.

Entries are in temporal order, without padding, and with the numbers that restore each one's slot,
so that the next output matches bit for bit. Facts added by the caller identify the conversation or
generation. Writing happens in another thread, while the next tokens are computed.
"""

import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat import paths, platform
from mlxchat.cache.layers import Cache, recurrent_states, tokens_held, windows
from mlxchat.cache.ring import Entries, Placement
from mlxchat.chat.window import Ledger
from mlxchat.errors import SnapshotBroken, SnapshotError, SnapshotTooLarge
from mlxchat.files import by_use, make_private_directory
from mlxchat.models.gguf import ORIGIN
from mlxchat.models.model import Model
from mlxchat.models.skeleton import named_parameters
from mlxchat.paths import __version__
from mlxchat.store import tensor_file
from mlxchat.units import format_bytes

# What is restored, and the copy that the next snapshot takes.
COPIES = 2
# The fact that is the number of the shards; and how many a rank keeps: as many as sessions keep
# snapshots, plus those of a checkpoint being replaced.
SHARDS, SHARDS_KEPT = "shards", 13
SAMPLES = 64  # values per tensor
SAMPLED_BYTES = 1 << 28  # of tensors sampled at the same time

Parameters = list[tuple[str, mx.array]]
# What may differ, in words, with its value in types that JSON has.
Fingerprint = dict[str, object]
# Replaces a file atomically by a snapshot; returns its size in bytes. Raises OSError.
Write = Callable[[Path], int]


@dataclass(frozen=True, slots=True)
class Restored:
    """The contents of a snapshot. `facts` are the caller's own JSON, unchecked."""

    cache: Cache
    ledger: Ledger
    facts: dict[str, Any]


def take(cache: Cache, ledger: Ledger, fingerprint: Fingerprint, facts: dict[str, Any]) -> Write:
    """Freeze the state, with at most one copy of the window. Any thread may write it, while the
    cache continues to change. Raises SnapshotError for a family whose state has another form."""
    assert len(ledger) >= tokens_held(cache)
    arrays: dict[str, mx.array | None] = {}
    for i, window in enumerate(windows(cache)):
        for name, array in window.entries._asdict().items():
            arrays[f"window.{i}.{name}"] = array
    for i, state in enumerate(recurrent_states(cache)):
        if not hasattr(state, "cache"):
            raise SnapshotError(f"a {type(state).__name__} cannot be saved")
        for j, array in enumerate(state.cache):
            arrays[f"recurrent.{i}.{j}"] = array
    tensors = tensor_file.hold({name: each for name, each in arrays.items() if each is not None})
    tensors["ledger"] = ledger.ids.astype(np.int32)
    own = {
        "fingerprint": fingerprint,
        "placement": [asdict(window.placement) for window in windows(cache)],
        "ledger": {"window": ledger.window, "keep": ledger.keep, "overflowed": ledger.overflowed},
        "facts": facts,
    }
    return partial(tensor_file.write, tensors=tensors, facts=own)


def restore(path: Path, empty: Cache, fingerprint: Fingerprint) -> Restored:
    """Read a snapshot into a fork of `empty`, a cache made for the same fingerprint.

    Raises SnapshotError naming the differences, SnapshotTooLarge if it does not fit into memory
    now, SnapshotBroken if the file is damaged or inconsistent, OSError if it cannot be read.
    """
    bits, own = tensor_file.read(path)
    saved = own.get("fingerprint", {})
    if different := differences(fingerprint, saved):
        was = saved.get(different[0])
        which = f" ({was:,})" if isinstance(was, int) else ""
        raise SnapshotError(f"the cache was saved with a different {different[0]}{which}")
    needed_bytes = COPIES * sum(each.nbytes for each in bits.values())
    # Metal's recommendation is no limit.
    certain = platform.shortage_is_certain()
    free_bytes = (platform.free_memory_bytes if certain else platform.obtainable_memory_bytes)()
    if needed_bytes > free_bytes:
        sizes = f"{format_bytes(needed_bytes)} of memory, but only {format_bytes(free_bytes)}"
        raise SnapshotTooLarge(f"{path} needs {sizes} is free")
    try:
        return _restored(tensor_file.loaded(bits), own, empty)
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise SnapshotBroken(f"{path} is inconsistent: {error}") from error


def _restored(tensors: dict[str, mx.array], own: dict[str, Any], empty: Cache) -> Restored:
    cache = empty.fork()
    for i, (window, saved) in enumerate(zip(windows(cache), own["placement"], strict=True)):
        entries = Entries(*(tensors.get(f"window.{i}.{name}") for name in Entries._fields))
        window.restore(entries, Placement.of(saved))
    for i, state in enumerate(recurrent_states(cache)):
        state.cache = [tensors.get(f"recurrent.{i}.{j}") for j in range(len(state.cache))]
    ledger = Ledger(ids=np.array(tensors["ledger"]), **own["ledger"])
    return Restored(cache, ledger, own["facts"])


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes a job wrote, and the seconds it took."""

    size_bytes: int
    seconds: float


class Background:
    """Runs jobs that write a file and return its size in bytes, in order, in another thread.
    `written` describes the last one that succeeded.

    A job finishes before the interpreter exits.
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._jobs: deque[Future[None]] = deque()
        self._result: Written | OSError | None = None
        self.written: Written | None = None

    @property
    def busy(self) -> bool:
        return not all(job.done() for job in self._jobs)

    def run(self, job: Callable[[], int]) -> None:
        """Add a job, after waiting until it and those before it are no more than the `most`."""
        self.wait(self._most - 1)
        self._jobs.append(self._thread.submit(self._do, job))

    def wait(self, left: int = 0) -> None:
        """Wait until no more than these jobs are left."""
        while len(self._jobs) > left:
            self._jobs.popleft().result()

    def take_result(self) -> Written | OSError | None:
        """The result of the last finished job, once; then None."""
        result, self._result = self._result, None
        return result

    def _do(self, job: Callable[[], int]) -> None:
        started_s = time.perf_counter()
        try:
            size_bytes = job()
        except OSError as error:
            self._result = error
        else:
            self.written = self._result = Written(size_bytes, time.perf_counter() - started_s)


class StateFile:
    """The file at `path`, used by one process only. `failed` gets the reason when saving starts to
    fail, and `recovered` is called when it works again.

    Of several ranks, each saves its shard on its own disk, and the file of rank 0 has the number by
    which they are known. If one is missing, damaged or of other ranks, none can be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed: Callable[[object], object] = lambda reason: None
        self.recovered: Callable[[], object] = lambda: None
        self.background = Background()
        self.fails = False
        # Numbers of the shards that the next file lists, and of those that the last one listed.
        self._next, self._listed = (1 + secrets.randbelow(2**31 - 1) for _ in range(2))

    def save(
        self,
        model: Model,
        cache: Cache,
        ledger: Ledger,
        fingerprint: Fingerprint,
        facts: dict[str, Any],
    ) -> None:
        """Freeze the state and start to write it; `facts` are the caller's own, as JSON.

        Raises SnapshotError if a rank could not save its shard, which leaves the previous state
        intact, and RanksError if a rank is lost.
        """
        ranks = model.ranks
        if ranks.size > 1:
            # Until it is written, the file lists the other shards.
            self.background.wait()
            facts = facts | {SHARDS: ranks.same(lambda: self._next)}
        write_taken = take(cache, ledger, fingerprint, facts)
        if ranks.size > 1:
            for rank in ranks.failed(lambda: _write_shard(ranks.rank, facts[SHARDS], write_taken)):
                raise SnapshotError(f"rank {rank} could not save its shard")

        def write() -> int:
            size_bytes = write_taken(self.path)
            self._next, self._listed = self._listed, self._next
            return size_bytes

        if ranks.leads:
            self.background.run(write)

    def report(self, error: Exception | None = None) -> None:
        """Report the `error`, or the result of the last write, once it is known."""
        result = error or self.background.take_result()
        fails = self.fails if result is None else not isinstance(result, Written)
        if fails and not self.fails:
            self.failed(getattr(result, "strerror", None) or result)
        elif self.fails and not fails:
            self.recovered()
        self.fails = fails

    def restore(self, model: Model, empty: Cache, fingerprint: Fingerprint) -> Restored | None:
        """The contents of the file, in a fork of `empty`; None if there is no file.

        Raises what that raises, SnapshotBroken without a shard, RanksError if a rank is lost.
        """
        ranks, restored = model.ranks, None

        def read() -> tuple[Ledger, dict[str, Any]] | None:
            nonlocal restored
            with suppress(FileNotFoundError):
                restored = restore(self.path, empty, fingerprint)
            return None if restored is None else (restored.ledger, restored.facts)

        found = ranks.same(read)
        if found is None or ranks.size == 1:
            return restored
        ledger, facts = found
        self._listed = facts.pop(SHARDS, 0)

        def read_shard() -> None:
            nonlocal restored
            path = shard_path(ranks.rank, self._listed)
            restored = Restored(restore(path, empty, fingerprint).cache, ledger, facts)

        for rank in ranks.failed(read_shard):
            raise SnapshotBroken(f"rank {rank} does not have its shard of the snapshot")
        return restored


def shard_path(rank: int, number: int) -> Path:
    return paths.shards_dir() / f"rank{rank}-{number}.safetensors"


def _write_shard(rank: int, number: int, write: Write) -> None:
    """Write this rank's shard, and delete all but its latest. Raises OSError."""
    make_private_directory(paths.shards_dir())
    write(shard_path(rank, number))
    keep_latest(paths.shards_dir(), f"rank{rank}-*.safetensors", SHARDS_KEPT)


def keep_latest(directory: Path, pattern: str, count: int) -> None:
    """Delete the files of this pattern, except the `count` used last."""
    # The next call tries again.
    with suppress(OSError):
        for path in [path for path, _ in by_use(directory) if path.match(pattern)][count:]:
            path.unlink(missing_ok=True)


# What a state was made with


class ModelPrint:
    """The part of a fingerprint that never changes for a loaded model. Takes some 50 ms.

    A model is identified by its configuration and by samples of every tensor in memory: hashing
    gigabytes at each start would take longer than prefilling a window again.
    """

    def __init__(self, model: Model) -> None:
        tokenizer, template = model.tokenizer, model.tokenizer.template
        # The path of a converted file does not matter.
        config = {name: value for name, value in model.config.items() if name != ORIGIN}
        self._ranks = model.ranks.size
        self._of_model: Fingerprint = {
            "version of mlxchat": __version__,
            "version of mlx-lm": version("mlx-lm"),
            "model": _hash(json.dumps(config, sort_keys=True, default=str)),
            "set of weights": _weights(model),
            "adapter": "" if model.adapter is None else model.adapter.digest,
            "dtype": str(model.dtype),
            "chat template": _hash(template.source if template is not None else ""),
            "tokenizer": _hash(tokenizer.definition() + str(sorted(tokenizer.eos_ids))),
        }

    def of(self, window: int | None, keep: int, system: str | None) -> Fingerprint:
        """The complete fingerprint of a cache of at most `window` tokens (None: unbounded), the
        first `keep` of which are never evicted."""
        return self._of_model | {
            "number of ranks": self._ranks,
            "window": window,
            "system prompt, note or remembered lines": _hash(system or ""),
            "number of kept tokens": keep,
        }

    def digest(self) -> str:
        """Identifies the model alone, whatever its cache, in hexadecimal."""
        return _hash(json.dumps(self._of_model, sort_keys=True))


def differences(own: Fingerprint, saved: Mapping[str, object]) -> list[str]:
    """What is different in a fingerprint read from a file."""
    names = {name for name in own if name not in saved or saved[name] != own[name]}
    # Each rank has another part of the weights, and an adapter's arrays are among them.
    if {"number of ranks", "adapter"} & names:
        names.discard("set of weights")
    return [name for name in own if name in names]


def made_by(model: Model) -> str:
    """Identifies everything that affects keys and values, for data that is cheap to recompute: a
    version that rounds differently, or that fixed a defect, should recompute it."""
    return f"{ModelPrint(model).digest()} {version('mlx')} {mx.default_device()}"


def _weights(model: Model) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for some in _bounded(named_parameters(model.network)):
        samples = [_sample(array) for _, array in some]
        # All together, because each evaluation waits for the device.
        mx.eval(samples)
        for (name, array), sample in zip(some, samples, strict=True):
            digest.update(f"{name} {array.shape} {array.dtype} ".encode())
            digest.update(np.array(sample).tobytes())
    return digest.hexdigest()


def _bounded(parameters: Parameters) -> Iterator[Parameters]:
    """All parameters, in batches of bounded size: sampling a transposed view copies it."""
    some: Parameters = []
    for each in parameters:
        if some and sum(array.nbytes for _, array in some) + each[1].nbytes > SAMPLED_BYTES:
            yield some
            some = []
        some.append(each)
    yield some


def _sample(array: mx.array) -> mx.array:
    flat = array.reshape(-1)
    sample = flat[:: max(flat.size // SAMPLES, 1)][: SAMPLES + 1]
    return sample.view(mx.uint16) if sample.dtype == mx.bfloat16 else sample


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
