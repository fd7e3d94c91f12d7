"""`generate` and a chat as users run them, with their threads and files, on the TWELVE families.

`test_product` checks what their caches compute.
"""

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths
from mlxchat.app import chat as app_chat
from mlxchat.app.begin import begin
from mlxchat.request import ChatOptions, Overnight, Request, Setup
from mlxchat.settings import GenerationSettings
from scripts.families import listed_verdicts, write_family
from tests.in_process import run_in_process, run_quietly
from tests.product import TWELVE

SHORT = GenerationSettings(max_tokens=4)
WITHOUT_A_WINDOW = "gpt2"
WITHOUT_A_CACHE_THAT_GROWS = "rwkv7"

# One of each in `make test`: with a window, with a recurrent state too, and with only that.
SAMPLE = {"llama", "falcon_h1", WITHOUT_A_WINDOW, WITHOUT_A_CACHE_THAT_GROWS}

each_family = pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[] if family in SAMPLE else pytest.mark.slow) for family in TWELVE],
)


def setup_of(family: str, directory: Path, window: int, **options: Any) -> Setup:
    """Settings for a new tiny model of the family, and a window if it can have one."""
    model = write_family(directory / "model", family, TWELVE[family])
    tokens = None if family == WITHOUT_A_WINDOW else window
    return Setup(str(model), offline=True, dtype="stored", window=tokens, **options)


# Generate

PROMPT = "All work and no play makes Jack a dull boy. " * 3
WINDOW = 48


@each_family
def test_generate_keeps_its_window_and_resumes_after_a_kill(family: str, tmp_path: Path) -> None:
    """Resumed from what a kill would have left, it writes the same bytes as an undisturbed run.

    Recurrent layers evict nothing, but the program used to claim they did.
    """
    setup = setup_of(family, tmp_path, WINDOW, prefill_step_size=32, sampling={"temp": 0.7}, seed=3)
    window = [] if setup.window is None else ["--max-kv-size", str(WINDOW)]
    model = str(setup.model)
    whole = run_in_process(
        *("generate", "--raw", "-m", model, "--dtype", "stored", "--temp", "0.7", "--seed"),
        *("3", "-n", "45", "--ignore-eos", *window, "--prefill-step-size", "32", "--json", PROMPT),
    )
    assert whole.returncode == 0, whole.stderr
    done = json.loads(whole.stdout.splitlines()[-1])
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 45)
    held = {WITHOUT_A_WINDOW: len(PROMPT) + 45 - 1, WITHOUT_A_CACHE_THAT_GROWS: 0}
    assert done["kv_tokens"] == held.get(family, WINDOW)
    evicted = 0 if family in held else len(PROMPT) + 45 - 1 - WINDOW
    assert done["evicted_tokens"] == evicted
    assert ("are evicted" in whole.stderr) == (evicted > 0)
    grow = listed_verdicts()[family].positions.startswith("keep growing")
    assert ("positions cannot be shifted" in whole.stderr) == grow

    night, killed = tmp_path / "night", tmp_path / "killed"
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
    resumed = run_in_process("generate", "--resume", str(night))
    assert resumed.returncode == 0, resumed.stderr
    assert (night / "output.txt").read_bytes() == done["text"].encode()


def test_learned_positions_are_refused_a_window_and_end_with_their_table(tmp_path: Path) -> None:
    """GPT-2 used to read past the end of its position table, and produced nonsense."""
    model = write_family(tmp_path / "model", "gpt2", "float16", n_positions=64, n_ctx=64)
    generate = ["generate", "--raw", "-m", str(model), "--ignore-eos", "--json"]

    ended = run_in_process(*generate, "-n", "-1", "x" * 50)
    assert "memory grows with the text" in ended.stderr
    done = json.loads(ended.stdout.splitlines()[-1])
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 14)

    too_long = run_in_process(*generate, "x" * 64)
    assert "the prompt is 64 tokens, and this model has 64 positions" in too_long.stderr
    # It is refused before its weights are read: these are unreadable.
    (model / "model.safetensors").write_bytes(b"")
    refused = run_in_process(*generate, "--max-kv-size", "32", "hello")
    assert "cannot bound a gpt2 model: it uses learned position embeddings" in refused.stderr


MESSAGES = [f"Question {n}: what did you say?" for n in range(4)]

# The reply's last token, the tokens between the turns, and the message.
NEW_TOKENS = 1 + len("\nuser\n\nassistant\n") + 4 + len(MESSAGES[-1])


def say(chat: app_chat.Chat, text: str) -> str:
    list(chat.say(text))
    return chat.conversation.turns[-1].reply


def test_a_state_of_mlx_lms_own_form_is_read_again(tmp_path: Path) -> None:
    """It was left out of what was saved: a resumed chat knew nothing. A batch was a traceback."""
    model = str(write_family(tmp_path / "model", "deepseek_v41", "float32"))
    setup = Setup(model, offline=True, window=None, sampling={"temp": 0.0})
    options = ChatOptions(setup, generation=GenerationSettings(max_tokens=12))
    with app_chat.Chat.open(options, save=False) as chat:
        replies = [say(chat, message) for message in MESSAGES]
    for message, reply in zip(MESSAGES, replies, strict=True):
        with app_chat.Chat.open(options, session="mine") as chat:
            assert say(chat, message) == reply
            assert (say(chat, "More"), chat.conversation.undo().user)[1] == "More"
    how = ("-m", model, "--max-kv-size", "none", "--rows", "1")
    run_quietly("batch", *how, stdin='{"prompt":"a"}')


@pytest.mark.parametrize("undone", [1, 4])
def test_what_was_taken_back_is_in_no_file(undone: int, tmp_path: Path) -> None:
    """Its tokens stayed in the saved cache if the window had no earlier state."""
    options = ChatOptions(setup_of("llama", tmp_path, 300), generation=SHORT)
    with app_chat.Chat.open(options, session="mine") as chat:
        for message in MESSAGES:
            say(chat, message)
    tokens = chat.conversation.model.tokenizer.encode(MESSAGES[-1]).tobytes()

    def holding() -> list[str]:
        files = (path for path in paths.sessions_dir().rglob("*") if path.is_file())
        return [path.suffix for path in files if tokens in path.read_bytes()]

    assert holding() == [".safetensors"]
    with app_chat.Chat.open(options, session="mine") as chat:
        for _ in range(undone):
            chat.conversation.undo()
    assert holding() == []


@each_family
def test_a_chat_forgets_retries_and_is_continued(family: str, tmp_path: Path) -> None:
    """The likeliest reply stays the same after a retry and after resuming the session.

    It is requested twice, and the window wraps in between: once before the chat ends, where it is
    taken back, and once after it is continued.
    """
    setup = setup_of(family, tmp_path, 200, sampling={"temp": 0.0})
    # In half precision, a draft's rounding may decide between two tokens of tiny random models.
    options = ChatOptions(setup, generation=GenerationSettings(max_tokens=12, lookup=False))
    with app_chat.Chat.open(options, session="mine") as chat:
        *_, before = [say(chat, message) for message in MESSAGES[:-1]]
        conversation = chat.conversation
        assert conversation.turns[0].forgotten == (family != WITHOUT_A_WINDOW)
        list(chat.retry())
        assert conversation.turns[-1].reply == before
        reply = say(chat, MESSAGES[-1])
        conversation.undo()
    with app_chat.Chat.open(options, session="mine") as chat:
        assert say(chat, MESSAGES[-1]) == reply
        stats = chat.conversation.stats
        assert stats is not None
        assert stats.prompt_tokens - stats.cached_tokens <= NEW_TOKENS < stats.prompt_tokens
