"""The public names, which the package `mlxchat` has too."""

# ruff: noqa: F401
from mlxchat.app.batch_run import open_batch
from mlxchat.app.begin import begin, resume
from mlxchat.app.chat import Chat
from mlxchat.app.opening import open_model
from mlxchat.app.run import Run
from mlxchat.cache.build import make_cache
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Forgot
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import BlockReader
from mlxchat.engine.reply import Reply
from mlxchat.errors import MlxchatError
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.request import Answer, BatchInput, BatchRequest, ChatOptions, Overnight, Request, Setup
from mlxchat.request.batch import RowTemplate
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.store.prefix_cache import DiskBlocks
from mlxchat.text.tokens import Part
from mlxchat.units import Observer
