"""What other programs' options and commands are called here. The manual's page `switching` and the
hints in errors are made from these tables. Names that are the same here need no row.

Sources: `mlx_lm.generate` and `mlx_lm.chat` 0.32.2, `llm` 0.32, `ollama` 0.33, and `llama-cli` at
commit 0717955 of llama.cpp.
"""

import re
from functools import cache

PAGE = "switching"

# By program: their names, separated by commas, and ours, with a remark after a semicolon.
OURS = {
    "mlx-lm": {
        "mlx_lm.cache_prompt": "mlxchat generate -f FILE -n 1",
        "--adapter-path": "--adapter",
        "--ignore-chat-template": "mlxchat generate --raw",
        "--prompt-cache-file": "--prefix-cache; on by default, needs no file",
        "--verbose": "--stats",
    },
    "llm": {
        "llm logs": "mlxchat session list",
        "--fragment": "--file; a file, folder or pattern, not an address",
        "--template, -t": "--prompt; a prompt in the configuration",
        "--conversation, --cid": "mlxchat --session",
        "--no-log": "mlxchat --no-save",
        "-o temperature": "--temp",
    },
    "ollama": {
        "ollama run": "mlxchat --model NAME",
        "ollama pull": "mlxchat models pull",
        "ollama list, ollama ls": "mlxchat models list",
        "ollama show": "mlxchat models info",
        "ollama rm": "mlxchat models rm",
        "-v": "mlxchat --version",
        "--format": '--schema; --schema \'{"type": "object"}\' for json',
        "temperature": "--temp",
        "repeat_penalty": "--repetition-penalty",
        "num_ctx": "--max-kv-size",
        "num_keep": "mlxchat generate --keep",
        "num_predict": "--max-tokens",
        "/set system": "/system",
        "/set format": '/schema; /schema {"type": "object"} for json',
        "/set think, /set nothink": "/think on or off",
        "/set parameter": "/set",
        "/show": "/set; and mlxchat models info for the model",
        "/load": "/model; /load is for sessions",
    },
    "llama.cpp": {
        "--hf-repo, -hf, -hfr": "--model; in MLX or Hugging Face format",
        "--lora": "--adapter",
        "--system-prompt, -sys": "--system",
        "--chat-template-file": "--chat-template; a file",
        "--ctx-size": "--max-kv-size",
        "--context-shift, --no-context-shift": "mlxchat generate --overflow",
        "--batch-size, -b, --ubatch-size, -ub": "--prefill-step-size",
        "--predict, --n-predict": "--max-tokens",
        "--reverse-prompt": "--stop",
        "--parallel, -np": "mlxchat batch --rows",
        "--repeat-penalty": "--repetition-penalty",
        "--grammar-file": "--grammar; Lark's format, not GBNF",
        "--json-schema, -j, --json-schema-file, -jf": "--schema",
        "--reasoning, -rea, --reasoning-format": "--think",
        "--reasoning-budget": "--think-budget; off instead of -1",
        "--output-file, -o": "mlxchat generate --output",
        "/regen": "/retry",
    },
}

# Why there is nothing like it here, and their names for it.
MISSING = {
    "only text is read": "--image, --audio, --video, --attachment, -a",
    "drafts come from the text itself (--lookup)": "--draft-model, --model-draft, -md",
    "keys and values keep the weights' precision": "--kv-bits, --cache-type-k, --cache-type-v",
    "models are only run": "mlx_lm.convert, mlx_lm.lora, mlx_lm.fuse, ollama create",
    "there is no server": "mlx_lm.server, ollama serve, ollama ps, ollama stop, --keepalive",
    "models call no tools": "llm tools, --tool, -T, --functions",
    "models run on this machine": "llm keys, --key, ollama signin, ollama signout, ollama login",
    "MLX chooses": "--threads, --gpu-layers, --n-gpu-layers, -ngl, --num-gpu, --num-thread, -fa",
}

# Two dashes, or what llm writes before a model's option.
BEFORE_NAME = re.compile(r"^-\w |^--")
# The hint to use an option of ours.
OPTION = re.compile(r"use --([\w-]+)")


def as_markdown() -> str:
    """The tables for the manual."""
    lines: list[str] = []
    for program, rows in OURS.items():
        lines += [f"\n## From {program}\n", f"| {program} | mlxchat |", "|---|---|"]
        for names, ours in rows.items():
            name, semicolon, remark = ours.partition(";")
            lines.append(f"| {_code(names)} | `{name}`{semicolon}{remark} |")
    missing = [f"- {reason}: {_code(names)}" for reason, names in MISSING.items()]
    return "\n".join([*lines, "\n## Missing\n", *missing, ""])


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


@cache
def _hints() -> dict[str, str]:
    """What to use instead of each name."""
    ours = {names: ours for rows in OURS.values() for names, ours in rows.items()}
    uses = {names: f"use {each.partition(';')[0]}" for names, each in ours.items()}
    none = {names: f"mlxchat has none: {reason}" for reason, names in MISSING.items()}
    return {_key(name): hint for names, hint in (none | uses).items() for name in names.split(", ")}


def _key(name: str) -> str:
    """The name as people may vary it: `--num_ctx`, `num_ctx` and `-o num_ctx` are one."""
    return BEFORE_NAME.sub("", name).replace("_", "-")


def hint_for(name: str) -> str | None:
    """What to use instead of another program's option; None if no program has it."""
    return _hints().get(_key(name))


def option_for(name: str) -> str | None:
    """Our option's name without dashes, if that is what to use instead."""
    found = OPTION.match(hint_for(name) or "")
    return found[1] if found else None


def hint_for_command(word: str) -> str | None:
    """The same for a command of another program, such as `run`."""
    hints = (hint_for(f"{before}{word}") for before in ("mlx_lm.", "llm ", "ollama "))
    return next(filter(None, hints), None)
