"""A conversation as the options of `mlxchat chat` ask for it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mlxchat.app.prefixes import Prefixes
from mlxchat.app.setup import POSITIONS_RUN_ON, Setup, fit_window
from mlxchat.cache import positions_bounded
from mlxchat.chat.conversation import Conversation
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, Roll
from mlxchat.text.template import thinking_variables


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
    quiet: bool = False
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
