"""Everything that differs between machines: BLAS, the backend's imports, device, memory, sleep."""

import ctypes
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from mlxchat.errors import ExitStatus, ModelUnsupported, UsageError

OPENBLAS = "libopenblas.so.0"
CGROUP = Path("/sys/fs/cgroup")
STDERR = 2
# Of file systems that other machines can mount at the same time.
NETWORK_DISKS = ("nfs", "cifs", "smb", "afp", "afs", "9p", "sshfs", "davfs", "ceph", "gluster")


class _OnFirstUse:
    """A module that is imported when one of its names is first needed, to keep `--help` fast."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import mlx.core as mx
    import psutil
else:
    mx, psutil = _OnFirstUse("mlx.core"), _OnFirstUse("psutil")


def prepare_imports() -> None:
    """Do the two things that must happen before mlx or mlx-lm is first imported.

    On Linux, use an installed OpenBLAS instead of the reference BLAS in MLX's wheel: global symbols
    loaded before mlx.core take precedence, and float32 products run about 40 times as fast.
    """
    if sys.platform == "linux" and "mlx.core" not in sys.modules:
        with suppress(OSError):
            ctypes.CDLL(OPENBLAS, ctypes.RTLD_GLOBAL)
    import_mlx_lm_lazily()


def has_fast_blas() -> bool:
    """Whether float32 matrix products use anything faster than the reference BLAS."""
    return sys.platform != "linux" or hasattr(ctypes.CDLL(None), "openblas_get_config")


def blas_name() -> str:
    """The name, for display, of the BLAS used for float32 matrix products."""
    if not has_fast_blas():
        return "reference BLAS (slow: install libopenblas0-pthread)"
    if sys.platform != "linux":
        return "Accelerate"
    get_config = ctypes.CDLL(None).openblas_get_config
    get_config.restype = ctypes.c_char_p
    return " ".join(get_config().decode().split()[:2])


@contextmanager
def blas_threads_shared(callers: int) -> Iterator[None]:
    """Divide OpenBLAS's threads among `callers` during the body, at least one for each."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "openblas_set_num_threads"):
        yield
        return
    previous = library.openblas_get_num_threads()
    library.openblas_set_num_threads(max(previous // callers, 1))
    try:
        yield
    finally:
        library.openblas_set_num_threads(previous)


class _LazyPackage(ModuleType):
    """A package whose `__init__` runs only when one of its own names is looked up."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        object.__setattr__(self, "__class__", ModuleType)
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_mlx_lm_lazily() -> None:
    """Make `mlx_lm.models.x` and `mlx_lm.tuner.x` importable without the `__init__` of those
    packages, which import transformers.

    Model definitions, samplers and caches do not need it: 0.02 s instead of about a second.
    `mlx_lm.load` and the like still work: the first such name runs the real `__init__`.
    """
    for name in ("mlx_lm", "mlx_lm.tuner"):
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            return
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _LazyPackage
        sys.modules[name] = module


def import_from_mlx_lm(module: str) -> Any:
    """Return `mlx_lm`'s `module`. Importing "utils" or "tuner.utils" takes a second, since they
    load transformers, and would lower the process's limit of open files for good."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    setrlimit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        return importlib.import_module(f"mlx_lm.{module}")
    finally:
        resource.setrlimit = setrlimit


def allow_open_files(count: int) -> None:
    """Raise the limit of open files to this, as far as the system permits: macOS sets 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def select_device(choice: str) -> None:
    """Make `auto`, `cpu` or `gpu` MLX's default device.

    Raises UsageError if a GPU is requested and MLX has none.
    """
    has_gpu = mx.is_available(mx.gpu)
    if choice == "gpu" and not has_gpu:
        raise UsageError("--device gpu: this build of MLX has no GPU; use cpu or auto")
    mx.set_default_device(mx.gpu if choice != "cpu" and has_gpu else mx.cpu)


def on_gpu() -> bool:
    return mx.default_device() == mx.gpu


def exp_is_slow() -> bool:
    """Whether a power takes less than half the time of `exp`: measured on MLX's CPU backend for
    Linux, on x86. Elsewhere, nothing was measured, and MLX's own functions are used."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and not on_gpu()


def backend_name() -> str:
    """The MLX backend of the default device: Metal, CUDA or CPU."""
    if not on_gpu():
        return "CPU"
    return "Metal" if mx.metal.is_available() else "CUDA"


def device_name() -> str:
    return str(mx.device_info().get("device_name", "unknown"))


def total_memory_bytes() -> int:
    """This machine's memory in bytes."""
    return psutil.virtual_memory().total


def free_memory_bytes() -> int:
    """Bytes available now to a model and its cache, in addition to what MLX already holds.

    The minimum of what the system can provide without swapping, what the container allows, and
    what is left of Metal's recommended working set.
    """
    limits = [obtainable_memory_bytes()]
    # A container without a limit says "max", which is no number.
    with suppress(OSError, ValueError):
        limit, used = ((CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        limits.append(int(limit) - int(used))
    recommended = recommended_working_set_bytes()
    if recommended is not None:
        limits.append(recommended - mlx_memory_bytes())
    return max(min(limits), 0)


def obtainable_memory_bytes() -> int:
    """Bytes that the system would provide on request.

    On macOS, all that is neither wired nor held by MLX: psutil's "available" leaves out file caches
    and compressible memory. MLX's buffers are wired only while a model runs, when this is not used.
    """
    memory = psutil.virtual_memory()
    if sys.platform != "darwin":
        return memory.available
    return max(memory.total - memory.wired - mlx_memory_bytes(), 0)


def mlx_memory_bytes() -> int:
    """Bytes MLX holds in this process: live arrays, and buffers cached for reuse."""
    return mx.get_active_memory() + mx.get_cache_memory()


def shortage_is_certain() -> bool:
    """Whether exceeding the free memory is certain to fail.

    macOS compresses and swaps, and mlx-lm runs models above the recommended size there, slowly, so
    a warning is enough. Elsewhere the process would be killed.
    """
    return sys.platform != "darwin"


def recommended_working_set_bytes() -> int | None:
    """Metal's recommended maximum of resident memory, in bytes; None on other backends."""
    size = mx.device_info().get("max_recommended_working_set_size") if on_gpu() else None
    return int(size) if size else None


@contextmanager
def prefill_streams() -> "Iterator[tuple[mx.Stream | mx.ThreadLocalStream, ...]]":
    """The streams to compute a prefill step on, in this thread, during the body.

    Two on Linux's CPU backend if there are two cores, which then share OpenBLAS's threads: they
    would only wait for each other in it. Else the default one: a GPU is busy with one, and ranks
    must send each other the same messages in the same order.
    """
    default = mx.default_stream(mx.default_device())
    one_core = sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2
    if one_core or on_gpu() or launched_rank() is not None:
        yield (default,)
        return
    with blas_threads_shared(2):
        yield (default, _second_cpu_stream())


@cache
def _second_cpu_stream() -> "mx.ThreadLocalStream":
    """Made once, since MLX never ends a stream's thread; each thread gets its own."""
    return mx.new_thread_local_stream(mx.cpu)


@contextmanager
def wired_limit() -> Iterator[None]:
    """Let Metal keep weights and cache resident during the body. No effect on other backends."""
    recommended = recommended_working_set_bytes()
    if recommended is None:
        yield
        return
    previous = mx.set_wired_limit(recommended)
    try:
        yield
    finally:
        synchronize()
        mx.set_wired_limit(previous)


def synchronize() -> None:
    """Wait until everything this thread has launched is computed, collectives included.

    Messages between ranks run on the CPU's stream: on a GPU, `mx.synchronize` does not wait for it.
    """
    mx.synchronize()
    mx.synchronize(mx.default_stream(mx.cpu))


def occupy_standard_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if started with any of them closed.

    Otherwise the next file opened would take its number, and be mistaken for it by libraries; nor
    can MLX read a file with such a number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def exit_now(status: int) -> NoReturn:
    """Exit without the interpreter's shutdown. Main thread only."""
    if status == ExitStatus.INTERRUPTED and launched_rank() is None:
        # A shell ends its loop or script if this process has died of Ctrl-C, not by its status.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def launched_rank() -> int | None:
    """This process's rank if started by MLX's launcher or mpirun, None if started alone."""
    # The launcher makes no ring for a single process; what cannot be read, MLX reports.
    with suppress(OSError, KeyError):
        if not Path(os.environ["MLX_HOSTFILE"]).read_bytes().strip():
            return None
    ranks = [os.environ.get(name, "") for name in ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")]
    return next((int(rank) for rank in ranks if rank.isdecimal()), None)


def open_connections() -> list[tuple[int, int, int]]:
    """This process's TCP connections: the descriptor, its port and the other end's."""
    found = psutil.Process().net_connections("tcp")
    return [(each.fd, each.laddr.port, each.raddr.port) for each in found if each.raddr]


def stdin_stays_open() -> bool:
    """Whether stdin is the pipe of MLX's launcher, which forwards input but not its end."""
    return "MLX_RANK" in os.environ and not os.isatty(0)


def require_supported_system() -> None:
    """Raise ModelUnsupported, saying how to install MLX, if it cannot be imported."""
    try:
        import mlx.core  # noqa: F401  (importing it is the test)
    except ImportError as error:
        raise ModelUnsupported(
            f"cannot load MLX on this machine ({error}); on Linux, install 'mlx[cpu]'"
        ) from error


def on_network_disk(path: Path) -> bool:
    """Whether the file is on another machine's disk. False if the system does not say."""
    parents = [str(each) for each in path.resolve().parents]
    mounted = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    kind = next((mounted[each] for each in parents if each in mounted), "")
    return any(network in kind.lower() for network in NETWORK_DISKS)


@contextmanager
def keep_awake(system: str = sys.platform) -> Iterator[None]:
    """While the body runs, keep a Mac from idle sleep; do nothing on other systems.

    The display may sleep, and a closed lid still puts a laptop to sleep.
    """
    import shutil
    import subprocess

    program = shutil.which("caffeinate") if system == "darwin" else None
    if program is None:
        yield
        return
    # It ends with this process, even if that is killed. In a session of its own, since the
    # terminal's Ctrl-C asks for a graceful end, which may take a while.
    caffeinate = subprocess.Popen([program, "-i", "-w", str(os.getpid())], start_new_session=True)
    try:
        yield
    finally:
        caffeinate.kill()
        caffeinate.wait()
