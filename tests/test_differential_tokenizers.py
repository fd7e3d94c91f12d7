"""Tokenizer and template files, changed in the ways of published models, against transformers: the
same ids, the same text and the same prompt, or one line that says why not."""

import copy
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from mlxchat.errors import MlxchatError
from mlxchat.models import tokenizer_files
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.models.tokenizer_rules import CHOSEN, CLASSES
from mlxchat.text.tokens import ChatMessage, Tokenizer
from scripts.tiny_model import CHAT_TEMPLATE, byte_tokenizer
from tests.test_tokens import SPACES, SPECIAL, llama_decoder, trained

CORPUS = ["a sea and the ships on the sea, it's 1234 ships", "Hello there, tell me of the sea"] * 9
TEXTS = ["Hello, sea", "  two  ships ,\n\nand it's 1234 !", "café cafe\u0301 海 🙂", "end. ", "\tx"]
CHATS = [
    [("user", "Hello, the sea")],
    [("system", "Be kind."), ("user", "two  ships?")],
    [("user", "a"), ("assistant", "the ships"), ("user", "  1234 海")],
]
JINJA = CHAT_TEMPLATE.replace("<|im_start|>", "<|endoftext|>")
PARTS = JINJA.replace("message['content']", "message['content'][0]['text']")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 134515008\n"
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)

# A kind, a part of the files, a key ("" for several), and its values, each one change.
# `#name` stands for an object of that content.
VALUES = r"""
truncation | tokenizer | truncation | {"direction": "Right", "max_length": 4, "strategy":
 "LongestFirst", "stride": 0} {"direction": "Left", "max_length": 1, "strategy": "OnlyFirst",
 "stride": 0}
padding | tokenizer | padding | {"strategy": {"Fixed": 64}, "direction": "Left", "pad_id": 0,
 "pad_type_id": 0, "pad_token": "<|endoftext|>", "pad_to_multiple_of": null} {"strategy":
 "BatchLongest", "direction": "Right", "pad_id": 7, "pad_type_id": 0, "pad_token": "<new>",
 "pad_to_multiple_of": 8}
option | options | add_bos_token | true false null
option | options | add_eos_token | true false
option | options | add_prefix_space | true false null
option | options | legacy | true false
option | options | clean_up_tokenization_spaces | true false null
option | options | split_special_tokens | true false
option | options | model_max_length | 4 null 1e30
option | options | padding_side | "left" "middle"
option | options | "" | {"auto_map": {"AutoTokenizer": ["x.T", null]}} {"use_fast": false}
 {"fast_tokenizer_files": ["tokenizer.json"]} {"fix_mistral_regex": true} {"vocab_file": "/a"}
 {"backend": "python"} {"errors": "strict"} {"max_length": 4} {"extra_ids": 0}
class | options | tokenizer_class | "LlamaTokenizer" "LlamaTokenizerFast" "GPT2Tokenizer"
 "GPTNeoXTokenizerFast" "Qwen2Tokenizer" "GemmaTokenizer" "PreTrainedTokenizer" "TokenizersBackend"
 "CohereTokenizerFast" "CodeLlamaTokenizer" "OurOwnTokenizer" "BertTokenizer" "None" null 1
class | config | model_type | "qwen2" "qwen3" "qwen3_5" "gemma3_text" "mistral" "gpt2" "phi3"
 "cohere2" "deepseek_v3" "no_such_type"
class | config | "" | {"tokenizer_class": "GPT2Tokenizer"} {"model_name": "phi3"}
 {"auto_map": {"AutoConfig": "x.C"}, "model_type": "mine"}
special token | options | eos_token | #<|im_end|> {"content": "<|im_end|>"} null 7 #</s>
special token | options | pad_token | "<new>" #<new> "!" 7 null
special token | options | "" | {"image_token": "<image>", "boi_token": #<boi>}
special token | options | additional_special_tokens | ["<|im_start|>", "<new>"] [] [#<new>]
 [{"content": "<new>"}] ["<think>", "</think>"]
special token | options | extra_special_tokens | ["<new>", "<s>"] {"audio_token": "<audio>"} "<new>"
 {"audio_token": #<audio>}
special token | special_tokens_map.json | "" | {"eos_token": "<|endoftext|>"} {"eos_token": null}
 {"eos_token": {"content": "<|endoftext|>", "lstrip": true}, "pad_token": {"content": "<new>"}}
 {"additional_special_tokens": ["<|im_start|>", "<new>"]} {"bos_token": "<|im_start|>"}
 {"additional_special_tokens": [{"content": "<|im_start|>"}]} {"extra_special_tokens": ["<new>"]}
part | tokenizer | normalizer | {"type": "NFKC"} {"type": "Lowercase"} null
part | tokenizer | pre_tokenizer | {"type": "Digits", "individual_digits": true} null
 {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
part | tokenizer | "" | {"post_processor": null} {"decoder": {"type": "None"}} {"model": null}
part | model | "" | {"ignore_merges": true} {"unk_token": "<unk>"} {"fuse_unk": true}
 {"byte_fallback": true} {"merges": []} {"dropout": 0.0}
template | options | chat_template | null "" "{% if %}" 1 [] "Hello!" ["a"] "@PARTS" "@JINJA"
 [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "@JINJA"}]
 [{"name": "tool_use", "template": "a"}] {"default": "@JINJA", "tool_use": "a"}
 "{{ cls_token }}{{ bos_token }}@JINJA" "{% generation %}{{ dict(a=1) }}{% endgeneration %}@JINJA"
 "{{ messages | tojson(ensure_ascii=False) }}"
template | chat_template.json | chat_template | "@JINJA"
"""


class Files:
    """The files of a directory: JSON, or bytes."""

    def __init__(self, backend: Backend, model_type: str = "llama", **options: Any) -> None:
        self.tokenizer: Any = json.loads(backend.to_str())
        self.options = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE} | options
        self.config = {"model_type": model_type}
        self.other: dict[str, Any] = {}

    def part(self, name: str) -> dict[str, Any]:
        if name == "model":
            return self.tokenizer["model"]
        return self.other.setdefault(name, {}) if "." in name else getattr(self, name)

    def write(self, directory: Path) -> Path:
        """Write them, `other` over the rest."""
        files = {"tokenizer_config.json": self.options, "config.json": self.config}
        files["tokenizer.json"] = self.tokenizer
        for name, value in (files | self.other).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            (directory / name).write_bytes(data)
        return directory


Change = Callable[[Files], object]


def _values() -> dict[str, list[Change]]:
    """The changes of VALUES by kind."""
    kinds: dict[str, list[Change]] = {}
    text = re.sub(r"#([^\s,\]}]+)", r'{"content": "\1", "__type": "AddedToken"}', VALUES.strip())
    text = text.replace("@JINJA", _quoted(JINJA)).replace("@PARTS", _quoted(PARTS))
    for line in text.replace("\n ", " ").splitlines():
        kind, part, key, values = line.split(" | ", 3)
        while values:
            value, end = json.JSONDecoder().raw_decode(values)
            values = values[end:].strip()
            entry = value if key == '""' else {key: value}
            kinds.setdefault(kind, []).append(partial(_set, part, entry))
    return kinds


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]


def _set(part: str, entry: dict[str, Any], files: Files) -> None:
    files.part(part).update(copy.deepcopy(entry))


def _flagged(place: str, flags: dict[str, bool], files: Files) -> None:
    """Other flags of the added tokens, which stand in tokenizer.json, the options or both."""
    tokens = files.tokenizer["added_tokens"]
    if place == "tokenizer":
        for each in tokens:
            each.update(flags)
        return
    files.options["added_tokens_decoder"] = {
        str(each["id"]): {key: value for key, value in (each | flags).items() if key != "id"}
        for each in tokens
    }
    if place == "options":
        files.tokenizer["added_tokens"] = []


def _in_a_file(keep: bool, special: bool, shift: int, files: Files) -> None:
    """The added tokens in added_tokens.json, and in tokenizer.json if `keep`."""
    tokens = files.tokenizer["added_tokens"]
    files.other["added_tokens.json"] = {each["content"]: each["id"] + shift for each in tokens}
    if special:
        names = [each["content"] for each in tokens if each["special"]]
        files.options["additional_special_tokens"] = names
    if not keep:
        files.tokenizer["added_tokens"] = []


def _decoding(pre: str, decoder: Any, files: Files) -> None:
    level = json.loads(LEVEL.__getstate__())
    split = {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}
    both = {"sequence": [level], "split": [split, level | {"use_regex": False}]}
    if "ByteLevel" in json.dumps(files.tokenizer["pre_tokenizer"]):
        steps = {"type": "Sequence", "pretokenizers": both.get(pre)}
        files.tokenizer["pre_tokenizer"] = level if pre == "bare" else steps
    files.tokenizer["decoder"] = None if decoder is None else json.loads(decoder.__getstate__())


def kinds() -> Mapping[str, Sequence[Change]]:
    """Every change, by kind."""
    flags = [{"special": True}, {"special": False}, {"lstrip": True}, {"rstrip": True}]
    flags += [{"normalized": True}, {"single_word": True}, {}]
    others = (None, llama_decoder(), decoders.Metaspace(), decoders.Fuse(), decoders.WordPiece())
    read = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    read += ("added_tokens.json", "chat_template.json")
    broken = [*product(read, (POINTER, b"\xef\xbb\xbf{}", b'{"\xe9": 1}', b"[]", b"{", b""))]
    jinja, more = "chat_template.jinja", "additional_chat_templates/"
    utf8 = JINJA.encode()
    templates = [(jinja, data) for data in (utf8, b"\xef\xbb\xbf" + utf8, utf8 + b"\r\na\rb", b"")]
    templates += [(jinja, (JINJA + "é").encode(e)) for e in ("latin-1", "cp1252", "utf-16")]
    templates += [(f"{more}{name}.jinja", utf8) for name in ("default", "tool_use")]
    broken += [(jinja, POINTER), ("tokenizer.model", POINTER)]
    options, both = ("tokenizer", "options", "both"), (True, False)
    return _values() | {
        "added token": [partial(_flagged, *each) for each in product(options, flags)]
        + [partial(_in_a_file, *each) for each in product(both, both, (0, 1))],
        "decoder": [partial(_decoding, *e) for e in product(("bare", "sequence", "split"), others)],
        "broken file": [partial(_set, "other", {name: data}) for name, data in broken],
        "template file": [partial(_set, "other", {name: data}) for name, data in templates],
    }


@cache
def bases() -> dict[str, Files]:
    """The directories to change."""
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    names = {"bos_token": "<s>", "unk_token": "<unk>"}
    more = {"pad_token": "<|endoftext|>", "mask_token": "<s>"}
    ends = dict.fromkeys(("unk_token", "pad_token"), "<|endoftext|>")
    parts = {x: (each.pre_tokenizer, each.decoder, each.normalizer) for x, each in CLASSES.items()}
    llama = trained(CORPUS, None, llama_decoder(), SPACES, byte_fallback=True)
    gemma = trained(CORPUS, *parts["GemmaTokenizer"], byte_fallback=True)
    qwen = trained(CORPUS, *parts["Qwen2Tokenizer"])
    unigram = Backend(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    unigram.train_from_iterator(CORPUS, trainer)
    return {
        "bytes": Files(byte_tokenizer()),
        "byte-level": Files(trained(CORPUS, LEVEL, decoders.ByteLevel()), **fast),
        "qwen": Files(qwen, "qwen3", tokenizer_class="Qwen2Tokenizer", **ends),
        "gemma": Files(gemma, "gemma3_text", tokenizer_class="GemmaTokenizer", **names, **more),
        "llama": Files(llama, tokenizer_class="LlamaTokenizer", **names),
        "sentencepiece": Files(llama, **fast, **names),
        "unigram": Files(unigram, **fast, unk_token="<unk>"),
    }


@pytest.fixture(scope="module")
def auto() -> Any:
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    from transformers import AutoTokenizer

    return AutoTokenizer


def check_alike(directory: Path, auto: Any) -> bool:
    """Whether the directory is read as transformers reads it, rather than refused in one line."""
    config = json.loads((directory / "config.json").read_text())
    theirs = None
    with suppress(Exception):
        theirs = auto.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    reason = ""
    try:
        read = load_tokenizer(directory, config)
        assert theirs is not None, "transformers does not read this"
        check_text(read, theirs)
        for chat in CHATS:
            assert prompt_of(read, chat) == prompt_of_theirs(theirs, chat)
    except MlxchatError as error:
        reason = str(error)
    assert len(reason.splitlines()) <= 1
    return not reason


def check_text(read: Tokenizer, wanted: Any) -> None:
    is_level = "ByteLevel" in str(wanted.backend_tokenizer.pre_tokenizer)
    specials = set(wanted.all_special_ids)
    for text in TEXTS:
        ids = read.encode(text).tolist()
        assert ids == wanted.encode(text, add_special_tokens=False)
        decoded = wanted.decode(ids, skip_special_tokens=True)
        if is_level:
            # Whatever the decoder is, for text and constraints.
            tokens = wanted.convert_ids_to_tokens([id_ for id_ in ids if id_ not in specials])
            decoded = decoders.ByteLevel().decode(tokens)
            of_token = read.token_bytes()
            assert b"".join(of_token[id_] for id_ in ids if id_ not in specials).decode() == decoded
        assert read.decode(ids) == decoded
    opening = [id_ for id_ in wanted.encode("") if id_ not in read.eos_ids]
    assert read.raw_prompt("").ids.tolist() == opening
    if wanted.split_special_tokens or type(wanted).__name__ == "T5Tokenizer":
        return
    assert read.decode(specials) == ""
    for token in wanted.all_special_tokens:
        if len(token) > 1 and token != wanted.unk_token:
            assert wanted.convert_tokens_to_ids(token) not in read.encode(f"a{token}b")


def prompt_of(read: Tokenizer, chat: list[tuple[str, str]]) -> list[int]:
    system = chat[0][1] if chat[0][0] == "system" else None
    messages = [ChatMessage(*each) for each in chat[system is not None :]]
    return read.chat(messages, system).ids.tolist()


def prompt_of_theirs(wanted: Any, chat: list[tuple[str, str]]) -> list[int] | None:
    """Their prompt, with the content in parts if the template does not write it as text."""
    plain = [{"role": role, "content": content} for role, content in chat]
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in plain]
    for messages in (plain, parts):
        with suppress(Exception):
            if chat[-1][1].strip() in wanted.apply_chat_template(messages, tokenize=False):
                return wanted.apply_chat_template(
                    messages, add_generation_prompt=True, return_dict=False
                )
    return None


KINDS = kinds()


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(each, marks=pytest.mark.slow) for each in bases())]
)
def test_changed_files_are_read_as_transformers_does(kind: str, tmp_path: Path, auto: Any) -> None:
    """Each change to one of the directories; when slow, all of them, and pairs, to this one."""
    files = [bases()[kind]] if kind in bases() else [*bases().values()]
    changes = [(made,) for made in KINDS.get(kind, chain(*KINDS.values()))]
    if kind in bases():
        dice = random.Random(kind)
        changes += [(*one, *other) for one, other in (dice.sample(changes, 2) for _ in range(200))]
    found = Counter[bool]()
    for number, together in enumerate(changes):
        changed = copy.deepcopy(files[number % len(files)])
        # After the first change, nothing may be left for the second.
        with suppress(TypeError, AttributeError):
            for made in together:
                made(changed)
            found[check_alike(changed.write(tmp_path / str(number)), auto)] += 1
    assert found[True] > 0


def test_ordinary_directories_are_read_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing transformers takes longer than all else before the first token."""
    monkeypatch.setattr(tokenizer_files, "_read_with_transformers", None)
    for name in ("bytes", "byte-level", "qwen", "gemma"):
        load_tokenizer(bases()[name].write(tmp_path / name), bases()[name].config)


def test_transformers_says_nothing_and_runs_no_code_of_the_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = copy.deepcopy(bases()["llama"])
    files.options["auto_map"] = {"AutoTokenizer": [None, "own.Own"]}
    files.other["own.py"] = b"raise SystemExit('the code was run')"
    load_tokenizer(files.write(tmp_path), files.config)
    assert capfd.readouterr() == ("", "")


def test_the_classes_are_those_of_the_installed_transformers(auto: Any) -> None:
    from transformers.models.auto import tokenization_auto as table

    names, wrong = table.TOKENIZER_MAPPING_NAMES, table.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {kind: names[kind] for kind in wrong if names[kind] != "TokenizersBackend"} == CHOSEN
    for name, expected in CLASSES.items():
        built: Any = table.tokenizer_class_from_name(name)
        built = built()
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            assert str(getattr(built.backend_tokenizer, part)) == str(getattr(expected, part))
        assert built.special_tokens_map == expected.defaults
