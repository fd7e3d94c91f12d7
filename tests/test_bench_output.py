"""The output of benchmarks: tables, charts made of blocks, plots."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mlxchat.bench import plot
from mlxchat.bench.report import Chart, Point, Series, Table, series
from mlxchat.errors import OutputError
from mlxchat.terminal.bench_table import format_bench_table
from mlxchat.terminal.chart import draw_chart

TABLE = Table(
    "Prefill of 4,232 tokens",
    ("SIDE", "STEP", "TOK/S", "RATIO", "SPEED"),
    (("mlxchat", "512", "82.8", "", "tie"), ("mlx-lm", "all at once", "1,066", "", "")),
    ("A note \x1b[31m.",),
)
BARS = Chart(
    "speed",
    "Reading",
    "step",
    "tokens per second",
    "bars",
    series(
        [
            ("512 tokens", Point("64", 40.0, 39, 41)),
            ("512 tokens", Point("all at once", 80.0, 70, 90)),
            ("4,232 tokens", Point("64", 20.0, 20, 20)),
        ]
    ),
)
LINES = Chart(
    "memory",
    "Memory of $x$ & <y>",
    "tokens",
    "MB",
    "lines",
    (Series("active", tuple(Point.single(n * 100, 5.0) for n in range(1, 31))),),
)


def test_a_table_aligns_numbers_right_and_omits_empty_columns() -> None:
    drawn = format_bench_table(TABLE, for_terminal=True)
    assert [line.rstrip() for line in drawn.splitlines()] == [
        "Prefill of 4,232 tokens",
        "",
        "SIDE      STEP          TOK/S   SPEED",
        "─────────────────────────────────────",
        "mlxchat   512            82.8   tie",
        "mlx-lm    all at once   1,066",
        "A note ␛[31m.",
        "",
    ]


def test_in_a_pipe_a_table_is_tab_separated_with_headers() -> None:
    assert format_bench_table(TABLE, for_terminal=False) == (
        "# Prefill of 4,232 tokens\n"
        "SIDE\tSTEP\tTOK/S\tSPEED\n"
        "mlxchat\t512\t82.8\ttie\n"
        "mlx-lm\tall at once\t1,066\t\n"
        "# A note ␛[31m.\n"
        "\n"
    )


def test_bars_start_at_zero_and_are_proportional_to_their_values() -> None:
    assert draw_chart(BARS, 60) == (
        "Reading: tokens per second, by step\n"
        "         64  512 tokens    █████████████▌               40.0\n"
        "             4,232 tokens  ██████▊                      20.0\n"
        "all at once  512 tokens    ███████████████████████████  80.0\n"
        "\n"
    )


def test_a_long_line_is_drawn_at_ten_points_including_first_and_last() -> None:
    rows = draw_chart(LINES, 60).splitlines()[1:-1]
    assert len(rows) == 10
    assert (rows[0].split()[0], rows[-1].split()[0]) == ("100", "3,000")
    assert len({row.split()[2] for row in rows}) == 1


@pytest.mark.parametrize("columns", [0, 20, 60, 300])
def test_a_chart_fits_the_available_width(columns: int) -> None:
    widest = max(map(len, draw_chart(LINES, columns).splitlines()[1:]))
    assert widest <= max(min(columns, 100), 36)


def test_a_chart_of_zeros_has_no_bars() -> None:
    chart = Chart("z", "Z", "x", "y", "bars", (Series("s", (Point.single("a", 0.0),)),))
    assert draw_chart(chart, 80).splitlines()[1].split() == ["a", "s", "0"]


def test_plots_are_reproducible_svg_and_png(tmp_path: Path) -> None:
    first, second = (
        [path.read_bytes() for path in plot.draw([BARS, LINES], tmp_path / name, "on $this$")]
        for name in ("a", "b")
    )
    assert first == second
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["memory.png", "memory.svg", "speed.png", "speed.svg"]
    assert all(data.startswith(b"\x89PNG\r\n") for data in (first[1], first[3])), (
        "the PNG files are none"
    )
    for data in (first[0], first[2]):
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_plot_that_cannot_be_written_is_one_error_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*speed\.svg"):
        list(plot.draw([BARS], tmp_path / "file", ""))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_matplotlib_is_detected_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plot.available()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plot.available()
