"""A chat with a model, saved as it goes: `mlxchat chat` for Python callers. Prints nothing.

    options = ChatOptions(Setup("smollm2", window=512), system="Be brief.")
    with Chat.open(options, session="holidays") as chat:
        for said in chat.say("Where shall we go?"):
            print(said.text, end="", flush=True)

The next `Chat.open(session="holidays")` resumes it with the same model and window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import fields, replace
from typing import Any, Self

from mlxchat.app.opening import (
    Loaded,
    find_model,
    known_prefixes,
    open_found,
    report_positions,
    start,
)
from mlxchat.app.prompt import with_schema
from mlxchat.app.ranks import check_ranks
from mlxchat.app.session import (
    Saving,
    find_model_of,
    model_settings,
    open_session,
    resumed,
    settings_of,
    with_saved,
)
from mlxchat.chat.answering import UNWATCHED, Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.rendering import Rendering, check_room
from mlxchat.chat.state import Compacted, Said, State, Turn
from mlxchat.chat.window import BeginPrefix
from mlxchat.engine.budget import without_effect
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.sampling import Token
from mlxchat.errors import CacheError, RanksError, SessionError, TemplateError, UsageError
from mlxchat.models.model import ALONE, Alone, Model
from mlxchat.models.recommended import chat_sampling
from mlxchat.models.resolve import ResolvedModel
from mlxchat.options import options_of
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.written import thinking_variables
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.records import QUESTION, folded
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.store.prefix_cache import PrefixCache
from mlxchat.store.snapshot import Written
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import Observer

HOTTER = "a temp of 0.8 gives other replies"
GREEDY_BY_MAKERS = f"this model's generation_config.json asks for greedy decoding: {HOTTER}"
LOOP = "stopped: the reply repeats itself"
LEFT_OUT = "the chat template rejects these turns together: earlier ones are left out"

OWN = frozenset({"recalls", "template_args"})
SAMPLING = frozenset(each.name for each in fields(SamplingSettings))
GENERATION = frozenset(each.name for each in fields(GenerationSettings))


class Chat(AbstractContextManager["Chat"]):
    """One conversation at a time, with its model and session. A context; or call `close`.

    The model is loaded when first needed, or by `begin`. Everything is saved before it is yielded.
    Notices for the user go to `observer`, or to `notices` without one or if it `collects` them.
    """

    def __init__(
        self,
        options: ChatOptions,
        session: Session | None,
        observer: Observer | None = None,
        *,
        collects: bool = False,
        ranks: Alone = ALONE,
    ) -> None:
        """As `open`, with an open session, or None to save nothing."""
        self.notices: list[str] = []
        if observer is None or collects:
            add = self.notices.append
            observer = replace(observer or Observer(), warn=add, note=add)
        self._observer, self._notify = observer, observer.warn
        self.ranks = ranks
        options = ranks.same(lambda: options if session is None else resumed(options, session))
        setup, drafts = options.setup, bool(options.generation.lookup)
        check_ranks(ranks, pipeline=setup.pipeline, drafts=drafts, adapter=bool(setup.adapter))
        start(setup)
        self._options = options
        saves = ranks.same(lambda: session is not None)
        self._saving = Saving(session, self._notify, ranks) if saves else None
        self._prefixes: PrefixCache | None = None
        self._found = find_model_of(session, setup, observer, ranks)
        self._conversation: Conversation | None = None
        self._is_closed = self._leaves_out = False

    @classmethod
    def open(
        cls,
        options: ChatOptions | None = None,
        observer: Observer | None = None,
        *,
        session: str | None = None,
        latest: bool = False,
        save: bool = True,
        collects: bool = False,
        ranks: Alone = ALONE,
    ) -> Self:
        """Open the named session, new or not, the latest or a new one. Raises MlxchatError."""
        opened = open_session(session, latest=latest, save=save) if ranks.leads else None
        try:
            return cls(options or ChatOptions(), opened, observer, collects=collects, ranks=ranks)
        except BaseException:
            if opened is not None:
                opened.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> Written | None:
        """Save everything and unlock the session; return the size and time of the snapshot."""
        if self._is_closed:
            return None
        self._is_closed = True
        try:
            if self._conversation is not None and self.ranks.leads and self.ranks.at_rest:
                # The others close theirs. A lost one ends the chat anyway.
                with suppress(RanksError):
                    self.ranks.same(lambda: None)
            return None if self._saving is None else self._saving.close(self._conversation)
        finally:
            if self._prefixes is not None:
                self._prefixes.close()

    # The model

    @property
    def model_name(self) -> str:
        return self._found.name

    @property
    def is_ready(self) -> bool:
        """Whether the conversation has begun."""
        return self._conversation is not None

    def revise_system(self, revised: Callable[[str | None], str | None]) -> None:
        """Change the system prompt, or that of the session, before the conversation begins."""
        if self._options.system is None and self.session is not None:
            saved = self.session.contents
            self.session.contents = replace(saved, system=revised(saved.system))
        else:
            self._options = replace(self._options, system=revised(self._options.system))

    def begin(self) -> Conversation:
        """Load the model, and begin the conversation or resume the session's. Raises its errors."""
        options, loaded = self._options, self._load(self._found)
        conversation = Conversation(
            loaded.model,
            loaded.settings,
            system=options.system,
            sampling=loaded.sampling,
            generation=options.generation,
            variables=thinking_variables(options.think != "off"),
            template_args=options.template_args,
            begin_prefix=self._known_to(loaded.model),
            drafter=make_drafter(loaded.model, options.generation),
            recalls=options.recalls,
        )
        self._report(conversation)
        if self._saving is not None:
            self._saving.resume(conversation, system=self._options.system)
        self._conversation = conversation
        self._describe()
        return conversation

    @property
    def conversation(self) -> Conversation:
        """The conversation, including its session's turns; loads the model if necessary."""
        return self._conversation or self.begin()

    @property
    def _open(self) -> Conversation:
        """The conversation, to change it. Raises SessionError if the chat is closed."""
        self._check_open()
        return self.conversation

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionError("this chat is closed, so nothing would be saved: open it again")

    def find(self, name: str) -> ResolvedModel:
        """The files of another model, with its own chat template, downloaded if necessary."""
        setup = replace(self._setup, model=name, adapter=None, chat_template=None)
        return find_model(setup, self._observer)

    def change_model(self, found: ResolvedModel, should_stop: ShouldStop = lambda: False) -> None:
        """Let another model continue. If it fails, or is stopped while loading, the old stays."""
        if found == self._found:
            return
        conversation, loaded = self._open, self._load(found)
        if should_stop():
            return
        drafter = make_drafter(loaded.model, conversation.generation)
        conversation.change_model(loaded.model, loaded.settings, loaded.sampling, drafter)
        conversation.begin_prefix = self._known_to(loaded.model)
        self._found = found
        self._report(conversation)
        # After `change_session`, the session's own window stays.
        self._describe(model_settings(found, self._setup.dtype))

    def _load(self, found: ResolvedModel) -> Loaded:
        return open_found(
            self._setup,
            found,
            self._notify,
            ranks=self.ranks,
            count_pinned=self._count_pinned,
            sampling_for=self._sampling_for,
        )

    def _count_pinned(self, tokenizer: Tokenizer) -> int:
        """Raises WindowTooSmall if the conversation could not begin."""
        options, conversation = self._options, self._conversation
        if conversation is not None:
            rendering = replace(conversation.rendering, tokenizer=tokenizer)
            state = conversation.state
        else:
            state = State() if self.session is None else self.session.contents.state.beginning
            if options.system is not None:
                state = replace(state, system=options.system)
            variables = thinking_variables(options.think != "off")
            rendering = Rendering(tokenizer, variables, options.template_args)
        return check_room(rendering, state, self._setup.cache_settings().max_kv_size)

    def _sampling_for(self, model: Model) -> Mapping[str, Any]:
        """What suits a chat with this model: never silently greedy."""
        sampling = chat_sampling(model, think=self._options.think != "off")
        if "temp" not in self._setup.sampling and sampling.get("temp") == 0:
            self._notify(GREEDY_BY_MAKERS)
        return sampling

    def _known_to(self, model: Model) -> BeginPrefix | None:
        """How a prompt begins that the model has read before: nothing if nothing is saved."""
        if self._prefixes is not None:
            self._prefixes.close()
        self._prefixes = self._saving and known_prefixes(self._setup, model, self._observer.note)
        return self._prefixes and self._prefixes.begin

    def _report(self, conversation: Conversation) -> None:
        report_positions(conversation.settings, conversation.cache, self._notify)
        without = without_effect(conversation.generation, conversation.model.tokenizer)
        for notice in (*conversation.rendering.notices, *without):
            self._notify(notice)

    # Turns

    def say(self, text: str, watch: Watch = UNWATCHED, **how: Any) -> Generator[Said]:
        """Send a message and return an iterator over the reply, as `Conversation.say` does."""
        said = self._open.say(text, watch, **how)
        # Save the message first: whatever happens, it was sent.
        self.save()
        return self._saved(said, watch, sent=True)

    def retry(self, watch: Watch = UNWATCHED, **how: Any) -> Generator[Said]:
        """Answer as `Conversation.retry` does. Until there is a reply, the session has the old."""
        old = self._open.state.last
        return self._saved(self.conversation.retry(watch, **how), watch, sent=False, old=old)

    def continue_reply(self, watch: Watch = UNWATCHED) -> Generator[Said]:
        """Continue the last reply, as `Conversation.continue_reply` does."""
        return self._saved(self._open.continue_reply(watch), watch, sent=False)

    def compact(self, words: str = "", watch: Watch = UNWATCHED) -> Compacted | None:
        """Replace turns in view with a note, as `Conversation.compact` does, and save it."""
        compacted = self._open.compact(words, watch)
        self.save()
        return compacted

    def remember(self, what: str | int) -> None:
        """Never forget a text, or the message of a turn, as `Conversation.remember` does."""
        self._open.remember(what)
        self.save()

    def unremember(self, number: int) -> None:
        """Remove a remembered line, as `Conversation.unremember` does."""
        self._open.unremember(number)
        self.save()

    def _saved(
        self, reply: Generator[Said], watch: Watch, *, sent: bool, old: Turn | None = None
    ) -> Generator[Said]:
        """The reply, saved as it comes: from its first text on, if its turn is not `sent` yet.
        `old` is the reply that it replaces."""
        self._check_open()
        try:
            with closing(reply):
                for said in reply:
                    if isinstance(said, Token) and sent and self._saving is not None:
                        self._saving.show(said)
                    elif isinstance(said, Token) and said.text:
                        self.save()
                        sent = True
                    yield said
        finally:
            watch.on_end()
            if self._saving is not None and not self._is_closed:
                self._saving.turn_over(self.conversation)
        stats = self.conversation.stats
        if stats is not None and stats.finish_reason == "loop":
            self._notify(LOOP)
        if self.conversation.rendering.left_out and not self._leaves_out:
            self._leaves_out = True
            self._notify(LEFT_OUT)
        stopped = stats is None or stats.finish_reason == "interrupted"
        new = None if stopped else self.conversation.state.last
        if old and new and new is not old and (new.thought, new.reply) == (old.thought, old.reply):
            is_low = self.conversation.sampling.temp < 0.8
            self._notify(f"the same reply again: {HOTTER if is_low else '/retry draws again'}")

    # Options

    def think(self, wanted: bool) -> None:
        """Turn thoughts on or off, and the sampling with it. Raises what `render_with` raises."""
        conversation = self._open
        conversation.render_with(conversation.rendering.with_thinking(wanted))
        self._options = replace(self._options, think="on" if wanted else "off")
        self._sample(wanted)
        self._describe(("template_args",))

    def _sample(self, think: bool) -> None:
        """Sample as chosen, or else as recommended."""
        recommended = chat_sampling(self.conversation.model, think=think)
        self.conversation.sampling = self._setup.sampling_settings(recommended)

    def set(self, **options: Any) -> None:
        """Change options by name, for this and later models: fields of SamplingSettings and of
        GenerationSettings, `recalls`, and `template_args`: arguments that are not named stay.
        Raises UsageError or TemplateError for what is rejected; then nothing changes."""
        conversation = self._open
        for name in sorted(options.keys() - SAMPLING - GENERATION - OWN):
            raise UsageError(f"unknown option {name!r}")
        recalls = options.get("recalls", conversation.recalls)
        recalls = options_of(ChatOptions)["recalls"].value_of(recalls)
        sampling = {name: options[name] for name in SAMPLING & options.keys()}
        generation = {name: options[name] for name in GENERATION & options.keys()}
        new_sampling = replace(conversation.sampling, **sampling)
        new_generation = replace(conversation.generation, **generation)
        check_ranks(self.ranks, drafts=bool(new_generation.lookup))
        if "template_args" in options:
            rendering = conversation.rendering
            args = {**rendering.template_args, **options["template_args"]}
            conversation.render_with(replace(rendering, template_args=args))
        now = replace(new_generation, think_budget=generation.get("think_budget", -1))
        unused = without_effect(now, conversation.model.tokenizer) if generation else []
        for message in (*new_sampling.without_effect(sampling), *unused):
            self._notify(message)
        conversation.sampling, conversation.generation = new_sampling, new_generation
        if "lookup" in generation:
            conversation.draft_with(make_drafter(conversation.model, new_generation))
        conversation.recalls = recalls
        seed = sampling.pop("seed", self._setup.seed)
        setup = replace(self._setup, sampling={**self._setup.sampling, **sampling}, seed=seed)
        self._options = replace(self._options, setup=setup)
        # Nothing else: after `change_session`, the session's own model and window stay.
        self._describe(OWN & options.keys())

    def unset(self, name: str) -> None:
        """Choose nothing for an option that `set` changes. Sampling is then what the model's makers
        recommend; no template argument is left. Raises what `set` raises."""
        conversation, setup = self._open, self._setup
        if name in SAMPLING:
            chosen = {each: value for each, value in setup.sampling.items() if each != name}
            seed = None if name == "seed" else setup.seed
            self._options = replace(self._options, setup=replace(setup, sampling=chosen, seed=seed))
            self._sample(self._options.think != "off")
        elif name == "template_args":
            conversation.render_with(replace(conversation.rendering, template_args={}))
            self._describe((name,))
        else:
            known = options_of(ChatOptions if name in OWN else GenerationSettings)
            self.set(**{name: known[name].default if name in known else None})

    # The session

    @property
    def session(self) -> Session | None:
        """The session that the chat is saved in, or None."""
        return None if self._saving is None else self._saving.session

    @property
    def not_saved(self) -> str | None:
        """Why something could not be saved and still is not; None if there is nothing."""
        return None if self.session is None else self.session.outage

    def save(self) -> None:
        """Save all changes; `say`, `retry` and the like do so themselves."""
        self._check_open()
        if self._saving is not None and self._conversation is not None:
            self._saving.record(self._conversation.state)

    def keep(self, sent: Turn) -> None:
        """Save a message that was sent before the conversation began."""
        if self._saving is not None:
            self._saving.describe(model_settings(self._found, self._setup.dtype))
            self._saving.keep(sent, self._options.system)

    def mark_question(self, *, is_one: bool) -> None:
        """Save whether this is a single question, as long as it has one turn."""
        if self.session is not None and self._saving and is_one != self.session.is_question:
            self._saving.describe({QUESTION: is_one})

    def save_as(self, name: str) -> None:
        """Rename the session, or start saving an unsaved chat. Raises SessionError."""
        session = self.session or Session.new()
        try:
            session.rename(name)
        except SessionError:
            if session is not self.session:
                session.close()
            raise
        if session is not self.session:
            self._saving = Saving(session, self._notify, self.ranks)
            self._describe()
            self.save()

    def change_session(self, name: str) -> None:
        """Leave this conversation, saved, and resume another session, with its own `recalls` and
        template arguments. Raises SessionError, also if a part of this one would be lost."""
        if self.session is not None and folded(self.session.name) == folded(name):
            raise UsageError(f"already in session {name!r}")
        self.conversation.end_reply()
        self.save()
        if self.not_saved is not None:
            raise SessionError(f"this chat would be lost: it cannot be saved: {self.not_saved}")
        conversation, rendering = self.conversation, self.conversation.rendering
        # Else an empty conversation would be saved over it.
        check_room(rendering, read_session(name).state, conversation.settings.max_kv_size)
        session = Session.open(name)
        # That of a single question was for its answer.
        own = with_schema(session.contents.system, None)
        session.contents = replace(session.contents, system=own)
        saving = Saving(session, self._notify, self.ranks)
        if self._saving is not None:
            self._saving.close(conversation)
        else:
            self._notify(f"unlike the chat so far, session {session.name!r} is saved")
        self._saving = None
        conversation.resume(session.contents.state.beginning)
        chosen = ChatOptions(recalls=conversation.recalls, template_args=rendering.template_args)
        saved = with_saved(chosen, session)
        conversation.recalls = saved.recalls
        try:
            conversation.render_with(replace(rendering, template_args=saved.template_args))
        except (CacheError, TemplateError) as error:
            self._notify(f"this session's template arguments were ignored: {error}")
        saving.resume(conversation, system=None)
        self._saving = saving

    def _describe(self, names: Collection[str] | None = None) -> None:
        """Save the options to resume with, or those of these names."""
        if self._saving is not None:
            of_model = model_settings(self._found, self._setup.dtype)
            saved = {**of_model, **settings_of(self.conversation)}
            wanted = saved.keys() if names is None else names
            self._saving.describe({name: saved[name] for name in wanted})

    @property
    def _setup(self) -> Setup:
        return self._options.setup
