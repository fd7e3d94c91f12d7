"""A saved chat from Python: turns are saved before they are shown, and resumed exactly."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths
from mlxchat.app import opening
from mlxchat.app.chat import Chat
from mlxchat.chat.state import Recalled
from mlxchat.errors import (
    ModelNotFound,
    SessionError,
    TemplateError,
    UsageError,
)
from mlxchat.models.model import Alone
from mlxchat.request import ChatOptions, Setup
from mlxchat.sessions.database import Database
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.records import SessionRecord, insert_session
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.store.snapshot import Background, Snapshot
from scripts.families import write_family
from scripts.tiny_model import write_tiny_model

Options = Callable[..., ChatOptions]


@pytest.fixture
def options(tiny_model: Path) -> Options:
    """Options of a chat with a tiny model; more can be given."""

    def make(*, sampling: dict[str, Any] | None = None, **others: Any) -> ChatOptions:
        setup = Setup(
            str(tiny_model),
            window=320,
            prefill_step_size=64,
            sampling=sampling or {},
            seed=7,
        )
        generation = GenerationSettings(max_tokens=6, ignore_eos=True)
        return ChatOptions(**{"setup": setup, "generation": generation, **others})

    return make


def say(chat: Chat, *texts: str) -> list[str]:
    return ["".join(said.text for said in chat.say(text)) for text in texts]


def saved(name: str) -> list[tuple[str, str]]:
    return [(turn.user, turn.reply) for turn in read_session(name).turns]


def test_a_cache_that_cannot_be_saved_is_reported_once(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of another rank or of the device was reported every time, and its end never."""
    write = Snapshot.write
    full = iter([True, True, False, True])

    def fill(self: Snapshot, path: Path) -> int:
        if next(full, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, path)

    monkeypatch.setattr(Snapshot, "write", fill)
    monkeypatch.setattr("mlxchat.app.session.SNAPSHOT_EVERY", 1)
    # Otherwise a snapshot is skipped while the previous one is being written.
    monkeypatch.setattr(Background, "run", Background._do)
    with Chat.open(options(), session="mine") as chat:
        for number in range(6):
            say(chat, str(number))
    failed = "cannot save the cache: No space left on device"
    over = "the cache is saved again"
    assert chat.notices == [failed, over, failed, over]


def test_the_message_and_each_token_are_saved_before_they_are_yielded(options: Options) -> None:
    chat = Chat.open(options(), session="mine")
    shown = ""
    reply = chat.say("hello")
    for _ in range(4):
        shown += next(reply).text
        assert [user for user, _ in saved("mine")] == ["hello"]
        # As after a kill: the unfinished reply counts.
        assert saved("mine") == [("hello", shown.encode("utf-8", "replace").decode())]
    reply.close()
    assert saved("mine") == [("hello", shown)]
    chat.close()


def test_the_old_reply_is_saved_until_there_is_another(options: Options) -> None:
    """A chat that was killed while it read the message again had lost the reply to it."""
    with Chat.open(options(), session="mine") as chat:
        (old,) = say(chat, "one")
        reply = chat.retry()
        read: list[list[tuple[str, str]]] = [saved("mine")]
        text = ""
        for said in reply:
            text += said.text
            read.append(saved("mine"))
            assert read[-1] == [("one", text)]
        assert read[0] == [("one", old)]
    assert saved("mine") == [("one", text)]


def test_chosen_settings_override_those_of_the_session(options: Options, tiny_model: Path) -> None:
    first = options(recalls=1, template_args={"mood": "calm"})
    with Chat.open(first, session="mine") as chat:
        say(chat, "hello")

    def resumed(**others: Any) -> tuple[Any, ...]:
        with Chat.open(ChatOptions(**others), session="mine") as chat:
            conversation = chat.conversation
            settings = conversation.settings
            return (
                settings.max_kv_size,
                conversation.recalls,
                dict(conversation.rendering.template_args),
            )

    assert resumed() == (320, 1, {"mood": "calm"})
    assert resumed(recalls=0) == (320, 0, {"mood": "calm"})
    # Chosen settings are saved with the session.
    assert resumed() == (320, 0, {"mood": "calm"})
    setup = Setup(window=400)
    assert resumed(setup=setup, template_args={"a": 1}) == (400, 0, {"a": 1})
    # The command line can tell that a default was typed.
    assert resumed(recalls=2, chosen=frozenset({"recalls"})) == (400, 2, {"a": 1})


def test_settings_stay_when_the_model_changes(options: Options, tiny_model: Path) -> None:
    """After `/model`, the command line's options applied again."""
    with Chat.open(options(), session="mine") as chat:
        say(chat, "hello")
        chat.set(temp=0.5, top_k=3, seed=11, max_tokens=2, recalls=1, template_args={"a": 1})
        chat.conversation.pin(1)
        now = chat.conversation
        now.set_system("Be brief.")
        now.set_note("Ada has a cat.")
        now.render_with(now.rendering.with_thinking(False))
        variables, model = now.rendering.variables, now.model
        chat.change_model(chat.find(str(tiny_model)))
        assert now.model is not model
        assert (now.sampling.temp, now.sampling.top_k, now.sampling.seed) == (0.5, 3, 11)
        assert (now.generation.max_tokens, now.recalls) == (2, 1)
        assert (dict(now.rendering.template_args), now.turns[0].pinned) == ({"a": 1}, True)
        assert (now.state.system, now.state.note) == ("Be brief.", "Ada has a cat.")
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
        several = Alone()
        several.size = 2
        chat.ranks = several
        with pytest.raises(UsageError, match="launch"):
            chat.set(top_k=5, lookup=True)
        assert (conversation.sampling, conversation.generation, conversation.recalls) == before


def test_an_unsaved_chat_leaves_nothing_until_it_is_saved(options: Options) -> None:
    with Chat.open(options(), save=False) as chat:
        replies = say(chat, "hello")
        assert chat.session is None
        assert not paths.sessions_dir().exists()
        chat.save_as("late")
        chat.save()
        assert saved("late") == [("hello", replies[0])]
    with Chat.open(options(), save=False) as chat:
        say(chat, "hello")
        with pytest.raises(SessionError, match="session 'late' already exists"):
            chat.save_as("late")


def test_a_resumed_chat_drafts_from_its_turns(options: Options) -> None:
    """Their tokens are read from the transcript, because the window may have forgotten them."""
    question = "the same words"
    with Chat.open(options(), session="mine") as chat:
        say(chat, question)
        chat.conversation.forget(1)
    with Chat.open(session="mine") as chat:
        drafter, tokenizer = chat.conversation.drafter, chat.conversation.model.tokenizer
        assert drafter is not None
        drafter.history.extend(tokenizer.encode(question)[:5])
        match = drafter.history.match()
        assert match is not None
        following = chat.conversation.model.tokenizer.decode(
            drafter.history.following(match.next, 9)
        )
        assert question.endswith(following)
        chat.set(lookup=False)
        assert chat.conversation.drafter is None


def test_a_session_can_be_named_left_and_resumed(options: Options) -> None:
    with Chat.open(options(), session="old") as chat:
        say(chat, "one")
    with Chat.open(options()) as chat:
        say(chat, "two")
        chat.save_as("new")
        with pytest.raises(UsageError):
            chat.change_session("new")
        with pytest.raises(SessionError, match="no session named 'none'"):
            chat.change_session("none")
        say(chat, "three")
        chat.change_session("old")
        assert [turn.user for turn in chat.conversation.turns] == ["one"]
        say(chat, "four")
        # Others may open the session that was left.
        Session.open("new").close()
    assert [user for user, _ in saved("new")] == ["two", "three"]
    assert [user for user, _ in saved("old")] == ["one", "four"]
    with Chat.open(latest=True) as chat:
        assert chat.session is not None
        assert chat.session.name == "old"


def test_a_renamed_session_resumes_without_prefill(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots were still written to the directory of the old name: after `/save NAME` every one
    failed with "No such file or directory", and resuming read the whole transcript again."""
    monkeypatch.setattr("mlxchat.app.session.SNAPSHOT_EVERY", 1)
    with Chat.open(options(), session="old") as chat:
        say(chat, "one")
        chat.save_as("new")
        say(chat, "two", "three")
        written = chat.close()
        assert chat.notices == []
    assert written is not None
    with Chat.open(options(), session="new") as chat:
        held = len(chat.conversation.ledger.ids)
        say(chat, "four")
        assert chat.conversation.stats is not None
        assert chat.conversation.stats.cached_tokens == held > 20
        assert chat.notices == []


def test_a_new_session_whose_name_is_taken_meanwhile_still_gets_a_snapshot(
    options: Options,
) -> None:
    """The session takes the next free name when its first turn is saved; its snapshot must too."""
    with Chat.open(options()) as chat:
        assert chat.session is not None
        name = chat.session.name
        with Database() as database:
            database.write(lambda connection: insert_session(connection, SessionRecord(name)))
        say(chat, "one")
        assert chat.session.name != name
        chat.close()
        assert chat.session.snapshot_path is not None
        assert chat.session.snapshot_path.exists()
        assert chat.notices == []


def test_a_chat_that_is_not_saved_is_not_left_for_another(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turns were gone after /load, and the exit status was 0."""
    for name in ("other", "mine"):
        with Chat.open(options(), session=name) as chat:
            say(chat, f"I am {name}")

    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

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


def test_a_model_that_fails_to_load_leaves_the_session(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, **how: Any) -> Any:
        raise TemplateError("broken")

    monkeypatch.setattr(opening, "load_model", fails)
    with Chat.open(options(), session="mine") as chat:
        with pytest.raises(TemplateError):
            say(chat, "hello")
        assert not chat.is_ready
    Session.open("mine", create=True).close()


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_session_saved_after_a_recall_is_resumed_without_the_quote(
    family: str, options: Options, tmp_path: Path
) -> None:
    """The snapshot of a model with recurrent layers had read the quote, and was discarded."""
    model = write_family(tmp_path / family, family) if family != "llama" else tmp_path / "m"
    if family == "llama":
        write_tiny_model(model)
    plain = options(recalls=2)
    wide = replace(plain, setup=replace(plain.setup, model=str(model), window=960))
    with Chat.open(wide, session="mine") as chat:
        say(chat, "My name is Ada.", *(letter * 130 for letter in "bcdefgh"))
        said = list(chat.say("What is my name?"))
        assert any(isinstance(each, Recalled) for each in said)
        last = chat.conversation.turns[-1]
    with Chat.open(session="mine") as chat:
        chat.set(max_tokens=2)
        say(chat, "go on")
        conversation = chat.conversation
        assert "Earlier" not in conversation.model.tokenizer.decode(conversation.ledger.ids)
        assert conversation.stats is not None
        own = len("go on") + len(last.user) + 6 + 2 * len("<user\n>\n<assistant\n>\n") + 6
        assert conversation.stats.prompt_tokens - conversation.stats.cached_tokens <= own
