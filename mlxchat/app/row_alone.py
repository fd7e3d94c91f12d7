"""Generates one row of a batch alone, in the rotating window."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxchat.app.drafting import make_drafter
from mlxchat.app.loaded import Loaded
from mlxchat.app.row_run import RowRun
from mlxchat.cache import Cache
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import Generation
from mlxchat.engine.loops import ShouldStop
from mlxchat.engine.reply import ResumePoint
from mlxchat.progress import Notify
from mlxchat.rows.results import Result

# Called with the tokens of a row that have been generated since the last call.
OnTokens = Callable[[int], object]


class RowAlone:
    """Generates rows to their end; interrupted, without a result."""

    def __init__(
        self, loaded: Loaded, should_stop: ShouldStop, on_tokens: OnTokens, notify: Notify
    ) -> None:
        self._loaded = loaded
        self._should_stop = should_stop
        self._on_tokens = on_tokens
        self._notify = notify

    def generate(self, run: RowRun, cache: Cache, held: int) -> Result | None:
        """Generate the row from the beginning; `held` tokens of its prompt are in the cache."""
        how = self._options(run, run.constrained())
        how |= {"sampling": run.plan.sampling, "cached_tokens": held}
        return self._finish(run, cache, Generation(run.model, run.plan.prompt.ids, cache, **how))

    def resume(
        self, run: RowRun, point: ResumePoint, cache: Cache, constrained: Constrained | None
    ) -> Result | None:
        """Continue a row from `point`."""
        how = self._options(run, constrained) | {"sampling": run.plan.sampling}
        return self._finish(run, cache, Generation.resume(run.model, point, cache, **how))

    def _options(self, run: RowRun, constrained: Constrained | None) -> dict[str, Any]:
        plan, model = run.plan, run.model
        return {
            "settings": plan.settings,
            "prefill_step_size": self._loaded.settings.max_step_size,
            "constrained": constrained,
            "drafter": make_drafter(model, plan.settings, self._notify),
            "reply": plan.reader(model.tokenizer)[0],
            "should_stop": self._should_stop,
        }

    def _finish(self, run: RowRun, cache: Cache, generation: Generation) -> Result | None:
        for token in generation:
            self._on_tokens(run.add([token]))
        stats = generation.stats
        run.evicted_tokens = stats.evicted_tokens
        mx.clear_cache()
        if stats.finish_reason == "interrupted":
            return None
        return run.result(
            stats.finish_reason, complete=generation.is_complete, error=generation.problem
        )
