"""Ctrl-C while a model is downloaded."""

import signal
import subprocess
import sys
import time

import pytest

from mlxchat.models.hub_cache import cached_snapshot
from tests.fake_hub import FakeHub, FakeRepo, tiny_model_files


def test_ctrl_c_ends_a_download_without_waiting_for_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library alone waits for files in progress: minutes on a slow line."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    repo = FakeRepo(tiny_model_files(payload_bytes=5_000_000))
    with FakeHub({"org/tiny": repo}, seconds_per_chunk=0.3) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        command = [sys.executable, "-m", "mlxchat", "models", "pull", "org/tiny"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while "model.safetensors" not in hub.sent_names:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        # The rest takes a minute and a half.
        ended = process.communicate(timeout=60)
    assert (process.returncode, *ended) == (-signal.SIGINT, b"", b"")
    assert cached_snapshot("org/tiny") is None
