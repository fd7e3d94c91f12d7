"""Models: the default one, and whether others can be downloaded."""

import os
import threading
from collections.abc import Iterator

from mlxchat.config.layers import Level, Setting, read_config
from mlxchat.doctor.finding import Finding, ok, problem, warning
from mlxchat.errors import ConfigError, HubError, ModelError, ModelNotFound
from mlxchat.models.catalog import EMBEDDED_ALIAS, RECOMMENDED
from mlxchat.models.hub_cache import cached_snapshot, offline_by_environment, token_place
from mlxchat.models.locate import embedded_model, locate

# The library's timeouts apply to each step of a connection; resolving a name can take far longer.
PATIENCE_S = 5.0


def model() -> Iterator[Finding]:
    try:
        config = read_config()
    except ConfigError:
        yield warning("model", "the configuration cannot be read", "fix it first")
        return
    chosen = config.model()
    if chosen is None:
        yield _unnamed()
        return
    try:
        located = locate(chosen.value, config.aliases)
    except (ModelError, ConfigError) as error:
        yield problem("model", f"{error} (set by {chosen.where})", _fix(chosen))
        return
    if located.path is None and cached_snapshot(located.name) is None:
        found = f"{located.name}, set by {chosen.where}, is not downloaded"
        yield warning("model", found, f"run `mlxchat models pull {located.name}`")
    else:
        yield ok("model", f"{located.name}, set by {chosen.where}")


def token() -> Iterator[Finding]:
    place = token_place()
    yield ok(
        "hub token", "none: gated models cannot be downloaded" if place is None else f"in {place}"
    )


def access() -> Iterator[Finding]:
    """Look up a model that the Hub is known to have, for a few seconds at most."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if offline_by_environment():
        yield ok("hub", "offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
        return
    answers: list[Finding] = []
    asking = threading.Thread(target=lambda: answers.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    if answers:
        yield answers[0]
    else:
        found = f"{endpoint} does not answer within {PATIENCE_S:.0f} seconds"
        yield warning("hub", found, "check the network; downloaded models work without it")


def _asked(endpoint: str) -> Finding:
    from mlxchat.models import hub

    try:
        hub.repo_size_bytes(RECOMMENDED[0].hub_id)
    except ModelNotFound as error:
        if token_place() is None:
            return ok("hub", f"{endpoint} answers")
        return warning("hub", str(error), "run hf auth login: the token may have expired")
    except HubError as error:
        return warning("hub", str(error), "downloaded models work without it")
    return ok("hub", f"{endpoint} answers")


def _unnamed() -> Finding:
    here = [each.hub_id for each in RECOMMENDED if cached_snapshot(each.hub_id) is not None]
    if embedded_model() is not None:
        here.append(EMBEDDED_ALIAS)
    if here:
        found = f"no default: one that fits is chosen; downloaded: {', '.join(here)}"
        return ok("model", found)
    fix = "run `mlxchat models pull NAME`"
    return warning("model", "no default, and none downloaded", fix)


def _fix(chosen: Setting) -> str:
    match chosen.level:
        case Level.USER:
            return "run `mlxchat models default NAME`"
        case _:
            return f"give {chosen.where} another value"
