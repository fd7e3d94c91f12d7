"""The program, through each way in, with different kinds of families and in each form of weights.

`test_families` and others test what their caches compute. These tests run `generate` and a chat as
users do, with their threads, their files and, for one kind unless all tests run, the terminal.
"""

import json
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app import chat as app_chat
from mlxchat.app.begin import begin
from mlxchat.request import ChatOptions, Overnight, Request, Setup
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import read_session
from mlxchat.settings import GenerationSettings
from scripts.families import write_family
from tests.conftest import RunMlxchat
from tests.terminal_chat import CTRL_D, Chat

# A family for each kind of layer, and the form of its stored weights.
KINDS = {
    "llama3 rope": ("llama", "bfloat16"),
    "attention sinks": ("gpt_oss", "4-bit"),
    "native sliding windows": ("gemma3_text", "bfloat16"),
    "longrope": ("phi3", "float16"),
    "latent attention": ("deepseek_v3", "8-bit"),
    "recurrent": ("rwkv7", "float32"),
    "hybrid recurrent": ("falcon_h1", "float32"),
    "mixture of experts": ("qwen3_moe", "4-bit"),
    "shared keys": ("gemma3n", "8-bit"),
    "a gain after the rope": ("hunyuan_v1_dense", "bfloat16"),
    "learned positions": ("gpt2", "float16"),
}
WITHOUT_A_WINDOW = "learned positions"
WITHOUT_A_CACHE_THAT_GROWS = "recurrent"

WriteKind = Callable[[str], Path]


@pytest.fixture(scope="session")
def write_kind(tmp_path_factory: pytest.TempPathFactory) -> WriteKind:
    """The model directory of a kind, written once."""
    written: dict[str, Path] = {}

    def write(kind: str) -> Path:
        if kind not in written:
            directory = tmp_path_factory.mktemp("kinds") / "model"
            written[kind] = write_family(directory, *KINDS[kind])
        return written[kind]

    return write


def setup_of(kind: str, model: Path, window: int, **options: Any) -> Setup:
    """Settings with the stored weights, and a window if the kind can have one."""
    tokens = None if kind == WITHOUT_A_WINDOW else window
    return Setup(str(model), offline=True, dtype="stored", window=tokens, **options)


# Generate

PROMPT = "All work and no play makes Jack a dull boy. " * 3
WINDOW = 48


@pytest.mark.parametrize("kind", KINDS)
def test_generate_keeps_its_window_and_resumes_after_a_kill(
    kind: str, write_kind: WriteKind, run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """Resumed from what a kill would have left, it writes the same bytes as an undisturbed run.

    Recurrent layers evict nothing, but the program used to claim they did.
    """
    model = write_kind(kind)
    window = [] if kind == WITHOUT_A_WINDOW else ["--max-kv-size", str(WINDOW)]
    whole = run_mlxchat(
        *("generate", "--raw", "-m", str(model), "--dtype", "stored", "--temp", "0.7", "--seed"),
        *("3", "-n", "45", "--ignore-eos", *window, "--prefill-step-size", "32", "--json", PROMPT),
    )
    assert whole.returncode == 0, whole.stderr
    done = json.loads(whole.stdout.splitlines()[-1])
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 45)
    held = {WITHOUT_A_WINDOW: len(PROMPT) + 45 - 1, WITHOUT_A_CACHE_THAT_GROWS: 0}
    assert done["kv_tokens"] == held.get(kind, WINDOW)
    evicted = 0 if kind in held else len(PROMPT) + 45 - 1 - WINDOW
    assert done["evicted_tokens"] == evicted
    assert ("are evicted" in whole.stderr) == (evicted > 0)
    assert "positions cannot be shifted" not in whole.stderr

    night, killed = tmp_path / "night", tmp_path / "killed"
    sampling = {"temp": 0.7}
    setup = setup_of(kind, model, WINDOW, prefill_step_size=32, sampling=sampling, seed=3)
    overnight = Overnight(checkpoint=night, checkpoint_every=10)
    request = Request(setup, PROMPT, overnight=overnight, max_tokens=45, raw=True, ignore_eos=True)
    with begin(request) as run:
        written = "".join(piece.text for piece in islice(run, 25))
        # Each piece is in the file before it is returned.
        assert (night / "output.txt").read_bytes() == written.encode()
        # A checkpoint may be half written at this moment.
        shutil.copytree(night, killed, ignore=shutil.ignore_patterns(".*"))
    shutil.rmtree(night)
    killed.rename(night)
    assert (night / "state.safetensors").exists()
    resumed = run_mlxchat("generate", "--resume", str(night))
    assert resumed.returncode == 0, resumed.stderr
    assert (night / "output.txt").read_bytes() == done["text"].encode()


def test_learned_positions_are_refused_a_window_and_end_with_their_table(
    run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """GPT-2 used to read past the end of its position table, and produced nonsense."""
    model = write_family(tmp_path / "model", "gpt2", "float16", n_positions=64, n_ctx=64)
    generate = ["generate", "--raw", "-m", str(model), "--ignore-eos", "--json"]

    ended = run_mlxchat(*generate, "-n", "-1", "x" * 50)
    assert ended.returncode == 0, ended.stderr
    assert "memory grows with the text" in ended.stderr
    done = json.loads(ended.stdout.splitlines()[-1])
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 14)

    too_long = run_mlxchat(*generate, "x" * 64)
    assert (too_long.returncode, too_long.stdout) == (1, "")
    assert too_long.stderr.splitlines()[-1] == (
        "mlxchat: error: the prompt is 64 tokens, and this model has 64 positions: "
        "shorten the prompt or use another model"
    )

    # It is refused before its weights are read: these are unreadable.
    (model / "model.safetensors").write_bytes(b"")
    refused = run_mlxchat(*generate, "--max-kv-size", "32", "hello")
    assert refused.returncode == 1
    assert "cannot bound a gpt2 model: it uses learned position embeddings" in refused.stderr


# Chat

MESSAGES = [f"Question {n}: what did you say?" for n in range(4)]

# The reply's last token, the tokens between the turns, and the message.
NEW_TOKENS = 1 + len("\nuser\n\nassistant\n") + 4 + len(MESSAGES[-1])


def say(chat: app_chat.Chat, text: str) -> str:
    list(chat.say(text))
    return chat.conversation.turns[-1].reply


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_forgets_retries_and_is_continued(kind: str, write_kind: WriteKind) -> None:
    """The likeliest reply stays the same after a retry and after resuming the session.

    It is requested twice, and the window wraps in between: once before the chat ends, where it is
    taken back, and once after it is continued.
    """
    setup = setup_of(kind, write_kind(kind), 200, sampling={"temp": 0.0})
    # In half precision, a draft's rounding may decide between two tokens of tiny random models.
    generation = GenerationSettings(max_tokens=12, lookup=False)
    options = ChatOptions(setup, generation=generation)
    with app_chat.Chat.open(options, session="mine") as chat:
        *_, before = [say(chat, message) for message in MESSAGES[:-1]]
        conversation = chat.conversation
        assert conversation.turns[0].forgotten == (kind != WITHOUT_A_WINDOW)
        list(chat.retry())
        assert conversation.turns[-1].reply == before
        reply = say(chat, MESSAGES[-1])
        conversation.undo()
    with app_chat.Chat.open(options, session="mine") as chat:
        assert say(chat, MESSAGES[-1]) == reply
        stats = chat.conversation.stats
        assert stats is not None
        assert stats.prompt_tokens - stats.cached_tokens <= NEW_TOKENS < stats.prompt_tokens


def last_reply() -> str:
    """The last reply of the only session."""
    (name,) = names_by_use()
    return read_session(name).turns[-1].reply


@pytest.mark.usefixtures("ordinary_terminal")
@pytest.mark.parametrize(
    "kind", ["llama3 rope", pytest.param(WITHOUT_A_WINDOW, marks=pytest.mark.slow)]
)
def test_so_does_a_chat_in_a_terminal(kind: str, write_kind: WriteKind) -> None:
    """It is named there, and shows its last turn when it is continued."""
    options = ["--dtype", "stored", "-n", "12", "--stats"]
    if kind != WITHOUT_A_WINDOW:
        options += ["--max-kv-size", "200"]
    chat = Chat(str(write_kind(kind)), *options)
    for message in MESSAGES[:-1]:
        chat.says(message)
    if kind != WITHOUT_A_WINDOW:
        chat.shows("forg.t.*memory begins after|forgot turn")
    before = last_reply()
    chat.says("/retry")
    assert last_reply() == before
    chat.says(MESSAGES[-1])
    reply = last_reply()
    chat.send("/undo\r")
    chat.shows_draft(MESSAGES[-1])
    chat.drops_draft()
    chat.says("/save voyage")
    chat.shows("^renamed this session to 'voyage'$")
    chat.send(CTRL_D)
    chat.shows("^saved; resume with: mlxchat --session voyage$")
    assert chat.ends() == 0

    continued = Chat(str(write_kind(kind)), "-c", "-n", "12", "--stats")
    continued.shows("^voyage: 3 turns.*; the last one ─")
    continued.shows(f"^> {re.escape(MESSAGES[-2])}$")
    continued.says("/sessions")
    continued.shows(f"^voyage .* 3 turns  {re.escape(MESSAGES[0])}$")
    continued.says(MESSAGES[-1])
    assert last_reply() == reply
    figures = r"prompt (\d+) tokens, (\d+) cached"
    continued.shows(rf"^turn 4 .*{figures}")
    prompt, cached = map(int, re.findall(figures, continued.text())[-1])
    assert prompt - cached <= NEW_TOKENS < prompt
    continued.send(CTRL_D)
    assert continued.ends() == 0
    assert "Traceback" not in chat.written + continued.written
