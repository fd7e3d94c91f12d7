"""Bar charts of block characters, for terminals without plots. Bars start at zero."""

from mlxchat.bench.report import Chart, figure
from mlxchat.terminal import visible

EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
MAX_PLACES = 10
MAX_COLUMNS = 100
MIN_BAR = 10


def draw_chart(chart: Chart, columns: int) -> str:
    """At most `columns` wide if that leaves room for bars; ten places of a long line."""
    values = {
        (point.x, series.label): point.y for series in chart.series for point in series.points
    }
    places = _places(chart)
    labels = [f"{place:,.0f}" if isinstance(place, float | int) else place for place in places]
    label_width = max((len(label) for label in labels), default=0)
    names = [visible(series.label) for series in chart.series]
    name_width = max(map(len, names), default=0)
    numbers = {key: figure(value) for key, value in values.items()}
    number_width = max(map(len, numbers.values()), default=0)
    taken = label_width + name_width + number_width + 6
    bar_width = max(min(columns, MAX_COLUMNS) - taken, MIN_BAR)
    largest = max(values.values(), default=0)
    lines = [f"{visible(chart.title)}: {chart.y}" + (f", by {chart.x}" if chart.x else "")]
    for place, label in zip(places, labels, strict=True):
        shown = label
        for series, name in zip(chart.series, names, strict=True):
            key = place, series.label
            if key in values:
                bar = _bar(values[key] / largest * bar_width if largest else 0)
                lines.append(
                    f"{shown:>{label_width}}  {name:{name_width}}  {bar:{bar_width}}  "
                    f"{numbers[key]:>{number_width}}"
                )
                shown = ""
    return "".join(f"{line.rstrip()}\n" for line in lines) + "\n"


def _places(chart: Chart) -> list[float | str]:
    """The x values in order; of many, an even selection that includes the first and the last."""
    found = list(dict.fromkeys(point.x for series in chart.series for point in series.points))
    if chart.kind == "lines":
        found.sort(key=float)
    if len(found) <= MAX_PLACES:
        return found
    step = (len(found) - 1) / (MAX_PLACES - 1)
    return [found[round(n * step)] for n in range(MAX_PLACES)]


def _bar(width: float) -> str:
    eighths = round(width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8]
