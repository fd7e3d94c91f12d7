"""Run several ranks on this machine, over loopback; none outlives its test."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            first = any_port.getsockname()[1]
        if first + count < 65536 and all(_is_free(first + n) for n in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as one, suppress(OSError):
        one.bind(("127.0.0.1", port))
        return True
    return False


class Process:
    """A program whose output is read as it arrives; killed along with its children."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command,
            # A pipe that never ends, like the launcher's.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        self._written = {"out": b"", "err": b""}
        self._came = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.popen.stdout), ("err", self.popen.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: "subprocess.IO[bytes]") -> None:  # type: ignore[name-defined]
        while data := os.read(stream.fileno(), 65536):
            with self._came:
                self._written[name] += data
                self._came.notify_all()

    @property
    def out(self) -> str:
        return self._written["out"].decode()

    @property
    def err(self) -> str:
        return self._written["err"].decode()

    def writes(self, size: int, timeout: float = 100) -> None:
        """Wait until it has written `size` bytes."""
        with self._came:
            assert self._came.wait_for(lambda: len(self._written["out"]) >= size, timeout), self.err

    def reads(self, line: str, *, is_last: bool = False) -> None:
        """Send it a line of input."""
        stdin = self.popen.stdin
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()
        if is_last:
            stdin.close()

    def ends(self, timeout: float = 300) -> int:
        """Wait for it to end; return its exit status."""
        status = self.popen.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return status

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def launched(ranks: int, *arguments: str) -> Iterator[Process]:
    """`mlx.launch -n RANKS -- mlxchat ARGUMENTS`."""
    launcher = [str(Path(sys.executable).with_name("mlx.launch")), "-n", str(ranks)]
    port = ["--backend", "ring", "--starting-port", str(free_ports(ranks)), "--"]
    process = Process([*launcher, *port, sys.executable, "-m", "mlxchat", *arguments], {})
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def ring(ranks: int, command: Sequence[str], directory: Path) -> Iterator[list[Process]]:
    """Run the command on `ranks` ranks, one process each, as the launcher would."""
    port = free_ports(ranks)
    hostfile = directory / "hosts.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port + n}"] for n in range(ranks)]))
    processes: list[Process] = []
    try:
        for rank in range(ranks):
            environment = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)}
            processes.append(Process(command, environment))
        yield processes
    finally:
        for process in processes:
            process.kill()


def together(
    directory: Path, *arguments: str, ranks: int = 2, stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `mlxchat ARGUMENTS` on all ranks to its end, of which only rank 0 is heard. `stdin` is a
    line of input, and then its end."""
    with ring(ranks, [sys.executable, "-m", "mlxchat", *arguments], directory) as processes:
        if stdin is not None:
            processes[0].reads(stdin, is_last=True)
        statuses = [process.ends(250) for process in processes]
        assert statuses[1:] == [0] * (ranks - 1), processes[0].err
        assert [each.out + each.err for each in processes[1:]] == [""] * (ranks - 1)
        first = processes[0]
        return subprocess.CompletedProcess(arguments, statuses[0], first.out, first.err)
