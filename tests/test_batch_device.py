"""A device that fails while a batch runs: no row is lost, and none is answered twice."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mlxchat.app.batch_run import SideBySide, open_batch
from mlxchat.errors import DeviceError
from mlxchat.request import BatchRequest, Setup
from mlxchat.rows.output import Result
from mlxchat.units import Observer
from tests.failing_device import FailingDevice

# Rows that share a beginning and are read together, one that outgrows the window, one too long.
ROWS = [
    *({"id": n, "prompt": "the same words for all " + "x" * n, "max_tokens": 6} for n in range(6)),
    {"id": "grows", "prompt": "grow " * 11, "max_tokens": 12},
    {"id": "long", "prompt": "long " * 20, "max_tokens": 3},
    *({"id": n, "prompt": "the same words for all " + "y" * n, "max_tokens": 12} for n in (7, 8)),
]


def run(model: Path, device: FailingDevice, fails_at: int) -> tuple[dict[str, str] | None, int]:
    """The texts by id, None if the batch did not come to its end; and the number of evaluations."""
    lines: list[str] = []
    notices: list[str] = []
    setup = Setup(model=str(model), window=80, seed=7, prefix_cache=False)
    data = io.BytesIO("\n".join(map(json.dumps, ROWS)).encode())
    request = BatchRequest(setup=setup, rows=4, ignore_eos=True)
    observer = Observer(warn=lambda notice: notices.append(str(notice)))
    results = SideBySide.results

    def breaking(runner: SideBySide) -> Iterator[Result | None]:
        device.breaks_at(fails_at)
        return results(runner)

    is_over = False
    with (
        pytest.MonkeyPatch.context() as patch,
        open_batch(request, observer, write=lines.append, piped=data) as batch,
        suppress(DeviceError),
    ):
        patch.setattr(SideBySide, "results", breaking)
        list(batch.results())
        is_over = True
    count = device.count
    device.repair()
    found = [json.loads(line) for line in lines]
    texts = {each["id"]: each["text"] for each in found}
    assert len(texts) == len(found), f"evaluation {fails_at} failed"
    assert all(re.match(r"memory is short: \d rows? side by side", each) for each in notices)
    assert bool(notices) == (fails_at > 0 and is_over)
    return texts if is_over else None, count


@pytest.mark.parametrize(
    "all_of_them", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]
)
def test_no_row_is_lost_or_doubled_if_the_device_fails(
    all_of_them: bool, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that had just been read together were answered twice, and a batch ended with an error if
    a row failed that had left the others. With one row only, it has to."""
    device = FailingDevice(monkeypatch)
    expected, count = run(tiny_model, device, 0)
    assert len(expected or ()) == len(ROWS)
    # Those at which rows are read together, seated, decoded, moved out, and brought closer.
    evaluations = range(1, count + 1) if all_of_them else (2, 6, 20, 40, 55, 74)
    texts = [run(tiny_model, device, number)[0] for number in evaluations]
    assert all(each in (expected, None) for each in texts)
    assert texts.count(None) <= len(texts) / 3 * all_of_them
