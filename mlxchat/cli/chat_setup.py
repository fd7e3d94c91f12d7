"""What `mlxchat chat` does with its options: a conversation, and who is talking to it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mlxchat.cache import positions_bounded
from mlxchat.cli.keeper import open_session, settings_of, template_args_of
from mlxchat.cli.prefix import Prefixes
from mlxchat.cli.ranks import check_ranks, lead_or_follow
from mlxchat.cli.setup import POSITIONS_RUN_ON, Setup, fit_window, start
from mlxchat.conversation import Conversation
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import UsageError
from mlxchat.models.load import Model
from mlxchat.settings import GenerationSettings, Roll
from mlxchat.store.session import Session
from mlxchat.template import thinking_variables
from mlxchat.terminal.messages import Messages


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The options as they were given; `given` are the names of those on the command line."""

    setup: Setup
    system: str | None
    roll: Roll
    max_tokens: int
    stop: tuple[str, ...]
    think: str
    plain: bool
    json_events: bool
    stats: bool
    go_on: bool = False
    session: str | None = None
    save: bool = True
    exact: bool = False
    template_args: dict[str, Any] = field(default_factory=dict[str, Any])
    given: frozenset[str] = frozenset()

    def generation_settings(self) -> GenerationSettings:
        return GenerationSettings(
            max_tokens=self.max_tokens,
            stop=self.stop,
            logprobs=0 if self.json_events else None,
        )

    def prefixes(self, notify: Callable[[str], None]) -> Prefixes:
        """Whoever leaves nothing on the disk leaves no keys and values there either."""
        wanted = self.setup.prefix_cache and self.save
        return Prefixes(replace(self.setup, prefix_cache=wanted), notify)

    def variables(self) -> dict[str, Any]:
        """What the chat template is given besides the user's own arguments."""
        return thinking_variables(self.think != "off")


def run(request: ChatRequest) -> int:
    """Chat, and return the exit status. Raises MlxchatError for all that a user can mend."""
    messages = Messages(request.setup.quiet)
    # Whatever can be refused is refused before anything takes time.
    request.setup.cache_settings()
    request.setup.sampling_settings({})
    request.generation_settings()
    if request.go_on and request.session is not None:
        raise UsageError("--continue is the latest session, --session NAME another: give one")
    if not request.save and (request.go_on or request.session is not None):
        raise UsageError("--no-save goes with neither --continue nor --session")
    return lead_or_follow(lambda ranks: _run(request, messages, ranks))


def _run(request: ChatRequest, messages: Messages, ranks: Ranks | None) -> int:
    check_ranks(request.setup, ranks)
    start(request.setup, messages)
    session = open_session(go_on=request.go_on, name=request.session, save=request.save)
    if session is not None:
        setup, roll = settings_of(request.setup, request.roll, session, request.given)
        args = template_args_of(request.template_args, session, request.given)
        request = replace(request, setup=setup, roll=roll, template_args=args)
    try:
        return _chat(request, messages, session, ranks)
    finally:
        if session is not None:
            session.close()


def _chat(
    request: ChatRequest, messages: Messages, session: Session | None, ranks: Ranks | None
) -> int:
    if sys.stdin is not None and sys.stdin.isatty() and not request.json_events:
        from mlxchat.cli.repl import Repl

        return Repl(request, messages, session, ranks).run()
    from mlxchat.cli.piped_chat import run_piped

    return run_piped(request, messages, session, ranks)


def new_conversation(
    request: ChatRequest,
    model: Model,
    notify: Callable[[str], None],
    prefixes: Prefixes | None = None,
) -> Conversation:
    """A conversation with a loaded model, and what the user should know of it."""
    settings = fit_window(request.setup, model, notify)
    conversation = Conversation(
        model,
        settings,
        system=request.system,
        roll=request.roll,
        sampling=request.setup.sampling_settings(model.generation_config),
        generation=request.generation_settings(),
        variables=request.variables(),
        template_args=request.template_args,
        prefixes=prefixes,
    )
    for notice in conversation.notices:
        notify(notice)
    if settings.max_kv_size is not None and not positions_bounded(conversation.cache):
        notify(POSITIONS_RUN_ON)
    return conversation
