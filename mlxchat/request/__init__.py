"""Requests to the application, as frozen dataclasses: open a model, generate, run a batch, chat.

Every option is declared once, here or in `settings`.
"""

from mlxchat.request.answer import Answer
from mlxchat.request.batch import BatchInput, BatchRequest
from mlxchat.request.chat import ChatOptions
from mlxchat.request.generate import Request
from mlxchat.request.overnight import Overnight
from mlxchat.request.setup import Setup

__all__ = [
    "Answer",
    "BatchInput",
    "BatchRequest",
    "ChatOptions",
    "Overnight",
    "Request",
    "Setup",
]
