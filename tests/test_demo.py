"""`make demo` with the real embedded model: what it shows is true."""

import re
import subprocess
import sys

import pytest

from tests.docs import ROOT

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_the_demo_forgets_recalls_and_reads_a_document_once() -> None:
    """It once answered with an invented install command, cut off in the middle of a word."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout
    assert "\x1b" not in shown
    recalled = shown.partition("> /recall")
    assert "Rome" in recalled[0]
    assert "Jupiter" in recalled[0]
    assert "forgot turn 1" in recalled[0]
    assert "4071" in recalled[2].partition("What is the code")[2]
    assert "312 meters" in shown
    assert "Tom Hale" in shown
    waited = re.search(r"First token after ([\d.]+) s, then after ([\d.]+) s\.", shown)
    assert waited is not None
    assert float(waited[2]) < float(waited[1]) / 3
