"""Requests to the application, as frozen dataclasses: open a model, generate, chat.

Every option is declared once, here or in `settings`.
"""

from mlxchat.request.answer import Answer
from mlxchat.request.chat import ChatOptions
from mlxchat.request.commands import CHAT, GENERATE
from mlxchat.request.generate import Request
from mlxchat.request.overnight import Overnight
from mlxchat.request.setup import Setup

__all__ = ["CHAT", "GENERATE", "Answer", "ChatOptions", "Overnight", "Request", "Setup"]
