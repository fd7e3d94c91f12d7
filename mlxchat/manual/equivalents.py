"""What other programs' options and commands are called here. The manual's page `switching` and the
hints in errors are made from these tables. Names that are the same here need no row.

Sources: `mlx_lm.generate` and `mlx_lm.chat` 0.32.2, `llm` 0.32, `ollama` 0.33, and `llama-cli` at
commit 0717955 of llama.cpp.
"""

import re

PAGE = "switching"

# By program: their names, separated by commas, and ours, with a remark after a semicolon.
OURS = {
    "mlx-lm": {
        "mlx_lm.generate": "mlxchat generate",
        "mlx_lm.chat": "mlxchat",
        "mlx_lm.manage": "mlxchat models list",
        "mlx_lm.cache_prompt": "mlxchat cache warm",
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
    },
    "llm": {
        "llm prompt": "mlxchat QUESTION, in quotes",
        "llm chat": "mlxchat",
        "llm models": "mlxchat models list",
        "llm logs": "mlxchat session list",
        "llm aliases": "mlxchat config edit",
        "llm templates": "mlxchat prompts list",
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
        "num_keep": "--keep",
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
    },
    "llama.cpp": {
        "-m": "--model; a .gguf file, too",
        "--hf-repo, -hf, -hfr": "--model; in MLX or Hugging Face format",
        "--lora": "--adapter",
        "--cache-list, -cl": "mlxchat models list",
        "-dev": "--device; auto, cpu or gpu",
        "--list-devices": "mlxchat version",
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
    },
}

# By program: why there is none, and their names.
NONE = {
    "mlx-lm": {
        "only text is read": "--image",
        "drafts come from the text itself (--lookup)": "--draft-model",
        "code in a model's repository is never run": "--trust-remote-code",
        "models without a template need mlxchat generate --raw": "--use-default-chat-template",
        "keys and values keep the precision of the weights": "--kv-bits, --kv-group-size",
        "activations keep the precision of the weights": "--quantize-activations, -qa",
        "mlxchat only runs models": "mlx_lm.convert, mlx_lm.lora, mlx_lm.fuse, mlx_lm.awq",
        "there is no server": "mlx_lm.server",
        "--min-p always keeps the likeliest token": "--min-tokens-to-keep",
    },
    "llm": {
        "only text is read": "--attachment, -a, --attachment-type, --at, -o image_detail",
        "models call no tools": "llm tools, --tool, -T, --functions, --tools-debug, --td",
        "models run on this machine": "llm keys, llm openai, --key",
        "a prompt has one place to fill in, and is written in the configuration": "--save, --param",
        "the system prompt is one text": "--system-fragment, --sf",
        "all sessions are in one database": "--database, -d",
        "a model is named, not searched for": "--query, -q",
        "text always appears as it is generated": "--no-stream, --async",
        "embeddings are not computed": "llm embed, llm embed-models, llm embed-multi",
        "schemas and documents are files": "llm schemas, llm fragments",
        "there are no plugins": "llm plugins, llm install, llm uninstall",
    },
    "ollama": {
        "--top-p and --min-p take its place": "typical_p",
        "penalties look at the last 20 tokens": "repeat_last_n",
        "there is no server": "--keepalive, ollama serve, ollama ps, ollama stop, ollama launch",
        "HF_ENDPOINT names another hub": "--insecure",
        "embeddings are not computed": "--truncate, --dimensions",
        "MLX chooses": "num_gpu, main_gpu, num_thread, use_mmap",
        "there are no Modelfiles, only options and configuration": "ollama create, ollama cp",
        "there are no accounts": "ollama signin, ollama signout, ollama login, ollama logout",
    },
    "llama.cpp": {
        "a template is always Jinja": "--jinja, --no-jinja",
        "the system prompt is one text": "--system-prompt-file, -sysf",
        "files are text in UTF-8": "--binary-file, -bf",
        "only text is read": "--image, --audio, --video, --image-min-tokens, --image-max-tokens",
        "models come from the Hub or the disk, with the token in HF_TOKEN": "--model-url, -mu",
        "one adapter at a time, as it was trained": "--lora-scaled, --control-vector",
        "penalties look at the last 20 tokens": "--repeat-last-n, --dry-penalty-last-n",
        "the order of the samplers is fixed": "--samplers, --sampler-seq, --sampling-seq",
        "other samplers take their place": "--top-n-sigma, --top-nsigma, --typical-p, --typical",
        "thoughts count towards --max-tokens": "--reasoning-budget, --reasoning-budget-message",
        "drafts come from the text itself (--lookup)": "--model-draft, -md, --spec-draft-model",
        "keys and values keep the precision of the weights": "--cache-type-k, -ctk, --cache-type-v",
        "positions follow from the model": "--rope-scaling, --rope-scale, --rope-freq-base",
        "MLX chooses": "--threads, -t, --gpu-layers, --n-gpu-layers, -ngl, --flash-attn, -fa",
        "several machines run under mlx.launch (machines)": "--rpc",
        "there is no server": "--server-base",
        "the shell writes special characters, such as $'\\n'": "--escape, -e, --no-escape",
        "Alt-Enter starts a new line": "--multiline-input, -mli",
        "colors follow the terminal and NO_COLOR": "--color, -co",
        "only the text is shown": "--special, -sp, --verbose-prompt, --display-prompt",
        "there is no log; mlxchat doctor checks the machine": "--verbose, -v, --log-verbose",
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
    use = [
        (name, program, f"use {ours.partition(';')[0]}")
        for program, rows in OURS.items()
        for names, ours in rows.items()
        for name in names.split(", ")
    ]
    none = [
        (name, program, f"mlxchat has none: {reason}")
        for program, rows in NONE.items()
        for reason, names in rows.items()
        for name in names.split(", ")
    ]
    return [*use, *none]


def as_markdown() -> str:
    """The tables for the manual."""
    lines: list[str] = []
    for program, rows in OURS.items():
        lines += [f"\n## From {program}\n", f"| {program} | mlxchat |", "|---|---|"]
        for names, ours in rows.items():
            name, semicolon, remark = ours.partition(";")
            lines.append(f"| {_code(names)} | `{name}`{semicolon}{remark} |")
        lines.append("\nMissing:\n")
        lines += [f"- {reason}: {_code(names)}" for reason, names in NONE[program].items()]
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
