"""The meaning of a model's name, the default model, and when the network is used."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mlxchat import paths, platform
from mlxchat.errors import HubError, ModelError, ModelNotFound
from mlxchat.models import gguf, hub
from mlxchat.models.catalog import HUB_ALIASES, RECOMMENDED, recommended_that_fit
from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir
from mlxchat.models.resolve import ResolvedModel, locate, resolve_model
from mlxchat.units import format_bytes
from tests.fake_hub import put_in_cache, tiny_model_files
from tests.in_process import write_config

SMALLEST, LARGER = RECOMMENDED[0].hub_id, RECOMMENDED[1].hub_id


class Scene:
    """A machine with a simulated hub and embedded model: records downloads, questions, notices."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloaded: list[str] = []
        self.questions: list[str] = []
        self.told: list[str] = []
        self.embedded: Path | None = tmp_path / "embedded.gguf"
        self.converted = tmp_path / "converted"
        monkeypatch.setattr(
            hub, "download", lambda repo_id, **_: self.downloaded.append(repo_id) or tmp_path
        )
        monkeypatch.setattr(hub, "_library", None)  # slow to import
        monkeypatch.setattr(hub, "check_exists", lambda _: 0)
        monkeypatch.setattr(gguf, "embedded_gguf", lambda: self.embedded)
        monkeypatch.setattr(gguf, "import_gguf", lambda *_: self.converted)
        monkeypatch.setattr(platform, "on_gpu", lambda: True)
        free_bytes = 2 * RECOMMENDED[1].memory_bytes(float32=False)
        monkeypatch.setattr(platform, "free_memory_bytes", lambda: free_bytes)

    def resolve(self, name: str | None = None, **options: Any) -> ResolvedModel:
        options = {"offline": False, "ask": None} | options
        return resolve_model(name, notify=self.told.append, show_progress=False, **options)

    def answer(self, answer: bool) -> Callable[[str], bool]:
        return lambda question: self.questions.append(question) or answer


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path, monkeypatch)


def make_model_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").touch()
    return path


# Names


def test_a_name_is_tried_as_each_kind_in_turn(scene: Scene, tmp_path: Path):
    """Links to directories keep their names, and paths are made absolute."""
    directory, other = make_model_dir(tmp_path / "mine"), make_model_dir(tmp_path / "other")
    (tmp_path / "linked").symlink_to(directory)
    (tmp_path / "SOME.GGUF").touch()
    converted = make_model_dir(paths.imported_models_dir() / "some-0123456789ab")
    for name in ("qwen3-4b", "org/tiny"):
        make_model_dir(tmp_path / name)
    for name, found in {
        "mine": (str(directory), directory),
        str(directory): (str(directory), directory),
        "linked": (str(tmp_path / "linked"), tmp_path / "linked"),
        "./linked/../mine": (str(directory), directory),
        "SOME.GGUF": (str(tmp_path / "SOME.GGUF"), scene.converted),
        "SmolLM2-135M": ("smollm2", scene.converted),
        "Some-0123456789AB": ("some-0123456789ab", converted),
        # Directories override built-in aliases and the Hub.
        "qwen3-4b": (str(tmp_path / "qwen3-4b"), tmp_path / "qwen3-4b"),
        "org/tiny": (str(tmp_path / "org" / "tiny"), tmp_path / "org" / "tiny"),
    }.items():
        assert scene.resolve(name) == ResolvedModel(*found)
    # And a user's alias overrides all of them.
    write_config(f'[aliases]\nMine = "{other}"\n')
    assert scene.resolve("mine").directory == other
    assert scene.downloaded == []


def test_a_hub_id_is_downloaded_without_asking_unless_it_is_cached(scene: Scene):
    scene.resolve("org/tiny", ask=scene.answer(False))
    assert (scene.downloaded, scene.questions) == (["org/tiny"], [])
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files())
    assert scene.resolve("Org/TINY") == ResolvedModel("org/tiny", snapshot)
    assert scene.resolve("org/tiny", offline=True).directory == snapshot
    scene.resolve("Qwen3-4B")
    assert scene.downloaded == ["org/tiny", HUB_ALIASES["qwen3-4b"]]


def test_offline_forbids_a_download(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    for offline in (True, False):
        with pytest.raises(HubError) as caught:
            scene.resolve("org/tiny", offline=offline)
        assert str(caught.value) == (
            "org/tiny is not downloaded, and the network is off: run `mlxchat models pull "
            "org/tiny` once"
        )
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert scene.downloaded == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("org/gone.gguf", "org/gone.gguf does not exist"),
        ("smolm2", "no model named 'smolm2'; did you mean smollm2?"),
        ("org/empty", "org/empty has no config.json, so it is not a model directory"),
        ("ggufs", "ggufs contains GGUF files: name the file itself, ggufs/a.gguf"),
        ("notes.txt", "notes.txt is not a .gguf file: give one, or the model's directory"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(scene: Scene, tmp_path: Path, name: str, line: str):
    (tmp_path / "org" / "empty").mkdir(parents=True)
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "a.gguf").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError) as caught:
        scene.resolve(name)
    assert str(caught.value) == line
    assert scene.downloaded == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "--help", "a//b", "ü/ü", "a/b\n"])
def test_any_strange_name_is_refused_clearly(name: str):
    with pytest.raises(ModelNotFound):
        locate(name, {})


# The default model


def test_the_flag_comes_first_then_the_variable_then_the_file(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("flag", "variable", "file"):
        make_model_dir(tmp_path / name)
    write_config('model = "./file"\n')
    monkeypatch.setenv("MLXCHAT_MODEL", "./variable")
    assert scene.resolve("./flag").directory.name == "flag"
    assert scene.resolve().directory.name == "variable"
    monkeypatch.setenv("MLXCHAT_MODEL", "")
    assert scene.resolve().directory.name == "file"
    # An error says where a name comes from that the user has not typed.
    monkeypatch.setenv("MLXCHAT_MODEL", "smolm2")
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2.*model from MLXCHAT_MODEL"):
        scene.resolve()


def test_the_best_recommended_model_in_the_cache_or_to_download_is_used(scene: Scene):
    """The one in the cache rather than a larger one on the Hub; else the largest that fits."""
    size = format_bytes(RECOMMENDED[1].download_bytes)
    assert scene.resolve(ask=scene.answer(True)).name == LARGER
    (question,) = scene.questions
    assert question == f"No model chosen. Download {LARGER}, {size}, which fits this machine?"
    assert scene.downloaded == [LARGER]
    snapshot = put_in_cache(hub_cache_dir(), SMALLEST, tiny_model_files())
    assert scene.resolve(ask=scene.answer(True)) == ResolvedModel(SMALLEST, snapshot)
    assert (len(scene.questions), scene.downloaded) == (1, [LARGER])


def test_without_a_confirmed_download_the_embedded_model_is_used(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cat report.txt | mlxchat "Summarize"` downloaded gigabytes: stdin was no terminal."""
    embedded = ResolvedModel("smollm2", scene.converted)
    assert scene.resolve(ask=None) == embedded
    assert scene.resolve(offline=True, ask=scene.answer(True)) == embedded
    assert scene.resolve(ask=scene.answer(False)) == embedded
    assert len(scene.questions) == 1
    # Once a day.
    os.utime(paths.history_file().with_name("embedded-model"), (0, 0))
    monkeypatch.setattr(hub, "check_exists", Mock(side_effect=HubError("no network")))
    assert scene.resolve(ask=scene.answer(True)) == embedded
    assert len(scene.questions) == 1
    first, second = scene.told
    assert first.startswith("using the small embedded model smollm2; run `mlxchat config set ")
    assert second == f"the Hub cannot be reached: {first}"
    scene.embedded = None
    with pytest.raises(ModelNotFound, match=f"run `mlxchat models pull {RECOMMENDED[1].alias}`"):
        scene.resolve(ask=None)
    assert scene.downloaded == []


def test_half_of_the_free_memory_is_left_to_others():
    model = RECOMMENDED[0]
    need_bytes = model.memory_bytes(float32=False)
    assert recommended_that_fit(2 * need_bytes, float32=False) == [model]
    assert recommended_that_fit(2 * need_bytes - 1, float32=False) == []
    # In float32, as on a CPU, weights and cache take more.
    cache_bytes = need_bytes - model.download_bytes
    assert model.memory_bytes(float32=True) == 4 * model.parameters + 2 * cache_bytes


# Complete snapshots


@pytest.mark.parametrize("missing", [*tiny_model_files()])
def test_a_snapshot_is_complete_with_all_listed_files_that_a_model_needs(missing: str):
    """Without a list, as from older versions of the library, with a configuration and weights."""
    files = tiny_model_files()
    whole = files.pop(missing)
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", files)
    needless = missing in ("README.md", "modeling.py")
    is_complete = missing not in ("config.json", "model.safetensors")
    assert (cached_snapshot("org/tiny") == snapshot) is is_complete
    tree = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps({"format_version": 1, "files": dict.fromkeys(tiny_model_files())}))
    assert (cached_snapshot("org/tiny") == snapshot) is needless
    (snapshot / missing).write_bytes(whole)
    assert cached_snapshot("org/tiny") == snapshot
