"""From a command's options to the Setup that `app` opens a model with."""

from collections.abc import Mapping
from typing import Any

from mlxchat.cli.options import build
from mlxchat.options import options_of
from mlxchat.request import Setup
from mlxchat.settings import SamplingSettings


def setup_of(values: Mapping[str, Any]) -> Setup:
    """The Setup in a command's options. Raises UsageError."""
    sampling = {
        name: each.value_of(values.get(name)) for name, each in options_of(SamplingSettings).items()
    }
    seed = sampling.pop("seed")
    return build(Setup, values, sampling=sampling, **({} if seed is None else {"seed": seed}))
