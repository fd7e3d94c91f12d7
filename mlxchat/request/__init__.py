"""What a user can ask for, as frozen dataclasses: open a model, generate, run a batch, chat.

Every option is declared once, as a field here or in `settings`; `options` has the table of those
that exclude each other, `commands` the options of each command. How options look is for `cli`, what
they do for `app`. Read `generate` first.
"""

from mlxchat.request.batch import BatchInput, BatchRequest
from mlxchat.request.commands import ChatOptions
from mlxchat.request.generate import Answer, Overnight, Request, Setup

__all__ = ["Answer", "BatchInput", "BatchRequest", "ChatOptions", "Overnight", "Request", "Setup"]
