"""A saved chat from Python: saved before it is shown, resumed exactly; its options and sampling."""

import errno
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from mlxchat import paths
from mlxchat.app import opening
from mlxchat.app.chat import GREEDY_BY_MAKERS, Chat
from mlxchat.app.prompt import BEFORE_SCHEMA
from mlxchat.app.session import resumed
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import NOTE_BEGINS, Forgot, Turn
from mlxchat.errors import ModelNotFound, SessionError, UsageError, WindowTooSmall
from mlxchat.models.load import load_directory
from mlxchat.models.recommended import GENERAL, chat_sampling
from mlxchat.request import ChatOptions, Setup
from mlxchat.sessions.database import Database
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.store import tensor_file
from mlxchat.store.snapshot import Background
from scripts.tiny_model import write_tiny_model
from tests.in_process import run_in_process
from tests.killed import kill
from tests.scripted_model import Scripted

Options = Callable[..., ChatOptions]


@pytest.fixture
def options(tiny_model: Path) -> Options:
    """Options of a chat with a tiny model; more can be given."""

    def make(*, window: int = 320, **others: Any) -> ChatOptions:
        setup = Setup(str(tiny_model), window=window, prefill_step_size=64, seed=7)
        generation = GenerationSettings(max_tokens=6, ignore_eos=True)
        return ChatOptions(**{"setup": setup, "generation": generation, **others})

    return make


def say(chat: Chat, *texts: str) -> list[str]:
    return ["".join(said.text for said in chat.say(text)) for text in texts]


def saved(name: str) -> list[tuple[str, str]]:
    return [(turn.user, turn.reply) for turn in read_session(name).turns]


def test_a_reply_read_no_further_ends_before_anything_else_changes(options: Options) -> None:
    """It ended later, and put back its own conversation: over another session, too."""
    with Chat.open(options(), session="other") as chat:
        other = say(chat, "One", "Two")
    with Chat.open(options(), session="own") as chat:
        held = [chat.say(text) for text in ("never read", "Hi")]
        next(held[-1])
        chat.remember("Answer in German.")
        held.append(chat.say("Next"))
        next(held[-1])
        chat.conversation.set_system("Be brief.")
        state = chat.conversation.state
        assert (state.system, state.remembered) == ("Be brief.", ("Answer in German.",))
        chat.change_session("other")
        assert not [each for reply in held for each in reply]
        assert [turn.user for turn in read_session("own").turns] == ["Hi", "Next"]
    del held
    assert saved("other") == list(zip(("One", "Two"), other, strict=True))
    Session.open("other").close()


def test_a_line_that_replaces_a_prompt_has_room(options: Options, tmp_path: Path) -> None:
    """The template's own. It had none, and once a shorter one had replaced the prompt, it had."""
    template = tmp_path / "own.jinja"
    own = "{{ '' if messages[0].role == 'system' else 'Be kind. ' * 19 }}"
    template.write_text(f"{own}{{% for each in messages %}}{{{{ each.content }}}}{{% endfor %}}")
    setup = replace(options().setup, chat_template=template)
    with Chat.open(options(setup=setup), save=False) as chat:
        chat.remember("I am Bo.")
        assert chat.conversation.state.remembered == ("I am Bo.",)


def test_a_cache_that_cannot_be_saved_is_reported_once(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of another rank or of the device was reported every time, and its end never."""
    full = OSError(errno.ENOSPC, "No space left on device")
    write = Mock(side_effect=[full, full, DEFAULT, full, *[DEFAULT] * 9], return_value=1)
    monkeypatch.setattr(tensor_file, "write", write)
    monkeypatch.setattr("mlxchat.app.session.SNAPSHOT_EVERY", 1)
    # Otherwise a snapshot is skipped while the previous one is being written.
    monkeypatch.setattr(Background, "run", Background._do)
    with Chat.open(options(), session="mine") as chat:
        for number in range(6):
            say(chat, str(number))
    failed = "cannot save the cache: No space left on device"
    over = "the cache is saved again"
    assert chat.notices == [failed, over, failed, over]
    broken = Mock(side_effect=RuntimeError("[METAL] Insufficient Memory"))
    monkeypatch.setattr("mlxchat.app.session.ModelPrint", broken)
    with Chat.open(options(), session="other") as chat:
        say(chat, "a")
    assert [notice[:36] for notice in chat.notices] == ["cannot save the cache: out of memory"]


def test_a_resumed_chat_that_takes_a_turn_back_keeps_the_cache_of_the_others(options: Options):
    with Chat.open(options(), session="mine") as chat:
        say(chat, "one", "two")
    with Chat.open(options(), session="mine") as chat:
        chat.conversation.undo()
        held = len(chat.conversation.ledger)
    with Chat.open(options(), session="mine") as chat:
        assert 0 < len(chat.conversation.ledger) < held


def test_a_turn_counts_as_the_reply_it_has_after_a_retry_without_one_and_a_kill(options: Options):

    def is_counted(now: Conversation) -> bool:
        return now.tokens == now.window.pinned + now.rendering.tokens_of(now.state, *now.turns)

    for action in (Chat.retry, Chat.continue_reply):
        with Chat.open(options(), session="mine") as chat:
            say(chat, "zero", "one")
        chat = Chat.open(options(generation=GenerationSettings(max_tokens=3)), session="mine")
        chat.begin()
        list(action(chat))
        if action is Chat.retry:
            list(chat.retry(Watch(should_stop=lambda: True)))
            assert is_counted(chat.conversation)
        assert chat.session is not None
        kill(chat.session)
        with Chat.open(options(), session="mine") as chat:
            assert is_counted(chat.conversation)
            chat.conversation.undo()
            assert is_counted(chat.conversation)


def test_what_was_cleared_is_not_forgotten_again(options: Options) -> None:
    with Chat.open(options(), session="mine") as chat:
        say(chat, *"abcdefgh")
        chat.conversation.clear()
    with Chat.open(options(), session="mine") as chat:
        assert not [said for said in chat.say("i") if isinstance(said, Forgot)]
    with Chat.open(options(), session="mine") as chat:
        assert chat.conversation.state.cleared == 8
        chat.conversation.undo()
        chat.conversation.remember("Be brief.")
    with Chat.open(options(), session="mine") as chat:
        chat.begin()
    assert not chat.notices, "with nothing in view, no cache is missed"


def test_a_message_kept_while_the_model_loads_stays_if_it_is_loaded_after_that(options: Options):
    with Chat.open(options(), session="mine") as chat:
        chat.keep(Turn("one"))
        chat.begin()
    assert saved("mine") == [("one", "")]


def test_the_message_and_each_token_are_saved_before_they_are_yielded(options: Options) -> None:
    """As after a kill, an unfinished reply counts, but the old reply stays until there is another:
    a chat that was killed while it read the message again had lost the reply to it."""
    with Chat.open(options(), session="mine") as chat:
        shown = ""
        for answer in (lambda: chat.say("one"), chat.retry):
            reply = answer()
            assert saved("mine") == [("one", shown)]
            shown = ""
            for said in reply:
                shown += said.text
                assert saved("mine") == [("one", shown.encode("utf-8", "replace").decode())]
    assert saved("mine") == [("one", shown)]
    # Resumed, too.
    with Chat.open(options(), session="mine") as chat:
        for _ in chat.continue_reply():
            assert saved("mine") == [("one", chat.conversation.turns[-1].reply)]
    chat = Chat.open(options(), session="mine")
    next(reply := chat.continue_reply())
    assert chat.session is not None
    kill(chat.session)
    with Chat.open(options(), session="mine") as chat:
        chat.begin()
        assert not [*paths.sessions_dir().glob("*.reply")], "it is in the database, and is found"


def test_chosen_settings_override_those_of_the_session(options: Options, tiny_model: Path) -> None:
    with Chat.open(options(recalls=1, template_args={"mood": "calm"}), session="mine") as chat:
        say(chat, "hello")

    def reopened(**others: Any) -> tuple[Any, ...]:
        with Chat.open(ChatOptions(**others), session="mine") as chat:
            now = chat.conversation
            return now.settings.max_kv_size, now.recalls, dict(now.rendering.template_args)

    assert reopened() == (320, 1, {"mood": "calm"})
    assert reopened(recalls=0) == (320, 0, {"mood": "calm"})
    # Chosen settings are saved with the session.
    assert reopened() == (320, 0, {"mood": "calm"})
    assert reopened(setup=Setup(window=400), template_args={"a": 1}) == (400, 0, {"a": 1})
    # The command line can tell that a default was typed.
    assert reopened(recalls=2, chosen=frozenset({"recalls"})) == (400, 2, {"a": 1})


def test_a_sessions_adapter_is_for_its_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session.open("mine", create=True) as session:
        session.record(None, [Turn("hello")])
        session.settings({"model": "one", "adapter": "lora"})
    with Session.open("mine") as session:
        setups = [resumed(ChatOptions(Setup(name)), session).setup for name in (None, "two")]
        session.settings({"adapter": None})
    assert [(each.model, each.adapter) for each in setups] == [("one", "lora"), ("two", None)]
    with pytest.raises(ModelNotFound, match=r"-m MODEL continues session 'mine' with another$"):
        Chat.open(session="mine")
    monkeypatch.setenv("MLXCHAT_MODEL", "/none")
    with pytest.raises(ModelNotFound, match=r"^/none does not exist \(model from MLXCHAT_MODEL\)$"):
        Chat.open(session="new")


def test_settings_stay_when_the_model_changes(options: Options, tmp_path: Path) -> None:
    """After `/model`, the command line's options applied again."""
    other = write_tiny_model(tmp_path / "m", generation_config={"temperature": 0.3, "top_p": 0.7})
    with Chat.open(options(), session="mine") as chat:
        say(chat, "hello")
        chat.set(temp=0.5, top_k=3, seed=11, max_tokens=2, recalls=1, template_args={"a": 1})
        now = chat.conversation
        now.render_with(now.rendering.with_thinking(False))
        variables, model = now.rendering.variables, now.model
        chat.change_model(chat.find(str(other)))
        assert now.model is not model
        sampling = now.sampling
        assert (sampling.temp, sampling.top_k, sampling.seed) == (0.5, 3, 11)
        assert sampling.top_p == 0.7, "it was not set, and is the next model's own"
        assert (now.generation.max_tokens, now.recalls) == (2, 1)
        assert dict(now.rendering.template_args) == {"a": 1}
        assert now.rendering.variables == variables
        assert now.turns[0].ids is None
        say(chat, "again")
        with pytest.raises(ModelNotFound):
            chat.change_model(chat.find("./nothing-there"))
        say(chat, "still here")
    assert [user for user, _ in saved("mine")] == ["hello", "again", "still here"]


def test_an_invalid_option_changes_nothing(options: Options) -> None:
    with Chat.open(options(), save=False) as chat:
        conversation = chat.conversation
        before = conversation.sampling, conversation.generation, conversation.recalls
        for wrong in ({"heat": 1}, {"temp": -1.0}, {"max_tokens": 0}, {"recalls": "much"}):
            with pytest.raises(UsageError):
                chat.set(**{"top_k": 5, **wrong})
        assert (conversation.sampling, conversation.generation, conversation.recalls) == before


def test_a_chat_leaves_nothing_until_named_and_can_be_left_and_resumed(options: Options) -> None:
    """It was continued with the template's arguments of the session that was left."""
    with Chat.open(options(system=f"Go.\n{BEFORE_SCHEMA}true"), save=False) as chat:
        say(chat, "one")
        assert chat.session is None
        assert not paths.sessions_dir().exists()
        chat.save_as("old")
    with Chat.open(options(window=900, recalls=0, template_args={"a": 1})) as chat:
        say(chat, "two")
        with pytest.raises(SessionError, match="session 'old' already exists"):
            chat.save_as("old")
        chat.save_as("new")
        with pytest.raises(UsageError):
            chat.change_session("new")
        with pytest.raises(SessionError, match="no session named 'none'"):
            chat.change_session("none")
        with Session.open("big", create=True) as big:
            big.record("Be brief. " * 90, [Turn("hi", "Hello!")])
        # It was empty after that, and saved so.
        with pytest.raises(WindowTooSmall):
            chat.change_session("big")
        assert saved("big") == [("hi", "Hello!")]
        say(chat, "three")
        chat.change_session("old")
        assert [turn.user for turn in chat.conversation.turns] == ["one"]
        assert chat.conversation.state.system == "Go."
        assert dict(chat.conversation.rendering.template_args) == {}
        assert chat.conversation.recalls == ChatOptions().recalls
        chat.set(temp=0.5)
        say(chat, "four")
        # Others may open the session that was left.
        Session.open("new").close()
        begun = chat.retry()
    for act in (chat.save, lambda: next(begun), lambda: chat.say("five")):
        with pytest.raises(SessionError, match="this chat is closed"):
            act()
    assert [user for user, _ in saved("new")] == ["two", "three"]
    assert [user for user, _ in saved("old")] == ["one", "four"]
    with Chat.open(latest=True) as chat:
        assert getattr(chat.session, "name", None) == "old"
        assert chat.conversation.settings.max_kv_size != 900


def test_a_chat_that_is_not_saved_is_not_left_for_another(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turns were gone after /load, and the exit status was 0."""
    for name in ("other", "mine"):
        with Chat.open(options(), session=name) as chat:
            say(chat, f"I am {name}")

    is_full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with Chat.open(options(), session="mine") as chat:
        say(chat, "before")
        with monkeypatch.context() as patch:
            patch.setattr(Database, "write", is_full)
            say(chat, "meanwhile")
            with pytest.raises(SessionError, match=r"would be lost: .*: No space left"):
                chat.change_session("other")
        assert chat.session is not None
        assert chat.session.name == "mine"
        chat.change_session("other")
    assert [turn.user for turn in read_session("mine").turns][1:] == ["before", "meanwhile"]


def test_a_note_and_what_is_remembered_are_saved_and_resumed_to_the_bit(options: Options) -> None:
    with Chat.open(options(window=1200), session="mine") as chat:
        chat.remember("Be kind.")
    with Chat.open(options(window=1200), session="mine") as chat:
        say(chat, "My cat is Ada.", "I am Bo.", "I am at sea.")
        compacted = chat.compact()
        assert compacted is not None
        # As a kill would find it.
        read = read_session("mine")
        assert read.note == compacted.note
        assert [turn.forgotten for turn in read.turns] == [True, True, False]
    with Chat.open(options(window=1200), session="mine") as chat:
        now = chat.conversation
        assert (now.state.note, now.state.remembered) == (compacted.note, ("Be kind.",))
        say(chat, "go on")
        held = now.ledger.ids.tolist()
        assert NOTE_BEGINS in now.model.tokenizer.decode(held)
    with Chat.open(options(window=1200), session="mine") as chat:
        assert chat.conversation.ledger.ids.tolist() == held
        assert chat.notices == []
        chat.remember("Be brief.")
    with Chat.open(options(window=1200), session="mine") as chat:
        chat.begin()
        assert not chat.notices, "a cache that a change made useless says nothing new"


QWEN_THINKING = {"temp": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}


@pytest.mark.parametrize(
    ("name", "model_type", "generation_config", "expected"),
    [
        # What the family's model card says.
        ("mlx-community/Qwen3-8B-4bit", "qwen3", {}, QWEN_THINKING),
        ("/models/Llama-3.2-3B-Instruct-Q4_K_M.gguf", "llama", {}, {"temp": 0.6, "top_p": 0.9}),
        # Of a type that mlx-lm runs with another family's module.
        ("mlx-community/MiniMax-M2.7-4bit", "minimax_m2", {}, {"temp": 1.0, "top_k": 40}),
        ("somebody/unheard-of", "unheard_of", {}, GENERAL),
        # What generation_config.json says.
        ("tiny", "llama", {"top_p": 0.5}, {**GENERAL, "top_p": 0.5}),
        ("tiny", "llama", {"do_sample": False, "temperature": 0.9}, {"temp": 0.0}),
        # What no option can have is left out, as are values of the wrong kind.
        ("tiny", "llama", {"temperature": -1, "top_k": -1, "top_p": 7, "min_p": True}, GENERAL),
    ],
)
def test_generation_config_overrides_what_the_familys_model_card_says(
    name: str, model_type: str, generation_config: dict[str, Any], expected: dict[str, Any]
) -> None:
    model: Any = SimpleNamespace(name=name, generation_config=generation_config)
    model.config, model.tokenizer = {"model_type": model_type}, SimpleNamespace(thinks=True)
    found = chat_sampling(model, think=True)
    assert found == expected or (not generation_config and found.items() >= expected.items())


def opened(model: Path, **sampling: Any) -> Chat:
    # A script has one token for each step.
    generation = GenerationSettings(max_tokens=600, ignore_eos=True, lookup=False)
    setup = Setup(str(model), window=320, sampling=sampling, seed=7)
    return Chat.open(ChatOptions(setup, generation=generation), save=False)


def test_a_chat_samples_unless_greedy_is_chosen(tiny_model: Path, tmp_path: Path) -> None:
    """A model without sampling values was silently greedy: typing `clear` into a first chat
    produced one sentence over and over until Ctrl-C."""
    greedy = write_tiny_model(tmp_path / "m", generation_config={"do_sample": False})
    for model, chosen, expected, notices in (
        (tiny_model, {}, GENERAL, []),
        (tiny_model, {"temp": 0.0}, {"temp": 0.0}, []),
        (greedy, {}, {"temp": 0.0}, [GREEDY_BY_MAKERS]),
        (greedy, {"temp": 0.0}, {"temp": 0.0}, []),
    ):
        with opened(model, **chosen) as chat:
            assert asdict(chat.conversation.sampling).items() >= expected.items()
            assert chat.notices == notices


def test_think_off_changes_what_is_unset(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    model = load_directory(tiny_model, "mlx-community/Qwen3-8B-4bit", dtype="auto", notify=print)
    model = replace(model, config={"model_type": "qwen3"})
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: model)
    with opened(tiny_model, top_k=3) as chat:
        assert asdict(chat.conversation.sampling).items() >= (QWEN_THINKING | {"top_k": 3}).items()
        chat.set(min_p=0.1)
        chat.think(False)
        expected = {"temp": 0.7, "top_p": 0.8, "top_k": 3, "min_p": 0.1, "seed": 7}
        assert asdict(chat.conversation.sampling).items() >= expected.items()


REPEATING = Scripted("{% for m in messages %}[{{ m.content }}]{% endfor %}", (), "Round and round.")


def test_a_looping_reply_is_cut_and_kept(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    """Nothing but Ctrl-C ended it."""
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: REPEATING.model())
    notice = "stopped: the reply repeats itself"
    with opened(tiny_model) as chat:
        text = "".join(said.text for said in chat.say("hello"))
        turn, stats = chat.conversation.turns[-1], chat.conversation.stats
        assert stats is not None
        assert (turn.reply, turn.finish_reason) == (text, "loop")
        assert (stats.finish_reason, chat.notices) == ("loop", [notice])
        assert 400 < stats.generated_tokens < 500
        # It can be continued until it repeats itself again.
        list(chat.continue_reply())
        assert len(chat.conversation.turns[-1].reply) > 800
        assert chat.notices == [notice, notice]
    assert run_in_process("chat", "-m", str(tiny_model), "-q", "hello").returncode == 3


def test_a_saved_window_says_what_it_holds_and_forgets_nothing_twice(options: Options) -> None:
    """After /undo it held less than it said; after changes of the note, it was an earlier one."""
    message = "x" * 45
    for name, notes in (("held", 1), ("earlier", 2)):
        with Chat.open(options(), session=name) as chat:
            say(chat, message, message)
            chat.conversation.pin(1)
            say(chat, *[message] * (2 + notes))
            for note in ["a", "b"][:notes]:
                chat.conversation.set_note(note, [3])
            for _ in range(notes):
                chat.conversation.take_back()
            chat.conversation.undo()
            tokens = chat.conversation.tokens
        with Chat.open(options(), session=name) as chat:
            assert chat.conversation.tokens == tokens == chat.conversation.usage().tokens
            chat.conversation.undo()
            assert not any(isinstance(said, Forgot) for said in chat.say("Hi"))
