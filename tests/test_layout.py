"""The order in which the files are to be read: each imports only what stands before it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mlxchat"

# What stands before it may be imported; a package's own files are its own business, in this order.
ORDER = [
    "errors",
    "failures",
    "settings",
    "platform",
    "awake",
    "paths",
    "units",
    "files",
    "config_file",
    "config_edit",
    "project_file",
    "config",
    "documents",
    "template",
    "reply_format",
    "thinking",
    "reply_reader",
    "template_probe",
    "spans",
    "replies",
    "tokens",
    "parts",
    "stop",
    "cache.positions",
    "cache.originals",
    "cache.window",
    "cache.chunk",
    "cache.layers",
    "cache.block",
    "cache.trial",
    "cache.build",
    "cache",
    "sampling",
    "models",
    "models.skeleton",
    "models.arrays",
    "models.experts",
    "models.weights",
    "models.dequantize",
    "models.half_precision",
    "models.tokenizer_files",
    "models.catalog",
    "models.hub_cache",
    "models.hub_errors",
    "models.hub",
    "models.gguf",
    "models.locate",
    "models.resolve",
    "models.model",
    "models.load",
    "models.fit",
    "models.describe",
    "models.inventory",
    "repetition",
    "pace",
    "generate",
    "blocks",
    "ledger",
    "conversation",
    "store",
    "store.tensor_file",
    "store.fingerprint",
    "store.snapshot",
    "store.verify",
    "store.append_file",
    "store.reply_part",
    "store.saved",
    "store.journal",
    "store.lock",
    "store.session_names",
    "store.session",
    "store.session_list",
    "store.output_file",
    "store.metrics",
    "store.background",
    "store.state_file",
    "store.checkpoint",
    "store.prefix_index",
    "store.prefix_cache",
    "store.block_store",
    "distributed",
    "distributed.deferred",
    "distributed.launcher",
    "distributed.noise",
    "distributed.sockets",
    "distributed.ranks",
    "distributed.leader",
    "distributed.shard",
    "distributed.saved",
    "distributed.traffic",
    "distributed.peers",
    "distributed.load",
    "distributed.prefixes",
    "distributed.follow",
    "transcript",
    "events",
    "bench.paired",
    "bench.report",
    "bench.text",
    "bench.subject",
    "bench.catalog",
    "bench.machine",
    "bench.record",
    "bench.tiny",
    "bench.theirs",
    "bench.plot",
    "bench",
    "terminal",
    "doctor.finding",
    "doctor.machine",
    "doctor.disk",
    "doctor.hub",
    "doctor.terminal",
    "doctor",
    "cli",
]

# Who alone may import a package, by the beginnings of the names of our modules.
SOLE_IMPORTERS = {
    "rich": ["terminal"],
    "prompt_toolkit": ["terminal"],
    "typer": ["cli"],
    "huggingface_hub": ["models.hub"],
    "transformers": ["models.tokenizer_files"],
    "gguf": ["models.gguf"],
    "psutil": ["platform"],
    "mlx_lm": ["cache.layers", "cache.build", "sampling", "models", "bench.theirs"],
    "matplotlib": ["bench.plot"],
    "jinja2": ["template"],
}


def modules() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in ("", "__main__"):
            found.append((name, path))
    return found


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place(name: str) -> int | None:
    """Where the module, or the nearest package around it, stands in the order."""
    while name:
        if name in ORDER:
            return ORDER.index(name)
        name = name.rpartition(".")[0]
    return None


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_a_file_imports_only_what_stands_before_it(name: str, path: Path) -> None:
    here = place(name)
    assert here is not None, f"{name} has no place in the order yet"
    for imported in imports(path):
        there = place(imported.removeprefix("mlxchat.")) if "mlxchat." in imported else None
        assert there is None or there <= here, f"{name} imports {imported}, which comes later"


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_a_package_is_imported_only_where_it_belongs(name: str, path: Path) -> None:
    for imported in imports(path):
        allowed = SOLE_IMPORTERS.get(imported.split(".")[0])
        assert allowed is None or any(name.startswith(prefix) for prefix in allowed), imported
