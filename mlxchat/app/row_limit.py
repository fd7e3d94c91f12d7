"""How many rows of a batch run side by side: as many as asked for, as long as memory suffices."""

from mlxchat import platform
from mlxchat.cache import kv_bytes_per_token
from mlxchat.models.model import Model
from mlxchat.progress import Notify
from mlxchat.request.batch import RowCount
from mlxchat.units import count

# More rows than this hardly generate more tokens per second.
AUTO_ROWS = 32

# The rows may take this share of the free memory. Batches that took nearly all of it have brought
# down whole machines: see mlx-lm issue 1666.
SHARE = 0.5


class RowLimit:
    """The number of rows, `most`. It only ever falls, with a notice."""

    def __init__(self, wanted: RowCount, model: Model, notify: Notify) -> None:
        self.most = AUTO_ROWS if wanted == "auto" else wanted
        self._token_bytes = kv_bytes_per_token(model.shard, model.dtype)
        self._notify = notify

    def allows(self, running: int, tokens: int, held_bytes: int) -> bool:
        """Whether another row may run beside `running` ones if the longest of them takes `tokens`.
        They hold `held_bytes` so far. One row always may."""
        if running == 0:
            return True
        if running >= self.most:
            return False
        more_bytes = (running + 1) * tokens * self._token_bytes - held_bytes
        if more_bytes <= platform.free_memory_bytes() * SHARE:
            return True
        self.lower(running)
        return False

    def lower(self, rows: int) -> None:
        """Run at most this number from now on."""
        self.most = max(rows, 1)
        self._notify(f"memory is short: {count(self.most, 'row')} side by side from now on")
