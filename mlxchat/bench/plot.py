"""Charts as SVG and PNG files. The only importer of matplotlib, which the extra `plot` installs."""

import importlib.util
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mlxchat.bench.report import Chart
from mlxchat.errors import OutputError
from mlxchat.files import reported_as, write_atomically

INSTALL = "pip install 'mlxchat[plot]'"
FORMATS = ("svg", "png")
SIZE_INCHES = (8.0, 4.8)
DOTS_PER_INCH = 120


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def prepare(directory: Path) -> None:
    """Create the directory. Raises OutputError."""
    with reported_as(OutputError, f"create {directory}"):
        directory.mkdir(parents=True, exist_ok=True)


def draw(charts: Iterable[Chart], directory: Path, caption: str) -> Iterator[Path]:
    """Write each chart into `directory`, which is created if necessary; yield each file once it is
    written. `caption` describes the machine. Raises OutputError."""
    for chart in charts:
        figure = _figure(chart, caption)
        for kind in FORMATS:
            path = directory / f"{chart.name}.{kind}"
            with reported_as(OutputError, f"write {path}"):
                directory.mkdir(parents=True, exist_ok=True)
                write_atomically(path, _rendered(figure, kind), mode=0o644)
            yield path


def _figure(chart: Chart, caption: str) -> Any:
    # Not pyplot, which keeps every figure in memory and looks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    draw_series = _lines if chart.kind == "lines" else _bars
    draw_series(axes, chart)
    axes.set_title(_plain(chart.title))
    axes.set_xlabel(_plain(chart.x))
    axes.set_ylabel(_plain(chart.y))
    # Start at zero, so as not to exaggerate differences.
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    figure.supxlabel(_plain(caption), fontsize=6, color="gray", wrap=True)
    return figure


def _lines(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        xs = [point.x for point in series.points]
        axes.plot(xs, [point.y for point in series.points], marker=".", label=_plain(series.label))
        lows, highs = ([getattr(p, end) for p in series.points] for end in ("min", "max"))
        axes.fill_between(xs, lows, highs, alpha=0.2)


def _bars(axes: Any, chart: Chart) -> None:
    names = list(dict.fromkeys(str(point.x) for s in chart.series for point in s.points))
    width = 0.8 / len(chart.series)
    for n, series in enumerate(chart.series):
        places = [
            names.index(str(point.x)) + (n - (len(chart.series) - 1) / 2) * width
            for point in series.points
        ]
        values = [point.y for point in series.points]
        errors = [
            [point.y - point.min for point in series.points],
            [point.max - point.y for point in series.points],
        ]
        axes.bar(places, values, width, yerr=errors, capsize=2, label=_plain(series.label))
    axes.set_xticks(range(len(names)), [_plain(name) for name in names])


def _rendered(figure: Any, kind: str) -> bytes:
    import matplotlib

    stream = io.BytesIO()
    # A fixed salt makes the file reproducible.
    with matplotlib.rc_context({"svg.hashsalt": "mlxchat"}):
        figure.savefig(stream, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def _plain(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula."""
    return text.replace("$", r"\$")
