"""The scripts for the manual's figures, on a tiny model, in their quickest form."""

import json
import sys
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from xml.etree import ElementTree

import mlx.core as mx
import numpy as np
import pytest

from mlxchat import paths
from mlxchat.cache.build import make_cache
from mlxchat.models.load import load
from scripts.bench import plot
from scripts.bench.common import losses


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(topics.values())[:20_000])
    return path


@pytest.fixture
def figures(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs a script and returns its figures."""

    def run(name: str, *arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--quick", "-m", str(tiny_model)])
        # One fills a database of its own.
        monkeypatch.setattr(paths, "sessions_dir", paths.sessions_dir)
        import_module(f"scripts.bench.{name}").main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_losses_within_the_window_are_those_of_plain_attention(tiny_model: Path) -> None:
    network, ids = load(str(tiny_model)).network, np.arange(100) % 50
    found = list(losses(network, make_cache(network, 100, 4), ids, step_size=7))
    logits = np.array(network(mx.array(ids)[None])[0]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, [-logprobs[n, ids[n + 1]] for n in range(99)], rtol=1e-4)


def test_a_chat_and_a_long_text_are_drawn(
    figures: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chat overflows the window; "everything" reads all turns and the replies in full."""
    turns, parts = figures("chat"), figures("stream", str(text))
    shifted = [each for each in turns if each["way"] == "shift"]
    assert shifted[-1]["forgotten_turns"] > 0
    for read in (each for each in turns if each["way"] == "everything"):
        own = sum(each["own_tokens"] for each in shifted[: read["turn"]])
        assert read["prefilled_tokens"] == own + (read["turn"] - 1) * 8
    (tmp_path / "figures.jsonl").write_text("\n".join(map(json.dumps, [*turns, *parts])))
    monkeypatch.setattr(sys, "argv", ["plot", str(tmp_path / "figures.jsonl"), str(tmp_path)])
    plot.main()
    tags = {path.stem: ElementTree.parse(path).getroot().tag for path in tmp_path.glob("*.svg")}
    assert tags == dict.fromkeys(("stream", "stream-recomputed"), "{http://www.w3.org/2000/svg}svg")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        *("blocks TEXT", "prefix TEXT", "positions TEXT", "memory", "loops", "dry"),
        *("documents", "recall answers", "recall search", "remember"),
        *("soak", "sessions", "workloads"),
    ],
)
def test_every_other_script_writes_figures(figures: Any, text: Path, arguments: str) -> None:
    found = figures(*arguments.replace("TEXT", str(text)).split())
    assert {each["bench"] for each in found} == {arguments.split(maxsplit=1)[0]}
    # With drafts, without, and mlx-lm's.
    assert all(each["same_tokens"] == each["tokens"] for each in found if "same_tokens" in each)
