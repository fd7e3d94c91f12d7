"""Several ranks over loopback: same output as one process, and all exit together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.distributed.load import Sharding
from mlxchat.errors import ModelUnsupported
from mlxchat.sessions.session import Session
from scripts.families import build_family, write_family
from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat
from tests.launched import Done, Process, RingOfCommands, launched, ring

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 288,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "eos_token_id": 258,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": COMMON | {"model_type": "llama"},
    "qwen3": COMMON | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": COMMON
    | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
    },
    "phi3": COMMON | {"model_type": "phi3"},
    "one_head": COMMON | {"model_type": "llama", "num_key_value_heads": 1},
}
# One with latent attention, one with sinks and sliding windows.
FAMILIES = ("deepseek_v3", "gpt_oss")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of tiny models."""
    directory = tmp_path_factory.mktemp("distributed")
    for name, config in CONFIGS.items():
        write_tiny_model(directory / name, config=config)
    for family in FAMILIES:
        write_family(directory / family, family)
    return directory


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingOfCommands]:
    command = [sys.executable, "-m", "tests.ring_program"]
    with ring(2, command, tmp_path_factory.mktemp("ring")) as processes:
        yield RingOfCommands(processes)


def check_program(ranks: int, way: str, models: list[str], directory: Path) -> None:
    command = [sys.executable, "-m", "tests.distributed_program", way, *models]
    with ring(ranks, command, directory) as processes:
        assert [process.ends(250) for process in processes] == [0] * ranks, processes[0].err
        lines = processes[0].out.splitlines()
        assert [process.out for process in processes[1:]] == [""] * (ranks - 1)
        assert [process.err for process in processes] == [""] * ranks
    assert len(lines) == len(models)
    for line in lines:
        facts = json.loads(line)
        alone, together = facts["alone"], facts["together"]
        assert together["greedy"] == alone["greedy"]
        assert together["drawn"] == alone["drawn"]
        assert len(set(alone["drawn"])) > 3
        np.testing.assert_allclose(together["logits"], alone["logits"], atol=1e-4)


TENSOR, PIPELINE = ("llama", "qwen3", "qwen3_moe"), ("qwen3_moe",)


@pytest.mark.parametrize(
    ("ranks", "way", "names"),
    [
        (2, "tensor", TENSOR),
        (2, "pipeline", PIPELINE),
        pytest.param(2, "tensor", FAMILIES, marks=pytest.mark.slow),
        pytest.param(2, "pipeline", FAMILIES[:1], marks=pytest.mark.slow),
        pytest.param(4, "tensor", TENSOR, marks=pytest.mark.slow),
        pytest.param(4, "pipeline", PIPELINE, marks=pytest.mark.slow),
    ],
)
def test_ranks_give_the_output_of_one_process(
    ranks: int, way: str, names: tuple[str, ...], models: Path, tmp_path: Path
) -> None:
    check_program(ranks, way, [str(models / name) for name in names], tmp_path)


def test_the_command_gives_the_same_output_on_two_ranks(
    models: Path, run_mlxchat: RunMlxchat, two_ranks: RingOfCommands
) -> None:
    options = ["generate", "-m", str(models / "qwen3_moe"), "--raw", "--ignore-eos", "--json"]
    options += ["--temp", "1", "--seed", "3", "-n", "16", "--max-kv-size", "24", "Once upon a time"]
    alone = run_mlxchat(*options)
    together = two_ranks.run(*options)
    assert (together.statuses, together.err, together.out[1]) == ([0, 0], ["", ""], "")
    assert without_times(together.out[0]) == without_times(alone.stdout)


def test_ranks_load_a_model_that_overflows_in_bfloat16(
    tmp_path: Path, two_ranks: RingOfCommands
) -> None:
    """Only single processes checked their first logits; several ranks wrote noise."""
    directory = write_tiny_model(tmp_path / "wide", config=CONFIGS["llama"])
    file = str(directory / "model.safetensors")
    arrays: Any = mx.load(file)
    larger = {
        name: a * 1e3 if "_proj" in name and "mlp" in name else a for name, a in arrays.items()
    }
    mx.save_safetensors(file, {name: a.astype(mx.float16) for name, a in larger.items()})
    options = ["generate", "-m", str(directory), "--dtype", "stored", "--raw", "-n", "5", "Hello"]
    done = two_ranks.run(*options)
    assert done.statuses == [0, 0]
    message = f"mlxchat: {directory} overflows in float16: using bfloat16\n"
    assert done.err == [message, ""]


def without_times(events: str) -> list[dict[str, Any]]:
    """The events, without the figures that differ in every run."""
    parsed = [json.loads(line) for line in events.splitlines()]
    return [
        {
            name: value
            for name, value in event.items()
            if not name.endswith(("_s", "_bytes")) and name not in ("logprob", "stats")
        }
        for event in parsed
    ]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("phi3", [], "a phi3 model cannot be divided among several machines: use another model\n"),
        ("llama", ["--pipeline"], "a llama model cannot be pipelined: mlx-lm does not support it"),
        ("one_head", [], "this model's 1 kv heads cannot be divided by 2: use a number of ranks"),
        ("llama", ["-f", "nowhere.txt"], "cannot read nowhere.txt"),
    ],
)
def test_only_rank_0_reports_an_error(
    model: str, options: list[str], message: str, models: Path, two_ranks: RingOfCommands
) -> None:
    done = two_ranks.run("generate", "-m", str(models / model), *options, "a")
    assert (done.statuses, done.out) == ([1, 0], ["", ""])
    assert done.err[0].startswith(f"mlxchat: error: {message}")
    assert (done.err[0].count("\n"), done.err[1]) == (1, "")


@pytest.mark.parametrize(
    ("family", "pipeline", "reason"),
    [
        ("qwen3_5", True, "a qwen3_5 model cannot be pipelined: its layers have different kinds"),
        ("qwen3_next", True, "a qwen3_next model cannot be divided among several machines"),
        ("qwen3_next", False, "a qwen3_next model cannot be divided among several machines"),
        # Only when it is applied: a module "does not have parameter named signs".
        ("prism_hadamard_qwen35", False, "cannot divide a prism_hadamard_qwen35 model"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_by_name(
    family: str, pipeline: bool, reason: str
) -> None:
    """The message for qwen3_next said to divide each layer, and then to pipeline it."""

    def divide() -> None:
        sharding, network = Sharding(mx.distributed.init(), pipeline), build_family(family)
        sharding.check(network)
        sharding.apply(network)

    with pytest.raises(ModelUnsupported, match=reason):
        divide()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "prefill"], "under mlx.launch, only"),
        (["generate", "--schema", "age int", "a"], "--schema cannot be used under mlx.launch"),
        (["generate", "--adapter", "lora", "a"], "--adapter cannot be used under mlx.launch"),
    ],
)
def test_what_several_machines_cannot_do_is_a_usage_error(
    arguments: list[str], message: str, models: Path, two_ranks: RingOfCommands
) -> None:
    done = two_ranks.run(*arguments, "-m", str(models / "llama"))
    assert (done.statuses, done.err[1]) == ([2, 0], "")
    assert done.err[0].startswith(f"mlxchat: error: {message}")


def endless(models: Path) -> list[str]:
    command = [sys.executable, "-m", "mlxchat", "generate", "-m", str(models / "llama"), "--raw"]
    return [*command, "--ignore-eos", "-n", "-1", "--max-kv-size", "24", "--temp", "0", "Hello"]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
    ids=["int", "term"],
)
def test_a_signal_to_all_ranks_ends_them_cleanly(
    number: signal.Signals, status: int, models: Path, tmp_path: Path
) -> None:
    with ring(2, endless(models), tmp_path) as processes:
        processes[0].writes(20)
        for process in reversed(processes):
            process.popen.send_signal(number)
        assert [process.ends() for process in processes] == [status, 0]
        assert [process.err for process in processes] == ["", ""]


def test_followers_exit_with_rank_0_if_its_reader_is_gone(models: Path, tmp_path: Path) -> None:
    with ring(2, endless(models), tmp_path) as processes:
        processes[0].writes(20)
        stdout = processes[0].popen.stdout
        assert stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY), stdout.fileno())
        assert [process.ends() for process in processes] == [141, 0]
        assert [process.err for process in processes] == ["", ""]


def test_ranks_exit_if_only_their_launcher_is_killed(models: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    with launched(2, *endless(models)[3:], "-o", str(text)) as process:
        wait_until(lambda: text.exists() and text.stat().st_size > 20)
        process.popen.kill()
        wait_until(lambda: not living(process.popen.pid))


def living(group: int) -> list[str]:
    """The running processes in a group, without zombies."""
    listed = subprocess.check_output(["ps", "-A", "-o", "pgid=,stat="], text=True)
    fields = [line.split() for line in listed.splitlines()]
    return [state for number, state in fields if number == str(group) and state[0] != "Z"]


def ends_with_a_line(process: Process, line: str) -> None:
    """MLX 0.32.2 sometimes crashes if a sum fails while later operations are being launched: one
    time in twenty on its CPU backend. All that counts then is that the process ends."""
    status = process.ends(120)
    if status == -signal.SIGSEGV:
        assert "mlxchat" not in process.err
        return
    assert (status, own_lines(process)) == (1, line)


def own_lines(process: Process) -> str:
    """What it has written to stderr, without MLX's own lines, whose ends may come late."""
    return "".join(re.findall(r"mlxchat: .*\n", process.err))


@pytest.mark.slow
def test_if_a_rank_hangs_the_other_reports_it_and_exits(models: Path, tmp_path: Path) -> None:
    with ring(2, endless(models), tmp_path) as processes:
        processes[0].writes(20)
        processes[1].popen.send_signal(signal.SIGSTOP)
        started_s = time.monotonic()
        assert processes[0].ends(120) == 1
        assert time.monotonic() - started_s > 10
        message = "mlxchat: error: rank 1 has not responded for 60 s: all ranks exit\n"
        assert own_lines(processes[0]) == message
        processes[1].popen.send_signal(signal.SIGCONT)
        assert processes[1].ends(20) == 1


@pytest.mark.slow
def test_neighbours_name_the_one_of_four_ranks_that_hangs(models: Path, tmp_path: Path) -> None:
    with ring(4, endless(models), tmp_path) as processes:
        processes[0].writes(20)
        processes[2].popen.send_signal(signal.SIGSTOP)
        others = [process for process in processes if process is not processes[2]]
        assert 0 not in [process.ends(120) for process in others]
        errors = {own_lines(process) for process in others}
        named = "mlxchat: error: rank 2 has not responded for 60 s: all ranks exit\n"
        assert {line for line in errors if "responded" in line} == {named}


def chat(models: Path, *options: str) -> list[str]:
    model = ["-m", str(models / "llama")]
    return [
        *("chat", *model, "--json", "--temp", "0", "-n", "20", "--max-kv-size", "220", *options)
    ]


def say_together(two_ranks: RingOfCommands, arguments: list[str], text: str) -> Done:
    done = two_ranks.run(*arguments, stdin=f"{text}\n")
    assert (done.statuses, done.err[1], done.out[1]) == ([0, 0], "", "")
    return done


def reply(events: str) -> str:
    parsed = [json.loads(line) for line in events.splitlines()]
    return "".join(event["text"] for event in parsed if event["event"] == "token")


def cached_tokens(events: str) -> int:
    done = json.loads(events.splitlines()[-1])
    return done["stats"]["cached_tokens"] if "stats" in done else done["cached_tokens"]


def test_a_session_resumes_from_each_ranks_own_shard(
    models: Path, run_mlxchat: RunMlxchat, two_ranks: RingOfCommands, temporary_home: Path
) -> None:
    first, second = "Tell me of the sea.", "And of the land? " * 5
    for text in (first, second):
        alone = run_mlxchat(*chat(models, "--session", "alone"), stdin=f"{text}\n")
        assert alone.returncode == 0, alone.stderr
    say_together(two_ranks, chat(models, "--session", "far"), first)
    again = say_together(two_ranks, chat(models, "--session", "far"), second)
    assert again.err[0] == ""
    assert reply(again.out[0]) == reply(alone.stdout)
    assert cached_tokens(again.out[0]) == cached_tokens(alone.stdout) > 0
    # A single process has the whole transcript but no shards.
    last = run_mlxchat(*chat(models, "--session", "far"), stdin="Well?\n")
    assert "was made with a different number of ranks" in last.stderr
    assert cached_tokens(last.stdout) == 0
    # Without rank 1's shard the snapshot cannot be restored.
    say_together(two_ranks, chat(models, "--session", "near"), first)
    for part in temporary_home.rglob("rank1-*.safetensors"):
        part.unlink()
    without = say_together(two_ranks, chat(models, "--session", "near"), second)
    assert "rank 1 does not have its shard of the snapshot" in without.err[0]
    assert reply(without.out[0]) == reply(alone.stdout)


def test_if_a_rank_is_killed_the_other_exits_and_the_session_has_the_text_shown(
    models: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mlxchat", *chat(models, "--session", "cut", "-n", "-1")]
    with ring(2, command, tmp_path) as processes:
        processes[0].reads("Never stop.")
        processes[0].writes(1_000)
        processes[1].popen.kill()
        ends_with_a_line(processes[0], "mlxchat: error: rank 1 is gone: all ranks exit\n")
        shown = reply(processes[0].out)
    with Session.open("cut") as session:
        (turn,) = session.contents.turns
    assert turn.user == "Never stop."
    assert shown
    assert turn.reply.startswith(shown)


def night(models: Path, directory: Path, *options: str) -> list[str]:
    command = ["generate", "-m", str(models / "llama"), "--raw", "--ignore-eos", "-n", "90"]
    command += ["--max-kv-size", "24", "--temp", "1", "--seed", "5"]
    checkpoint = ["--checkpoint", str(directory), "--checkpoint-every", "20"]
    return [*command, *checkpoint, *options, "It was a dark and stormy night."]


@pytest.fixture
def undisturbed(models: Path, tmp_path: Path, run_mlxchat: RunMlxchat) -> bytes:
    """The text of a run that one process writes without interruption."""
    alone = run_mlxchat(*night(models, tmp_path / "whole"))
    assert alone.returncode == 0, alone.stderr
    return (tmp_path / "whole" / "output.txt").read_bytes()


def test_a_run_resumes_from_each_ranks_own_shard_of_the_checkpoint(
    models: Path,
    tmp_path: Path,
    run_mlxchat: RunMlxchat,
    two_ranks: RingOfCommands,
    temporary_home: Path,
    *,
    undisturbed: bytes,
) -> None:
    """A run killed and resumed writes the same bytes as an undisturbed one."""
    cut = tmp_path / "cut"
    with ring(2, [sys.executable, "-m", "mlxchat", *night(models, cut)], tmp_path) as processes:
        wait_until((cut / "state.safetensors").exists)
        processes[0].popen.kill()
        ends_with_a_line(processes[1], "mlxchat: error: rank 0 is gone: all ranks exit\n")
    saved = list(temporary_home.rglob("rank1-*.safetensors"))
    assert 1 <= len(saved) <= 3
    resume = ["generate", "--resume", str(cut)]
    alone = run_mlxchat(*resume)
    assert alone.returncode == 1
    assert "was made with a different number of ranks" in alone.stderr
    resumed = two_ranks.run(*resume)
    assert (resumed.statuses, resumed.err) == ([0, 0], ["", ""])
    assert (cut / "output.txt").read_bytes() == undisturbed
    # Shards no longer referenced are deleted, except the last.
    assert 1 <= len(list(temporary_home.rglob("rank1-*.safetensors"))) <= 4


def test_a_prefix_is_reused_if_all_ranks_have_it(
    models: Path,
    tmp_path: Path,
    run_mlxchat: RunMlxchat,
    two_ranks: RingOfCommands,
    temporary_home: Path,
) -> None:
    document = tmp_path / "document.txt"
    document.write_text("".join(f"Rule {n}: salt the {n * 7} onions.\n" for n in range(40)))
    common = ["generate", "-m", str(models / "llama"), "--raw", "--json", "--ignore-eos"]
    common += ["-n", "20", "-f", str(document), "--max-kv-size", "4096"]

    def alone(question: str) -> str:
        return reply(run_mlxchat(*common, "--no-prefix-cache", question).stdout)

    def together(question: str) -> tuple[str, int]:
        done = two_ranks.run(*common, question)
        assert (done.statuses, done.err) == ([0, 0], ["", ""])
        return reply(done.out[0]), cached_tokens(done.out[0])

    def pages() -> list[Path]:
        return list(temporary_home.rglob("prefixes/**/*.safetensors"))

    tokens = document.stat().st_size // 128 * 128
    assert together("Why?") == (alone("Why?"), 0)
    assert len(pages()) == 2 * (tokens // 128)
    assert together("Who?") == (alone("Who?"), tokens)
    pages()[0].unlink()
    text, known = together("When?")
    assert (text, known < tokens) == (alone("When?"), True)
    # The missing pages have been read and stored again.
    assert together("Where?") == (alone("Where?"), tokens)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_input_piped_to_the_launcher_is_not_a_document(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlxchat", "generate", "-m", str(models / "llama"), "--raw"]
    with ring(2, [*command, "-n", "3", "Hello"], tmp_path) as processes:
        processes[0].reads("a document")
        assert [process.ends() for process in processes] == [0, 0]
        assert processes[0].err.startswith("mlxchat: stdin is not read")
