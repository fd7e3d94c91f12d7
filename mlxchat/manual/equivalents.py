"""What other programs' options and commands are called here. The manual's page `switching` and the
hints in errors are made from these tables. Names that are the same here need no row.

Sources: `mlx_lm.generate` and `mlx_lm.chat` 0.32.2, `llm` 0.32, `ollama` 0.33, and `llama-cli` at
commit 0717955 of llama.cpp.
"""

import re

PAGE = "switching"
NONE = "none: "

# By program: their names, separated by commas, and ours, with a remark after a semicolon; or why
# there is none.
OURS = {
    "mlx-lm": {
        "mlx_lm.generate": "mlxchat generate",
        "mlx_lm.chat": "mlxchat",
        "mlx_lm.manage": "mlxchat models list",
        "mlx_lm.cache_prompt": "mlxchat generate -f FILE -n 1",
        "mlx_lm.benchmark": "mlxchat bench",
        "--adapter-path": "--adapter",
        "--prompt, -p": "mlxchat generate PROMPT, without an option",
        "--system-prompt": "--system",
        "--prefill-response": "--prefill",
        "--ignore-chat-template": "mlxchat generate --raw",
        "--chat-template-config": "--template-arg; once for each variable",
        "-m": "--max-tokens",
        "--extra-eos-token": "--stop",
        "--prompt-cache-file": "--prefix-cache; on by default, needs no file",
        "--verbose": "--stats",
        "q": "/exit",
        "r": "/clear",
        "h": "/help",
        "--image": "none: only text is read",
        "--draft-model": "none: drafts come from the text itself (--lookup)",
        "--trust-remote-code": "none: code in a model's repository is never run",
        "--use-default-chat-template": "none: models without a template need generate --raw",
        "--kv-bits, --kv-group-size": "none: keys and values keep the weights' precision",
        "--quantize-activations, -qa": "none: activations keep the weights' precision",
        "mlx_lm.convert, mlx_lm.lora, mlx_lm.fuse, mlx_lm.awq": "none: mlxchat only runs models",
        "mlx_lm.server": "none: there is no server",
        "--min-tokens-to-keep": "none: --min-p always keeps the likeliest token",
    },
    "llm": {
        "llm prompt": "mlxchat QUESTION, in quotes",
        "llm chat": "mlxchat",
        "llm models": "mlxchat models list",
        "llm logs": "mlxchat session list",
        "llm aliases": "mlxchat config edit",
        "llm templates": "mlxchat config show",
        "-m": "--model",
        "-s": "--system",
        "--fragment, -f": "--file; a file, folder or pattern, not an address",
        "--template, -t": "--prompt; a prompt in the configuration",
        "--continue, -c": "mlxchat --continue",
        "--conversation, --cid": "mlxchat --session",
        "--no-log, -n": "mlxchat --no-save",
        "--log": "mlxchat --save; on by default",
        "-x": "--extract",
        "--xl": "--extract-last",
        "-o temperature": "--temp",
        "-o max_tokens": "--max-tokens",
        "-o top_p": "--top-p",
        "-o frequency_penalty": "--frequency-penalty",
        "-o presence_penalty": "--presence-penalty",
        "-o stop": "--stop",
        "-o logit_bias": "--logit-bias",
        "-o seed": "--seed",
        "-o json_object": '--schema \'{"type": "object"}\'',
        "-o reasoning_effort": "--template-arg reasoning_effort=…",
        "-o logprobs": "mlxchat generate --logprobs",
        "--hide-reasoning, -R": "--think hide",
        "--usage, -u": "--stats",
        "--options": "mlxchat generate --help-all",
        "!multi, !end": 'Alt-Enter, or """ around the lines',
        "!edit": "/edit",
        "!fragment": "/file",
        "--attachment, -a, --attachment-type, --at, -o image_detail": "none: only text is read",
        "llm tools, --tool, -T, --functions, --tools-debug, --td": "none: models call no tools",
        "llm keys, llm openai, --key": "none: models run on this machine",
        "--save, --param": "none: a prompt has one place to fill in",
        "--system-fragment, --sf": "none: the system prompt is one text",
        "--database, -d": "none: all sessions are in one database",
        "--query, -q": "none: a model is named, not searched for",
        "--no-stream, --async": "none: text always appears as it is generated",
        "llm embed, llm embed-models, llm embed-multi": "none: embeddings are not computed",
        "llm schemas, llm fragments": "none: schemas and documents are files",
        "llm plugins, llm install, llm uninstall": "none: there are no plugins",
    },
    "ollama": {
        "ollama run": "mlxchat --model",
        "ollama pull": "mlxchat models pull",
        "ollama list, ollama ls": "mlxchat models list",
        "ollama show": "mlxchat models info",
        "ollama rm": "mlxchat models rm",
        "FROM": "--model",
        "ADAPTER": "--adapter",
        "SYSTEM": "--system",
        "TEMPLATE": "--chat-template; a file in Jinja",
        "/set system": "/system",
        "MESSAGE": "mlxchat session import",
        "--format": '--schema; --schema \'{"type": "object"}\' for json',
        "/set format": '/schema; /schema {"type": "object"} for json',
        "/set noformat": "/schema off",
        "/set think": "/think on",
        "/set nothink": "/think off",
        "--hidethinking": "--think hide",
        "temperature": "--temp",
        "top_k": "--top-k",
        "top_p": "--top-p",
        "min_p": "--min-p",
        "repeat_penalty": "--repetition-penalty",
        "presence_penalty": "--presence-penalty",
        "frequency_penalty": "--frequency-penalty",
        "seed": "--seed",
        "num_ctx": "--max-kv-size",
        "num_keep": "mlxchat generate --keep",
        "num_batch": "--prefill-step-size",
        "num_predict": "--max-tokens",
        "draft_num_predict": "--num-draft-tokens",
        "stop": "--stop",
        "--verbose": "--stats",
        "/set verbose": "/stats",
        "/set quiet": "--quiet",
        "/set parameter": "/set",
        "/show": "/set for the options, mlxchat models info for the model",
        "/load": "/load for a session, /model for a model",
        "/?": "/help",
        "typical_p": "none: --top-p and --min-p take its place",
        "repeat_last_n": "none: penalties look at the last 20 tokens",
        "--keepalive, ollama serve, ollama ps, ollama stop": "none: there is no server",
        "--insecure": "none: HF_ENDPOINT names another hub",
        "--truncate, --dimensions": "none: embeddings are not computed",
        "num_gpu, main_gpu, num_thread, use_mmap": "none: MLX chooses",
        "ollama create, ollama cp": "none: there are no Modelfiles, only options and configuration",
        "ollama signin, ollama signout, ollama login, ollama logout": "none: there are no accounts",
    },
    "llama.cpp": {
        "-m": "--model; a .gguf file, too",
        "--hf-repo, -hf, -hfr": "--model; in MLX or Hugging Face format",
        "--lora": "--adapter",
        "--cache-list, -cl": "mlxchat models list",
        "-dev": "--device; auto, cpu or gpu",
        "--list-devices": "mlxchat --version",
        "--prompt, -p": "mlxchat generate PROMPT, without an option",
        "-f": "--file; a document, before the prompt",
        "--system-prompt, -sys": "--system",
        "--chat-template-file": "--chat-template; a file",
        "--chat-template-kwargs": "--template-arg; once for each variable",
        "--no-conversation, -no-cnv": "mlxchat generate --raw",
        "--conversation, -cnv": "mlxchat, without a command",
        "--single-turn, -st": "mlxchat QUESTION, in quotes",
        "--ctx-size, -c": "--max-kv-size",
        "--context-shift, --no-context-shift": "mlxchat generate --overflow",
        "--batch-size, -b, --ubatch-size, -ub": "--prefill-step-size",
        "--cache-ram, -cram": "--prefix-cache-size; on the disk",
        "--predict, --n-predict, -n": "--max-tokens",
        "--reverse-prompt, -r": "--stop",
        "--ignore-eos": "mlxchat generate --ignore-eos",
        "--parallel, -np": "mlxchat batch --rows",
        "--temperature": "--temp",
        "--repeat-penalty": "--repetition-penalty",
        "-l": "--logit-bias; 15043=1, not 15043+1",
        "-s": "--seed; without it, random",
        "--grammar-file": "--grammar; Lark's format, not GBNF",
        "--json-schema, -j, --json-schema-file, -jf": "--schema",
        "--reasoning, -rea, --reasoning-format": "--think",
        "--reasoning-effort": "--template-arg reasoning_effort=…",
        "--spec-type, --spec-default": "--lookup; on by default",
        "--spec-draft-n-max, --draft-max, --draft-n, --draft": "--num-draft-tokens",
        "--output, --output-file, -o": "mlxchat generate --output",
        "--show-timings, --no-show-timings, --perf, --no-perf": "--stats",
        "--log-disable": "--quiet",
        "--simple-io": "mlxchat --plain",
        "--version": "mlxchat --version",
        "--completion-bash": "mlxchat --install-completion",
        "/regen": "/retry",
        "/read, /glob": "/file",
        "--jinja, --no-jinja": "none: a template is always Jinja",
        "--system-prompt-file, -sysf": "none: the system prompt is one text",
        "--binary-file, -bf": "none: files are text in UTF-8",
        "--image, --audio, --video, --image-min-tokens": "none: only text is read",
        "--model-url, -mu": "none: models come from the Hub or the disk",
        "--lora-scaled, --control-vector": "none: one adapter at a time, as it was trained",
        "--repeat-last-n, --dry-penalty-last-n": "none: penalties look at the last 20 tokens",
        "--samplers, --sampler-seq, --sampling-seq": "none: the order of the samplers is fixed",
        "--top-n-sigma, --top-nsigma, --typical-p": "none: other samplers take their place",
        "--reasoning-budget": "none: thoughts count towards --max-tokens",
        "--model-draft, -md": "none: drafts come from the text itself (--lookup)",
        "--cache-type-k, -ctk, --cache-type-v": "none: keys and values keep the weights' precision",
        "--rope-scaling, --rope-scale, --rope-freq-base": "none: positions follow from the model",
        "--threads, -t, --gpu-layers, --n-gpu-layers, -ngl, --flash-attn, -fa": "none: MLX chooses",
        "--rpc": "none: several machines run under mlx.launch (machines)",
        "--server-base": "none: there is no server",
        "--escape, -e, --no-escape": "none: the shell writes special characters, such as $'\\n'",
        "--multiline-input, -mli": "none: Alt-Enter starts a new line",
        "--color, -co": "none: colors follow the terminal and NO_COLOR",
        "--special, -sp, --verbose-prompt, --display-prompt": "none: only the text is shown",
        "--verbose, -v, --log-verbose": "none: there is no log; mlxchat doctor checks the machine",
    },
}

# Two dashes, or what llm writes before a model's option.
BEFORE_NAME = re.compile(r"^-\w |^--")
# The hint to use an option of ours.
OPTION = re.compile(r"use --([\w-]+)")
# What comes before a command's name.
COMMAND = re.compile(r"^(?:llm |ollama |mlx_lm\.)")


def hints() -> list[tuple[str, str, str]]:
    """Each of their names, with its program and the hint for an error."""
    return [
        (name, program, _hint_to(ours))
        for program, rows in OURS.items()
        for names, ours in rows.items()
        for name in names.split(", ")
    ]


def _hint_to(ours: str) -> str:
    if ours.startswith(NONE):
        return f"mlxchat has {ours}"
    return f"use {ours.partition(';')[0]}"


def as_markdown() -> str:
    """The tables for the manual."""
    lines: list[str] = []
    for program, rows in OURS.items():
        lines += [f"\n## From {program}\n", f"| {program} | mlxchat |", "|---|---|"]
        missing: list[str] = []
        for names, ours in rows.items():
            if ours.startswith(NONE):
                missing.append(f"- {ours.removeprefix(NONE)}: {_code(names)}")
            else:
                name, semicolon, remark = ours.partition(";")
                lines.append(f"| {_code(names)} | `{name}`{semicolon}{remark} |")
        lines += ["\nMissing:\n", *missing]
    return "\n".join(lines) + "\n"


def hint_for(name: str) -> str | None:
    """What to use instead of another program's option; None if no program has it.

    If programs mean different things by the name, the hint says which.
    """
    return _hint([each for each in hints() if _key(name) == _key(each[0])])


def option_for(name: str) -> str | None:
    """Our option's name without dashes, if that is what to use instead."""
    found = OPTION.match(hint_for(name) or "")
    return found[1] if found else None


def hint_for_command(word: str) -> str | None:
    """The same for a command of another program, such as `run`."""
    return _hint(
        [each for each in hints() if COMMAND.match(each[0]) and COMMAND.sub("", each[0]) == word]
    )


def _hint(found: list[tuple[str, str, str]]) -> str | None:
    by_hint: dict[str, list[str]] = {}
    for _, program, hint in found:
        by_hint.setdefault(hint, []).append(program)
    if len(by_hint) <= 1:
        return next(iter(by_hint), None)
    return "; ".join(f"from {' and '.join(programs)}, {hint}" for hint, programs in by_hint.items())


def _key(name: str) -> str:
    """The name as people may vary it: `--num_ctx`, `num_ctx` and `-o num_ctx` are one."""
    return BEFORE_NAME.sub("", name).replace("_", "-")


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))
