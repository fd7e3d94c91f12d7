"""Tiny models, a byte tokenizer and a temporary home: no download, no network, no real settings."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The models are tiny, and several tests run at once: a second thread would only wait for a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import pytest
from hypothesis import settings
from mlx import nn

from mlxchat import paths
from mlxchat.models.skeleton import build_skeleton
from scripts import metal
from scripts.tiny_model import byte_tokenizer, tiny_config, write_tiny_model

# Readline exports the size of the surrounding terminal, which is not that of the tests' terminals.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# In the background or under `nohup`, the program would inherit ignored signals, and ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def build_random_model(config: dict[str, Any] | None = None, seed: int = 0) -> nn.Module:
    """A model with random weights, with tiny_config unless another one is given."""
    mx.random.seed(seed)
    model = build_skeleton(config or tiny_config())
    mx.eval(model.parameters())
    model.eval()
    return model


# Numbers of examples for `make test`, which are the same ones each time, and for `make test-all`
# (`--hypothesis-profile=thorough`). No assertion on time: machines are shared.
QUICK, THOROUGH = 25, 400
settings.register_profile("default", max_examples=QUICK, derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=THOROUGH, deadline=None)
settings.load_profile("default")  # Hypothesis itself chooses another one where CI is set.


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay in memory: keep the garbage collector off them."""
    gc.collect()
    gc.freeze()


def examples(few: int) -> int:
    """A number of examples other than Hypothesis's own; four times as many in `make test-all`."""
    return few if settings().max_examples == QUICK else 4 * few


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def unthinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without thoughts: a random one that thinks may end within a thought."""
    from tests.scripted_model import without_think_tokens

    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "unthinking")
    without_think_tokens(byte_tokenizer()).save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(autouse=True)
def the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats sample by default: in process, all draw the same tokens in each run of the tests."""
    monkeypatch.setattr("mlxchat.settings.os", SimpleNamespace(urandom=bytes))


@pytest.fixture(autouse=True)
def temp_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests away from the developer's settings and caches."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("MLXCHAT_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for kind in ("config", "cache", "data", "state"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(home / kind))
    monkeypatch.setenv("HF_HOME", str(home / "huggingface"))
    return home


@pytest.fixture
def sessions() -> Path:
    """The directory of sessions, which does not exist yet."""
    directory = paths.sessions_dir()
    directory.parent.mkdir(parents=True)
    return directory


@pytest.fixture
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with cursor movement and colours, and without a desktop around it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    desktop = ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY", "TMUX")
    for name in ("NO_COLOR", "VISUAL", "EDITOR", *desktop):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def as_on_metal() -> Iterator[None]:
    """Like a GPU, which takes a negative offset for a huge one."""
    with metal.imitated():
        yield


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What a job may wait for that does not end before the test."""
    event = threading.Event()
    yield event
    event.set()
