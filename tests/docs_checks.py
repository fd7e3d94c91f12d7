"""Checks that commands do what the documentation says, with a pattern for each kind."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxchat import paths
from mlxchat.models.hub_cache import repo_dir
from mlxchat.sessions.database import names_by_use
from tests.docs import Command
from tests.docs_shell import Done
from tests.docs_workplace import DOCUMENT_BYTES, MODEL_ON_THE_HUB, Workplace


@dataclass(frozen=True, slots=True)
class Seen:
    """A command that ran; `said` is the match of the check's pattern."""

    place: Workplace
    done: Done
    said: "re.Match[str]"

    @property
    def lines(self) -> list[str]:
        return self.done.stdout.splitlines()


Check = Callable[[Seen], None]
CHECKS: dict[str, Check] = {}


def of(pattern: str) -> Callable[[Check], Check]:
    """Registers a check for commands that, comment included, begin like this."""

    def add(check: Check) -> Check:
        CHECKS[pattern] = check
        return check

    return add


def said(pattern: str, command: Command) -> "re.Match[str] | None":
    return re.match(pattern, f"{command.text}  # {command.comment}")


@of(r"mlxchat version  #")
def _version(seen: Seen) -> None:
    assert re.search(r"backend .+, device .+\nBLAS .+", seen.done.stdout)


@of(r"mlxchat --install-completion")
def _completion(seen: Seen) -> None:
    assert "mlxchat" in (seen.place.home / ".bashrc").read_text()


@of(r"mlxchat doctor(?: --offline)?  #")
def _doctor(seen: Seen) -> None:
    assert len(seen.lines) > 10
    assert {line.partition("\t")[0] for line in seen.lines} <= {"ok", "warning"}
    assert ("\thub\t" in seen.done.stdout) == ("--offline" not in seen.said.string)


@of(r"mlxchat doctor --json  #")
def _doctor_json(seen: Seen) -> None:
    assert {json.loads(line)["verdict"] for line in seen.lines} <= {"ok", "warning"}


@of(r"mlxchat .*--stats < (\S+)")
def _piped_chat(seen: Seen) -> None:
    turns = (seen.place.path / seen.said[1]).read_text().splitlines()
    assert re.findall(r"^turn (\d+)", seen.done.stderr, re.MULTILINE) == [
        str(number) for number in range(1, len(turns) + 1)
    ]


@of(r"mlxchat --session (\w+)")
def _named_session(seen: Seen) -> None:
    assert seen.said[1] in sessions()


@of(r"mlxchat session list  #")
def _session_list(seen: Seen) -> None:
    assert {line.partition("\t")[0] for line in seen.lines} == sessions() != set()


@of(r"mlxchat session search (\w+)")
def _session_search(seen: Seen) -> None:
    assert all(seen.said[1] in line for line in seen.lines)


@of(r"mlxchat session show (\w+)")
def _session_show(seen: Seen) -> None:
    assert "> Tell me of the" in seen.done.stdout


@of(r"mlxchat session export \w+ (\S+)")
def _session_export(seen: Seen) -> None:
    assert "> Tell me of the" in (seen.place.path / seen.said[1]).read_text()


@of(r"mlxchat session rename (\w+) (\w+)")
def _session_rename(seen: Seen) -> None:
    assert sessions() & {seen.said[1], seen.said[2]} == {seen.said[2]}


@of(r"mlxchat session verify (\w+)")
def _session_verify(seen: Seen) -> None:
    assert seen.done.stdout.startswith(f"{seen.said[1]}: ")
    assert "same first choice at" in seen.done.stdout


@of(r"mlxchat session rm (\w+)")
def _session_rm(seen: Seen) -> None:
    assert seen.said[1] not in sessions()


@of(r"mlxchat .*# reads only the question")
def _only_the_question(seen: Seen) -> None:
    assert tokens_read(seen.done) < DOCUMENT_BYTES / 4


@of(r"mlxchat .*# reads only \S+$")
def _only_one_document(seen: Seen) -> None:
    assert DOCUMENT_BYTES <= tokens_read(seen.done) < DOCUMENT_BYTES * 5 / 4


@of(r"mlxchat cache list  #")
def _cache_list(seen: Seen) -> None:
    assert {line.split("\t")[1] for line in seen.lines} <= {"prefix", "block"}
    assert seen.lines


@of(r"mlxchat cache clear")
def _cache_clear(seen: Seen) -> None:
    assert not list(paths.prefix_cache_dir().rglob("*.safetensors"))


@of(r"mlxchat .*--checkpoint (\w+)")
def _checkpoint(seen: Seen) -> None:
    output = seen.place.path / seen.said[1] / "output.txt"
    assert output.stat().st_size
    shutil.copy(output, output.with_name("before"))


@of(r"mlxchat generate --resume (\w+)")
def _resume(seen: Seen) -> None:
    output = seen.place.path / seen.said[1] / "output.txt"
    before = output.with_name("before").read_bytes()
    assert output.read_bytes().startswith(before)
    assert output.stat().st_size > len(before)


@of(r".*mlxchat generate .*--json .* \| jq ")
def _text_alone(seen: Seen) -> None:
    assert '"event"' not in seen.done.stdout
    assert seen.done.stdout.strip()


@of(r"mlxchat models info NAME  # (.*)")
def _models_info(seen: Seen) -> None:
    shown = {line.split()[0] for line in seen.lines}
    assert shown >= {each.split()[0] for each in seen.said[1].split(", ")}


@of(r"mlxchat models list  #")
def _models_list(seen: Seen) -> None:
    assert {line.split("\t")[0] for line in seen.lines} >= {MODEL_ON_THE_HUB}
    assert {line.split("\t")[-1] for line in seen.lines} <= {"yes", "no", "?"}


@of(r"mlxchat models pull NAME")
def _models_pull(seen: Seen) -> None:
    assert (Path(seen.lines[-1]) / "config.json").is_file()
    assert Path(seen.lines[-1]).is_relative_to(repo_dir(MODEL_ON_THE_HUB))


@of(r"mlxchat models rm NAME")
def _models_rm(seen: Seen) -> None:
    assert not repo_dir(MODEL_ON_THE_HUB).exists()


@of(r"mlxchat models default NAME")
def _models_default(seen: Seen) -> None:
    assert f'model = "{MODEL_ON_THE_HUB}"' in paths.config_file().read_text()


@of(r"mlxchat config show(?: (\w+\.\S+))?  #")
def _config_show(seen: Seen) -> None:
    assert all(line.count("\t") == 2 for line in seen.lines)
    if (key := seen.said[1]) is None:
        assert len(seen.lines) > 20
    else:
        assert [line.partition("\t")[0] for line in seen.lines] == [key]


@of(r"mlxchat config set \w+\.(\S+) (\S+)")
def _config_set(seen: Seen) -> None:
    key, value = seen.said.groups()
    text = paths.config_file().read_text()
    line = re.search(rf'^{key} = "?{re.escape(value)}"?$', text, re.MULTILINE)
    assert (line is None) == (value == "--unset")
    assert "smollm2" in text


@of(r"mlxchat config path  #")
def _config_path(seen: Seen) -> None:
    assert seen.lines == [str(paths.config_file())]


@of(r"mlxchat bench (?!.*--json -)")
def _bench(seen: Seen) -> None:
    assert seen.lines[0].startswith("# mlxchat bench ")
    assert len(seen.lines) > 5


@of(r"mlxchat bench .*--against mlx-lm")
def _bench_against(seen: Seen) -> None:
    assert re.search(r"mlx-lm", "\n".join(seen.lines[1:]), re.IGNORECASE)


def sessions() -> set[str]:
    return set(names_by_use())


def tokens_read(done: Done) -> int:
    """How many prompt tokens were read, by the closing figures."""
    figures = re.search(r"prompt ([\d,]+) tokens, ([\d,]+) cached", done.stderr)
    assert figures is not None, done.stderr
    prompt, known = (int(number.replace(",", "")) for number in figures.groups())
    return prompt - known
