"""The layout: which folder may import which, how large each may be, and who may use a library.

Every import counts, at the top of a file, in a function and under TYPE_CHECKING.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlxchat"

# The folders in reading order: each imports only itself and folders before it. "" holds the files
# that everything stands on. The number is the most lines of Python that the folder may have: it
# only ever goes down.
CEILINGS = {
    "": 1_546,
    "request": 987,
    "manual": 228,
    "config": 303,
    "text": 2_241,
    "recall": 396,
    "passages": 489,
    "constraint": 850,
    "cache": 2_485,
    "models": 3_723,
    "engine": 2_125,
    "chat": 1_810,
    "store": 1_410,
    "sessions": 1_711,
    "rows": 1_039,
    "distributed": 885,
    "app": 3_263,
    "bench": 971,
    "terminal": 3_513,
    "doctor": 223,
    "cli": 1_564,
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
    "llguidance": ("constraint", "engine.constrained"),
    "jsonschema": ("constraint",),
    "referencing": ("constraint",),
    "pydantic": ("store.dataclass_json", "rows.json_lines"),
    "jinja2": ("text.template",),
    "termios": ("terminal.modes",),
    "fcntl": ("files", "terminal.modes"),
}


def name_of(path: Path, package: Path = PACKAGE) -> str:
    """`cache.window`; the folder's name for its `__init__`."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[:-1] else parts)


def folder_of(name: str, package: Path = PACKAGE) -> str:
    """The first part of a module's name if that is a folder, else ""."""
    first = name.split(".", maxsplit=1)[0]
    return first if (package / first).is_dir() else ""


@cache
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


def ours(path: Path, text: str) -> set[str]:
    """The modules of this package that the file imports, itself excepted."""
    known = {name for name, _ in modules()} - {name_of(path)}
    return known & {name.removeprefix("mlxchat.") for name in imports(path, text)}


def imported_from_above(path: Path, text: str) -> list[str]:
    """Our modules that the file imports although their folder comes after its own."""
    name = name_of(path)
    if name in ABOVE:
        return []
    order = list(CEILINGS)
    here = order.index(folder_of(name))
    return sorted(
        each for each in ours(path, text) if each in ABOVE or order.index(folder_of(each)) > here
    )


def test_every_folder_has_its_place() -> None:
    assert {folder_of(name) for name, _ in modules()} == set(CEILINGS)


def test_a_folder_imports_only_earlier_folders() -> None:
    assert offenders(lambda _, path: imported_from_above(path, path.read_text())) == {}


def test_no_files_import_each_other_even_in_a_circle() -> None:
    graph = {name: ours(path, path.read_text()) for name, path in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports form a circle: {' <- '.join(error.args[1])}")


def test_no_folder_is_larger_than_its_ceiling() -> None:
    lines = dict.fromkeys(CEILINGS, 0)
    for name, path in modules():
        lines[folder_of(name)] += path.read_text().count("\n")
    assert {each: n for each, n in lines.items() if n > CEILINGS[each]} == {}


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


# Functions that only `files` may call, so that all durable writing goes through it.
DURABLE = {"fsync", "pwrite", "flock", "mkstemp", "F_FULLFSYNC"}


def used_names(path: Path) -> set[str]:
    """Every name and attribute in the file."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in tree if isinstance(node, ast.Name)}
    return names | {node.attr for node in tree if isinstance(node, ast.Attribute)}


def test_only_the_module_of_files_forces_files_to_the_disk() -> None:
    def durable(name: str, path: Path) -> list[str]:
        return [] if name == "files" else sorted(used_names(path) & DURABLE)

    assert offenders(durable) == {}
