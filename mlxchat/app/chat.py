"""A chat with a model, saved as it goes: `mlxchat chat` for Python callers. Prints nothing.

    options = ChatOptions(Setup("smollm2", window=512), system="Be brief.")
    with Chat.open(options, session="holidays") as chat:
        for said in chat.say("Where shall we go?"):
            print(said.text, end="", flush=True)

The next `Chat.open(session="holidays")` resumes it with the same model and window.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import fields, replace
from typing import Any, Self

from mlx import nn

from mlxchat.app.observer import Observer
from mlxchat.app.opening import (
    POSITIONS_RUN_ON,
    Notify,
    find_model,
    fit_window,
    load_model,
    start,
)
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.ranks import Ranks, check_ranks
from mlxchat.app.session import Keeper, open_session, resumed, saved_template_args
from mlxchat.cache import positions_bounded
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import UNWATCHED, Conversation
from mlxchat.chat.rendering import Rendering
from mlxchat.chat.room import check_room
from mlxchat.chat.state import State
from mlxchat.chat.turn import Compacted, Said, Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.sampling import Token
from mlxchat.errors import CacheError, MlxchatError, SessionError, TemplateError, UsageError
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel
from mlxchat.models.sampling import asks_for_greedy, chat_sampling
from mlxchat.options import options_of
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.template_args import thinking_variables
from mlxchat.sessions.database import Database
from mlxchat.sessions.records import already_exists, check_name, folded
from mlxchat.sessions.session import Session, find
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.store.state_file import Written
from mlxchat.text.tokens import Tokenizer

Find = Callable[[Setup], ResolvedModel]

HOTTER = "--temp 0.8 gives other replies"
GREEDY_BY_MAKERS = f"this model's generation_config.json asks for greedy decoding: {HOTTER}"
LOOP = "stopped: the reply repeats itself (answer again (/retry) or continue (/continue))"
LEFT_OUT = "the chat template rejects these turns together: earlier ones are left out"

OWN = frozenset({"recalls", "template_args"})
SAMPLING = frozenset(each.name for each in fields(SamplingSettings))
GENERATION = frozenset(each.name for each in fields(GenerationSettings))


def _nothing() -> None:
    return


class Chat:
    """One conversation at a time, with its model and its session. Call `close`, or use it as a
    context.

    The model is loaded when first needed, or by `begin`. Everything is saved before it
    is yielded. Notices for the user, such as that saving fails, go to `notify`, by default to
    `notices`.
    """

    def __init__(
        self,
        options: ChatOptions,
        session: Session | None,
        *,
        ranks: Ranks | None = None,
        find: Find | None = None,
        notify: Notify | None = None,
        note: Notify | None = None,
    ) -> None:
        """As `open`, with an open session, or None to save nothing."""
        self.notices: list[str] = []
        self._notify = notify or self.notices.append
        self._find = find or (lambda setup: find_model(setup, Observer(self._notify)))
        self._options = options if session is None else resumed(options, session)
        self._ranks = ranks
        self._keeper = Keeper(session, self._notify, exact=options.exact)
        # A chat that saves nothing saves no keys and values either.
        wanted = self._setup.prefix_cache and session is not None
        self._prefixes = Prefixes(replace(self._setup, prefix_cache=wanted), note or self._notify)
        self._found = self._find(self._setup)
        self._conversation: Conversation | None = None
        self._failed = self._is_closed = self._leaves_out = False

    @classmethod
    def open(
        cls,
        options: ChatOptions | None = None,
        *,
        session: str | None = None,
        latest: bool = False,
        save: bool = True,
        ranks: Ranks | None = None,
        find: Find | None = None,
        notify: Notify | None = None,
        note: Notify | None = None,
    ) -> Self:
        """Open the session of that name, creating it if necessary; the latest one; or a new
        one. `find` finds the model's files; `note` gets less important notices.

        Raises SessionError, UsageError, and the errors of finding a model.
        """
        options = options or ChatOptions()
        drafts = bool(options.generation.lookup)
        setup = options.setup
        check_ranks(
            ranks, pipeline=setup.pipeline, drafts=drafts, adapter=setup.adapter is not None
        )
        notices: list[str] = []
        start(options.setup, notify or notices.append)
        opened = open_session(session, latest=latest, save=save)
        try:
            chat = cls(options, opened, ranks=ranks, find=find, notify=notify, note=note)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        chat.notices[:0] = notices
        return chat

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> Written | None:
        """Save everything and unlock the session; return the size and time of the snapshot."""
        if self._is_closed:
            return None
        self._is_closed = True
        try:
            return self._keeper.close(self._conversation)
        finally:
            self._prefixes.close()

    # The model

    @property
    def ranks(self) -> Ranks | None:
        """The other processes under mlx.launch."""
        return self._ranks

    @property
    def model_name(self) -> str:
        return self._found.name

    @property
    def has_given_window(self) -> bool:
        """Whether the window was given, rather than fitted to the machine."""
        return isinstance(self._setup.window, int)

    @property
    def has_failed(self) -> bool:
        """Whether the model failed to load, or the conversation to begin."""
        return self._failed

    @property
    def is_ready(self) -> bool:
        """Whether the conversation has begun."""
        return self._conversation is not None

    def begin(self, passed: Callable[[], None] = _nothing) -> Conversation:
        """Load the model, and begin the conversation or resume the one in the session. `passed` is
        called once the model, its template and the window have passed their checks, before any
        weights are read.

        Raises the errors of loading, and SnapshotError if it must be resumed exactly and cannot
        be.
        """
        try:
            model = self._load(self._found, passed)
            conversation = self._conversation_with(model)
            self._keeper.begin(conversation, self._found, self._setup.dtype)
        except MlxchatError:
            self._failed = True
            raise
        self._conversation = conversation
        return conversation

    @property
    def conversation(self) -> Conversation:
        """The conversation, including its session's turns; loads the model if necessary."""
        return self._conversation or self.begin()

    def find(self, name: str) -> ResolvedModel:
        """The files of another model, with its own chat template and without an adapter, downloaded
        if necessary."""
        return self._find(replace(self._setup, model=name, adapter=None, chat_template=None))

    def change_model(
        self, name: str | ResolvedModel, should_stop: ShouldStop = lambda: False
    ) -> None:
        """Continue the conversation with another model, which reads the retained turns. Settings
        stay. If anything fails, or it is stopped while loading, the old model stays."""
        found = self.find(name) if isinstance(name, str) else name
        model = self._load(found)
        if should_stop():
            return
        sampling = self._sampling_for(model)
        window = fit_window(self._setup, model, self._notify)
        drafter = make_drafter(model, self.conversation.generation)
        self.conversation.change_model(model, window, sampling, drafter)
        self._found = found
        self._report(self.conversation)
        self._describe()

    def _load(self, found: ResolvedModel, passed: Callable[[], None] = _nothing) -> Model:
        def check(_: nn.Module, tokenizer: Tokenizer) -> None:
            self._check_window(tokenizer)
            passed()

        return load_model(self._setup, found, self._notify, check, ranks=self._ranks)

    def _check_window(self, tokenizer: Tokenizer) -> None:
        """Raises WindowTooSmall if the conversation could not begin."""
        options, conversation = self._options, self._conversation
        if conversation is not None:
            rendering = replace(conversation.rendering, tokenizer=tokenizer)
            state = conversation.state
        else:
            system = options.system if options.system is not None else self._keeper.saved_system
            variables = thinking_variables(options.think != "off")
            rendering = Rendering(tokenizer, variables, options.template_args)
            state = State(system, self._keeper.saved_note)
        check_room(rendering, state, self._setup.cache_settings().max_kv_size)

    def _conversation_with(self, model: Model) -> Conversation:
        options = self._options
        conversation = Conversation(
            model,
            fit_window(self._setup, model, self._notify),
            system=options.system,
            sampling=self._sampling_for(model),
            generation=options.generation,
            variables=thinking_variables(options.think != "off"),
            template_args=options.template_args,
            prefixes=self._prefixes,
            drafter=make_drafter(model, options.generation),
            recalls=options.recalls,
        )
        self._report(conversation)
        return conversation

    def _sampling_for(self, model: Model) -> SamplingSettings:
        """What was chosen, else what suits a chat with this model: never silently greedy."""
        think = self._options.think != "off"
        chosen = self._setup.sampling
        if "temp" not in chosen and asks_for_greedy(model.generation_config):
            self._notify(GREEDY_BY_MAKERS)
        sampling = self._setup.sampling_settings(chat_sampling(model, think=think))
        for message in sampling.without_effect(chosen):
            self._notify(message)
        return sampling

    def _report(self, conversation: Conversation) -> None:
        for notice in conversation.rendering.notices:
            self._notify(notice)
        bounded = conversation.settings.max_kv_size is not None
        if bounded and not positions_bounded(conversation.cache):
            self._notify(POSITIONS_RUN_ON)

    # Turns

    def say(
        self,
        text: str,
        watch: Watch = UNWATCHED,
        *,
        constraint: Constraint | None = None,
        prefill: str | None = None,
    ) -> Generator[Said]:
        """Send a message and return an iterator over the reply, as `Conversation.say` does."""
        said = self.conversation.say(text, watch, constraint=constraint, prefill=prefill)
        # Save the message first: whatever happens, it was sent.
        self.save()
        return self._saved(said, watch)

    def retry(
        self, watch: Watch = UNWATCHED, *, constraint: Constraint | None = None
    ) -> Generator[Said]:
        """Answer the last message again, as `Conversation.retry` does. Until there is another
        reply, the session has the old one."""
        old = self.conversation.state.last
        reply = self.conversation.retry(watch, constraint=constraint)
        return self._saved(reply, watch, instead_of=old)

    def continue_reply(self, watch: Watch = UNWATCHED) -> Generator[Said]:
        """Continue the last reply, as `Conversation.continue_reply` does."""
        return self._saved(self.conversation.continue_reply(watch), watch)

    def compact(self, words: str = "", watch: Watch = UNWATCHED) -> Compacted | None:
        """Replace all turns in view but the last with a note, as `Conversation.compact` does, and
        save it."""
        compacted = self.conversation.compact(words, watch)
        self.save()
        return compacted

    def _saved(
        self, reply: Generator[Said], watch: Watch, *, instead_of: Turn | None = None
    ) -> Generator[Said]:
        """The reply, saved as it comes; `instead_of` another, from its first text on."""
        sent = instead_of is None
        self._prefixes.label = self.conversation.turns[0].user
        try:
            with closing(reply):
                for said in reply:
                    if isinstance(said, Token) and sent:
                        self._keeper.show(said)
                    elif isinstance(said, Token) and said.text:
                        self.save()
                        sent = True
                    yield said
        finally:
            watch.on_end()
            self._keeper.turn_over(self.conversation)
        stats = self.conversation.stats
        if stats is not None and stats.finish_reason == "loop":
            self._notify(LOOP)
        if self.conversation.rendering.left_out and not self._leaves_out:
            self._leaves_out = True
            self._notify(LEFT_OUT)
        if instead_of is not None:
            self._report_repeated(instead_of, self.conversation.turns[-1])

    def _report_repeated(self, old: Turn, new: Turn) -> None:
        if new is not old and (new.thought, new.reply) == (old.thought, old.reply):
            temp = self.conversation.sampling.temp
            self._notify(f"the same reply again at a temperature of {temp:g}: {HOTTER}")

    # Options

    def think(self, wanted: bool) -> None:
        """Turn thoughts on or off, with the sampling that is recommended for it. Raises what
        `Conversation.think` raises."""
        conversation = self.conversation
        conversation.think(wanted)
        self._options = replace(self._options, think="on" if wanted else "off")
        recommended = chat_sampling(conversation.model, think=wanted)
        conversation.sampling = self._setup.sampling_settings(recommended)

    def set(self, **options: Any) -> None:
        """Change options by name, for this and later models: fields of SamplingSettings and of
        GenerationSettings, `recalls`, and `template_args`: arguments that are not named stay.

        Raises UsageError for an unknown option or an invalid value, TemplateError if the template
        rejects its arguments; then nothing changes.
        """
        conversation = self.conversation
        known = SAMPLING | GENERATION | OWN
        for name in sorted(options.keys() - known):
            raise UsageError(f"unknown option {name!r}")
        recalls = options_of(ChatOptions)["recalls"].value_of(
            options.get("recalls", conversation.recalls)
        )
        sampling = {name: value for name, value in options.items() if name in SAMPLING}
        new_sampling = replace(conversation.sampling, **sampling)
        generation = {name: value for name, value in options.items() if name in GENERATION}
        new_generation = replace(conversation.generation, **generation)
        redrafts = "lookup" in generation
        if redrafts:
            check_ranks(self._ranks, drafts=bool(new_generation.lookup))
        if "template_args" in options:
            args = {**conversation.template_args, **options["template_args"]}
            conversation.set_template_args(args)
        for message in new_sampling.without_effect(sampling):
            self._notify(message)
        conversation.sampling, conversation.generation = new_sampling, new_generation
        if redrafts:
            drafter = make_drafter(conversation.model, new_generation)
            conversation.draft_with(drafter)
        conversation.recalls = recalls
        seed = sampling.pop("seed", self._setup.seed)
        chosen = {**self._setup.sampling, **sampling}
        setup = replace(self._setup, sampling=chosen, seed=seed)
        self._options = replace(self._options, setup=setup)
        self._describe()

    # The session

    @property
    def session(self) -> Session | None:
        """The session that the chat is saved in, or None."""
        return self._keeper.session

    @property
    def not_saved(self) -> str | None:
        """Why something could not be saved and still is not; None if there is nothing."""
        return None if self.session is None else self.session.outage

    def save(self) -> None:
        """Save all changes; `say`, `retry` and the like do so themselves."""
        if self._conversation is not None:
            self._keeper.record(self._conversation)

    def keep(self, message: str) -> None:
        """Save a message that was sent before the conversation began, as one without a reply."""
        self._keeper.keep(message, self._options.system, self._found, self._setup.dtype)

    def save_as(self, name: str) -> None:
        """Rename the session, or start saving an unsaved chat. Raises SessionError."""
        if self.session is not None:
            self._keeper.rename(name)
            return
        check_name(name)
        with Database() as database:
            found = find(database, name)
        if found is not None:
            raise already_exists(found.name)
        self._keeper = Keeper(Session.open(name, create=True), self._notify)
        self._describe()

    def change_session(self, name: str) -> None:
        """Leave this conversation, saved, and resume another session with its template arguments.
        Raises SessionError."""
        if self.session is not None and folded(self.session.name) == folded(name):
            raise UsageError(f"already in session {name!r}")
        self._check_saved()
        self._change_session(Session.open(name))

    def _check_saved(self) -> None:
        """Raise SessionError if leaving this conversation would lose a part of it."""
        self.save()
        if self.not_saved is not None:
            raise SessionError(f"this chat would be lost: it cannot be saved: {self.not_saved}")

    def _change_session(self, session: Session) -> None:
        conversation = self.conversation
        args = saved_template_args(session)
        self._keeper.close(conversation)
        conversation.resume(None, [])
        self._keeper = Keeper(session, self._notify, exact=self._options.exact)
        try:
            conversation.set_template_args(conversation.template_args if args is None else args)
        except (CacheError, TemplateError) as error:
            self._notify(f"this session's template arguments were ignored: {error}")
        self._keeper.begin(conversation, self._found, self._setup.dtype)

    def _describe(self) -> None:
        self._keeper.describe(self.conversation, self._found, self._setup.dtype)

    @property
    def _setup(self) -> Setup:
        return self._options.setup
