"""The reading order of the files: each imports only files before it.

Every import counts, at the top of a file, in a function and under TYPE_CHECKING, so no two files
can import each other.
"""

import ast
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from mlxchat.terminal.commands import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlxchat"

# Folders in reading order, with their files; "" is the folder's __init__.
ORDER: dict[str, list[str]] = {
    "": [
        *(
            "about",
            "wording",
            "errors",
            "failures",
            "dataclass_json",
            "options",
            "amounts",
            "settings",
            "template_args",
            "row_template",
        ),
        *("request.setup", "request.overnight", "request.answer", "request.generate"),
        *("request.batch", "request.chat", "request.commands", "request"),
        *("shown", "platform", "paths", "units", "progress", "handlers"),
    ],
    "files": ["disk", "atomic", "append", "lock", ""],
    "manual": ["", "equivalents"],
    "config": ["", "file", "edit", "project", "layers"],
    "text": [
        *("", "folder", "documents", "template", "reply_format", "thinking", "reply_reader"),
        *("template_probe", "spans", "encoder", "stream_decoder", "replies", "token_bytes"),
        *("tokens", "parts", "stop", "extract"),
    ],
    "recall": ["", "words", "said", "excerpt", "index", "choice"],
    "passages": ["", "document", "split", "index", "search", "quote"],
    "constraint": [
        *("", "json_path", "schema_error", "keywords", "formats", "literals", "anything"),
        "references",
        *("expression", "finite", "disjoint", "schema"),
        *("shorthand", "lark", "library", "constraint", "vocabulary", "matcher", "apply"),
        "tag_tokens",
    ],
    "cache": [
        *("positions", "originals", "ring", "mask", "placement", "window", "chunk", "layers"),
        *("powers", "cascade", "endings", "block", "trial"),
        *("seats", "rows", "side_by_side", "build", ""),
    ],
    "models": [
        *("", "skeleton", "arrays", "experts", "weights", "dequantize", "half_precision"),
        *(
            "template_file",
            "tokenizer_files",
            "catalog",
            "hub_cache",
            "names",
            "hub_errors",
            "partial",
            "hub",
            "last_use",
        ),
        *("gguf.read", "gguf.rope", "gguf.config", "gguf.pack", "gguf.source"),
        *("gguf.tensors", "gguf.pretokenize", "gguf.vocabulary", "gguf.tokenizer"),
        *("gguf.weights", "gguf.convert", "gguf.embedded", "gguf.store", "gguf"),
        *("locate", "checksums", "model", "adapters.adapter", "adapters.find", "adapters.peft"),
        *("adapters.read", "adapters.apply", "adapters"),
        *("resolve", "sampling", "load", "fit", "describe", "inventory", "disk_use"),
    ],
    "engine": [
        *("", "dry", "filters", "sampling", "step_trial", "pace", "step", "loops"),
        *("lookup", "row_costs", "drafts", "constrained", "draw", "decode", "batch"),
        *("reply", "generate", "shared_prefix", "blocks", "repetition", "brief"),
    ],
    "chat": [
        *("", "ledger", "turn", "watch", "turns", "eviction", "memory", "held"),
        *("random_streams", "rendering", "note", "view", "conversation", "transcript"),
    ],
    "store": [
        *("", "tensor_file", "fingerprint", "snapshot", "verify", "output_file"),
        *("metrics", "background", "state_file", "run_record", "checkpoint", "database"),
        *("prefix_index", "page_recorder", "prefix_cache", "block_store"),
    ],
    "sessions": [
        *(
            "",
            "names",
            "tables",
            "serials",
            "unfinished",
            "saved",
            "reply_file",
            "records",
            "earlier",
        ),
        *("connection", "database", "journal", "session", "listing", "recalling"),
        *("foreign", "json_items", "chatgpt", "llm_logs", "exports", "imports"),
    ],
    "rows": [
        *("", "row", "fields", "openai", "json_lines", "lines", "table", "documents", "ahead"),
        *("read", "results", "finished", "output", "pending"),
    ],
    "distributed": [
        *("", "launcher", "noise", "sockets", "ranks", "leader", "shard", "saved"),
        *("traffic", "prefixes", "peers", "load", "follow"),
    ],
    "app": [
        *(
            "",
            "answer",
            "awake",
            "events",
            "observer",
            "ranks",
            "opening",
            "prefixes",
            "blocks",
            "loading",
        ),
        *(
            "prompt",
            "sinks",
            "loop",
            "watch",
            "loaded",
            "overflow",
            "passages",
            "section_answers",
            "sections",
            "outage",
            "checkpoints",
            "drafting",
            "run",
            "records",
        ),
        *("begin", "warm", "session", "chat", "verify"),
        *("row_plan", "row_run", "row_alone", "row_limit", "running", "side_by_side", "batch_run"),
    ],
    "bench": [
        *(
            "",
            "paired",
            "report",
            "text",
            "workload_texts",
            "subject",
            "catalog",
            "machine",
            "record",
            "tiny",
        ),
        "theirs",
        *("workloads", "scheduler", "batch_speed", "batch_prefix", "batch_memory", "batch"),
        *("plot", "blocks", "chat", "communication", "decode", "memory", "prefill", "prefix"),
        *("recall_set", "recall_reporting", "answering", "recall", "long_text", "documents"),
        *("startup", "stream", "measure"),
    ],
    "terminal": [
        *("", "modes", "stream", "spelling", "table", "manual_page", "pager", "help_page"),
        *("screen", "chart", "report", "bench_progress", "bench_table"),
        *(
            "wrapping",
            "ask",
            "restore",
            "messages",
            "clipboard",
            "own_terminal",
            "continued",
            "restore",
            "moving",
            "progress",
        ),
        *("typed_lines", "plain_input", "draft", "editor", "typeahead", "markdown", "live_rows"),
        *(
            "reply_segments",
            "json_colours",
            "text_output",
            "bench_report",
            "figures",
            "reply",
            "signal_watch",
        ),
        *("window_chart", "signals", "chat_screen", "commands", "repl", "piped_chat"),
        *("help_text", "listing", "model_table", "import_report", "observing"),
        *("run_generate", "run_chat", "run_bench", "run_warm", "run_verify"),
        *("batch_progress", "run_batch"),
    ],
    "doctor": ["finding", "machine", "disk", "hub", "terminal", ""],
    "cli": [
        *("group", "shared_options", "version", "completion", "options", "usage_errors"),
        *(
            "configured",
            "named_prompt",
            "key_completion",
            "question",
            "setup",
            "generate",
            "batch",
            "chat",
            "models",
        ),
        *("config", "prompts", "prefix_commands", "sessions", "bench", "doctor", "help", ""),
    ],
}

# The package's entry points come after everything else.
ABOVE = ["__init__", "__main__"]

# The only modules that may import a package, by prefix of their names.
SOLE_IMPORTERS = {
    "rich": ("terminal",),
    "prompt_toolkit": ("terminal",),
    "typer": ("cli",),
    "huggingface_hub": ("models.hub",),
    "transformers": ("models.tokenizer_files",),
    "gguf": ("models.gguf",),
    "psutil": ("platform",),
    "mlx_lm": (
        *("cache.powers", "cache.layers", "cache.build", "cache.side_by_side", "engine.sampling"),
        *("models", "bench.theirs"),
    ),
    "llguidance": ("constraint",),
    "matplotlib": ("bench.plot",),
    "jinja2": ("text.template",),
    "termios": ("terminal.modes",),
    "fcntl": ("files", "terminal.modes"),
}


# A flag, one of our command lines, a command in chat.
TYPED = re.compile(
    r"(^|(?<=[\s`'\"(]))"
    r"(--?[a-zA-Z]|mlxchat (chat|generate|models|session|cache|bench|config|doctor)\b"
    rf"|({'|'.join(map(re.escape, COMMANDS))})\b)"
)

# Allowed all the same: other programs' command lines, file names, a format.
NOT_OURS = [
    *("iconv -f UTF-16 -t UTF-8", "to --help"),
    *("uv pip install --no-deps --python", "-m pip install --no-deps", "pip install --no-deps"),
    *("-wal", "-shm", "-i", "-w", "mlxchat session"),
]


def place_names() -> list[str]:
    return [
        ".".join(filter(None, (folder, file))) for folder, files in ORDER.items() for file in files
    ] + ABOVE


def name_of(path: Path, package: Path = PACKAGE) -> str:
    """The name in ORDER: `cache.window`; the folder's name for its `__init__`."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[:-1] else parts)


def modules() -> list[tuple[str, Path]]:
    return [(name_of(path), path) for path in sorted(PACKAGE.rglob("*.py"))]


def offenders(wrong: Callable[[str, Path], list[str]]) -> dict[str, list[str]]:
    """The files with problems, and their problems."""
    return {name: found for name, path in modules() if (found := wrong(name, path))}


def imports(path: Path, text: str) -> Iterator[str]:
    """Every name that the file at `path` imports, anywhere in it, relative imports included."""
    package = ["mlxchat", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from chain([module], (f"{module}.{alias.name}" for alias in node.names))


def imported_late(path: Path, text: str) -> list[str]:
    """Our modules that the file imports although they come after it."""
    places = place_names()
    here = places.index(name_of(path))
    ours = (name.removeprefix("mlxchat.") for name in imports(path, text))
    return sorted({name for name in ours if name in places and places.index(name) > here})


def test_every_file_is_in_the_order() -> None:
    assert sorted(place_names()) == sorted(name for name, _ in modules())


def test_a_file_imports_only_earlier_files() -> None:
    assert offenders(lambda _, path: imported_late(path, path.read_text())) == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from mlxchat.cli import options",
        "def late() -> None:\n    from mlxchat.cli.options import ModelOption",
        "if TYPE_CHECKING:\n    import mlxchat.cli.options",
        "from ..cli import options",
        "from mlxchat.cache.build import make_cache",
    ],
)
def test_an_import_of_a_later_file_is_found_anywhere(planted: str) -> None:
    assert imported_late(PACKAGE / "cache" / "window.py", planted) != []
    assert imported_late(PACKAGE / "__main__.py", planted) == []


def test_a_package_is_imported_only_where_it_belongs() -> None:
    def misplaced(name: str, path: Path) -> list[str]:
        return [
            imported
            for imported in imports(path, path.read_text())
            if not name.startswith(SOLE_IMPORTERS.get(imported.split(".")[0], ("",)))
        ]

    assert offenders(misplaced) == {}


OPENS_A_MODEL = ("distributed", "app.ranks", "app.opening")


def test_only_modules_that_open_a_model_import_distributed() -> None:
    def known(name: str, path: Path) -> list[str]:
        if name.startswith(OPENS_A_MODEL):
            return []
        names = imports(path, path.read_text())
        return [each for each in names if each.startswith("mlxchat.distributed")]

    assert offenders(known) == {}


def texts(source: str) -> Iterator[str]:
    """Every string in the source except docstrings; f-strings as one, with `0` for each value."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            values = (each.value if isinstance(each, ast.Constant) else 0 for each in node.values)
            yield "".join(map(str, values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def typed_words(source: str) -> list[str]:
    """Strings that tell the user what to type on the command line or in chat."""
    found: list[str] = []
    for text in texts(source):
        rest = text
        for each in NOT_OURS:
            rest = rest.replace(each, "")
        if TYPED.search(rest):
            found.append(text)
    return found


# Modules that show chat commands or run programs.
SPELL_THEM = {
    *("terminal.chat_screen", "terminal.clipboard", "terminal.commands", "terminal.editor"),
    *(
        "terminal.help_text",
        "terminal.repl",
        "terminal.spelling",
        *("bench.startup", "bench.theirs", "bench.batch_prefix"),
        "bench.chat",
        "bench.subject",
    ),
}


def test_messages_of_the_library_name_fields_not_flags_or_commands() -> None:
    def typed(name: str, path: Path) -> list[str]:
        spells_them = name in SPELL_THEM or name in ABOVE or name.startswith("cli")
        return [] if spells_them else typed_words(path.read_text())

    assert offenders(typed) == {}


@pytest.mark.parametrize(
    "planted",
    [
        'raise UsageError("--keep must not be negative")',
        'raise UsageError(f"{path}: give it with -m")',
        'WindowFull("the window is full: /clear, or shift")',
        'notify(f"run `mlxchat models pull {name}` once")',
        'def wrong():\n    return {"why": ["leave --raw out"]}',
        '"""A docstring."""\nNOTICE = "under mlx.launch -n 2"',
    ],
)
def test_a_flag_or_a_command_in_a_message_is_found(planted: str) -> None:
    assert typed_words(planted) != []


@pytest.mark.parametrize(
    "harmless",
    [
        '"""What `--keep` sets."""',
        'f"{bits}-bit, group {size}"',
        '("/dev/fd", "</think>", "a-b", "read/write", "1/2")',
        '"mlxchat does not delete it"',
        'raise UsageError(Field("keep"), f" must not be negative, got {keep}")',
    ],
)
def test_other_strings_are_not_taken_for_flags_or_commands(harmless: str) -> None:
    assert typed_words(harmless) == []


# Functions that only `files` may call, so that all durable writing goes through it.
DURABLE = {"fsync", "pwrite", "flock", "mkstemp", "F_FULLFSYNC"}


def used_names(path: Path) -> set[str]:
    """Every name and attribute in the file."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in tree if isinstance(node, ast.Name)}
    return names | {node.attr for node in tree if isinstance(node, ast.Attribute)}


def test_only_the_files_folder_forces_files_to_the_disk() -> None:
    def durable(name: str, path: Path) -> list[str]:
        return [] if name.startswith("files") else sorted(used_names(path) & DURABLE)

    assert offenders(durable) == {}


def test_the_application_prints_nothing() -> None:
    def printing(name: str, path: Path) -> list[str]:
        shown = {"print", "stdout", "stderr"}
        return sorted(used_names(path) & shown) if name.startswith("app.") else []

    assert offenders(printing) == {}
