"""The layout: which folder may import which, how large each may be, and who may use a library.

Every import counts, at the top of a file, in a function and under TYPE_CHECKING.
"""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlxchat"

# The folders in reading order: each imports only itself and folders before it. "" holds the files
# that everything stands on. The number is the most lines of Python that the folder may have. What
# one folder needs beyond it, another gives up: the package as a whole does not grow.
PACKAGE_CEILING = 30_700
CEILINGS = {
    "": 1_576,
    "request": 750,
    "manual": 201,
    "config": 300,
    "text": 2_179,
    "recall": 408,
    "passages": 455,
    "constraint": 833,
    "cache": 2_320,
    "models": 3_534,
    "engine": 2_165,
    "chat": 1_833,
    "store": 1_293,
    "sessions": 1_722,
    "rows": 895,
    "distributed": 595,
    "app": 3_300,
    "bench": 860,
    "terminal": 4_000,
    "doctor": 209,
    "cli": 1_582,
}

# The package's entry points come after everything else.
ABOVE = ["__init__", "__main__"]

# The only modules that may import a package, by prefix of their names.
SOLE_IMPORTERS = {
    "mlxchat.distributed": ("distributed", "app.ranks", "app.opening"),
    "rich": ("terminal",),
    "prompt_toolkit": ("terminal",),
    "typer": ("cli",),
    "huggingface_hub": ("models.hub", "doctor"),
    "transformers": ("models.tokenizer_files",),
    "gguf": ("models.gguf",),
    "psutil": ("platform",),
    "mlx_lm": (
        *("cache.powers", "cache.layers", "cache.build", "cache.side_by_side", "engine.sampling"),
        *("models", "bench.theirs"),
    ),
    "llguidance": ("constraint", "engine.constrained"),
    "jsonschema": ("constraint",),
    "referencing": ("constraint",),
    "pydantic": ("store.checkpoint", "rows.read", "rows.row"),
    "jinja2": ("text.template",),
    "termios": ("terminal.worker",),
    "fcntl": ("files",),
}


def name_of(path: Path) -> str:
    """`cache.window`; the folder's name for its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[:-1] else parts)


def folder_of(name: str) -> str:
    """The first part of a module's name if that is a folder, else ""."""
    first = name.split(".", maxsplit=1)[0]
    return first if (PACKAGE / first).is_dir() else ""


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(name: str) -> frozenset[str]:
    """Every name that the module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(found)


def ours(name: str) -> set[str]:
    """The modules of this package that the module imports, itself excepted."""
    return {each.removeprefix("mlxchat.") for each in imports(name)} & ({*MODULES} - {name})


def test_a_folder_imports_only_earlier_folders() -> None:
    assert {folder_of(name) for name in MODULES} == {*CEILINGS}
    order = list(CEILINGS)
    late = {
        (name, each)
        for name in {*MODULES} - {*ABOVE}
        for each in ours(name)
        if each in ABOVE or order.index(folder_of(each)) > order.index(folder_of(name))
    }
    assert late == set()


def test_no_files_import_each_other_even_in_a_circle() -> None:
    try:
        TopologicalSorter({name: ours(name) for name in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(f"imports form a circle: {' <- '.join(error.args[1])}")


def test_no_folder_is_larger_than_its_ceiling() -> None:
    lines = dict.fromkeys(CEILINGS, 0)
    for name, path in MODULES.items():
        lines[folder_of(name)] += path.read_text().count("\n")
    assert {each: n for each, n in lines.items() if n > CEILINGS[each]} == {}
    assert sum(lines.values()) <= PACKAGE_CEILING


def test_a_package_is_imported_only_where_it_belongs() -> None:
    misplaced = {
        (name, imported)
        for name in MODULES
        for imported in imports(name)
        for package, importers in SOLE_IMPORTERS.items()
        if f"{imported}.".startswith(f"{package}.") and not name.startswith(importers)
    }
    assert misplaced == set()


# Functions that only `files` may call, so that all durable writing goes through it.
DURABLE = re.compile(r"\b(fsync|pwrite|flock|mkstemp|F_FULLFSYNC)\b")


def test_only_the_module_of_files_forces_files_to_the_disk() -> None:
    assert [name for name, path in MODULES.items() if DURABLE.search(path.read_text())] == ["files"]
