"""Runs prompts through the scheduler of `mlxchat batch`, without files."""

import io
import json
from collections.abc import Callable, Iterable, Iterator

from mlxchat.app.loaded import Loaded
from mlxchat.app.side_by_side import SideBySide
from mlxchat.errors import ModelError
from mlxchat.models.model import Model
from mlxchat.progress import Notify
from mlxchat.request import BatchInput, BatchRequest, Setup
from mlxchat.rows.output import Output
from mlxchat.rows.pending import Pending
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result
from mlxchat.settings import CacheSettings, SamplingSettings

# Called with the number of tokens that the rows have got.
OnTokens = Callable[[int], object]


def run_rows(
    model: Model,
    prompts: Iterable[str],
    max_tokens: int,
    rows: int,
    *,
    on_tokens: OnTokens = lambda tokens: None,
    notify: Notify,
) -> Iterator[Result]:
    """Yield the results as they finish, `rows` side by side. Every row gets `max_tokens` tokens.

    Greedy; nothing is read from the disk or written to it. Raises ModelError if a row fails.
    """
    request = BatchRequest(
        setup=Setup(prefix_cache=False),
        rows=rows,
        max_tokens=max_tokens,
        ignore_eos=True,
        lookup=False,
    )
    settings = CacheSettings(None)
    cache = model.make_cache(None, settings.keep)
    runner = SideBySide(
        request,
        Loaded(model.name, model, settings, SamplingSettings(seed=0), cache),
        should_stop=lambda: False,
        on_tokens=on_tokens,
        notify=notify,
    )
    lines = "\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    source = Rows(BatchInput(), io.BytesIO(lines.encode()))
    pending = Pending(source, Output(lambda line: None))
    for result in runner.results(pending):
        if result.error is not None:
            raise ModelError(result.error)
        pending.finish(result)
        yield result
