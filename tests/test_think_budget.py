"""`--think-budget`: a thought that has spent it is closed in the model's own format, and read, kept
and continued like any other, however its tokens are computed."""

import json
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.app import opening
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import windows
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.budget import GRACE, Budget, without_effect
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.model import Model
from mlxchat.request.written import thinking_variables
from mlxchat.settings import GenerationSettings
from mlxchat.text.reply_reader import Reader, joined
from mlxchat.text.tokens import CUT_OFF, Prompt
from scripts.tiny_model import CHAT_TEMPLATE
from tests.conftest import build_random_model, examples
from tests.in_process import run_in_process
from tests.json_events import events_of
from tests.reply_formats import FORMATS, HARMONY, TAGGED
from tests.scripted_model import CONFIG, Scripted
from tests.test_drafting import check_same_state, drafter_after

ALL = FORMATS | TAGGED


class Thinker:
    """A model that writes a format's reply with this thought; after a thought that is closed
    elsewhere, the text of `rest` for that closing."""

    def __init__(self, name: str, thought: str, *rest: str) -> None:
        scripted, self.tokenizer = ALL[name], ALL[name].tokenizer()
        reply = scripted.reply.replace(scripted.thought, thought)
        closes = self.tokenizer.replies.format.closes
        self.script, self.closes, *self.rest = (
            scripted.backend().encode(text, add_special_tokens=False).ids
            for text in (reply, closes, *(rest or [reply.partition(closes)[2]]))
        )
        self.prompt = self.tokenizer.prompt("hello", variables=thinking_variables(True)).ids
        self.text: dict[int, int] = {}

    def after(self, reply: list[int]) -> int:
        """The token after these of a reply."""
        if reply == self.script[: len(reply)]:
            return [*self.script, 0][len(reply)]
        ends = [n for n in range(len(reply) + 1) if reply[:n][-len(self.closes) :] == self.closes]
        for begun in range(len(self.closes) - 1, 0, -1):
            if not ends and reply[-begun:] == self.closes[:begun]:
                return self.closes[begun]
        rest = self.rest[min(len(ends), len(self.rest)) - 1]
        return [*rest, 0][min(len(reply) - (ends or [0])[-1], len(rest))]

    def restored(self, reader: Reader) -> Reader:
        again = self.tokenizer.reader(self.prompt)
        again.restore(reader.state)
        return again

    def write(self, budget: int, begun: list[int]) -> tuple[list[int], int, str, str]:
        """A reply without a network, of which some is begun: its ids, how many of them are its
        thought's own, its thought and its answer. Each token is read by another process."""
        asked = np.array([*self.prompt, *begun], np.int32)
        reader, *said = self.tokenizer.reader_after(Prompt(asked, written=len(begun)))
        closings, ends = self.tokenizer.closings, self.tokenizer.eos_ids
        assert closings is not None
        limit, ids, pieces = Budget(budget, reader.fork(), closings, asked), [*begun], []
        while (id_ := [*limit.forced, self.after(ids)][0]) not in ends and not reader.ends(id_):
            limit.accept(id_)
            pieces += reader.add(id_, counts=not limit.was_forced)
            ids.append(id_)
            assert len(ids) < 200
            reader, forced = self.restored(reader), [*limit.forced]
            limit = Budget(budget, reader.fork(), closings, np.array(ids))
            limit.forced = deque(forced)
        more = joined([*pieces, *reader.finish()])
        return ids, reader.thought_tokens, said[0] + more[0], said[1] + more[1]

    @cached_property
    def model(self) -> Model:
        network, thinker = build_random_model(CONFIG), self

        class Scripting(type(network)):
            def __call__(self, inputs: mx.array, *args: Any, **options: Any) -> mx.array:
                start, before = len(thinker.prompt), windows(options["cache"])[0].total
                logits = super().__call__(inputs, *args, **options)
                text, wanted = thinker.text, list[list[int]]()
                for end, id_ in enumerate(np.array(inputs)[0].tolist(), before + 1):
                    text[end - 1] = id_
                    wanted.append([thinker.after([text[n] for n in range(start, end)])])
                chosen = mx.arange(logits.shape[-1]) == mx.array(wanted)
                return mx.where(chosen, 0.0, logits * 0 - 1e4)

        Scripting.__name__, Scripting.__module__ = type(network).__name__, type(network).__module__
        network.__class__ = Scripting
        return Model("tiny", network, self.tokenizer, mx.float32, 4096, {})

    def begin(self, budget: int, window: int | None = None, **how: Any) -> Reply:
        chosen = GenerationSettings(think_budget=budget, max_tokens=200, logprobs=0)
        how |= {"reader": self.tokenizer.reader(self.prompt), "settings": chosen}
        return Reply(self.model, self.prompt, make_cache(self.model.network, window, 4), **how)


# Characters of one to four bytes, and the first of a tag's.
TEXTS = st.text("aé漢🦆\n<", max_size=9)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=examples(9))
@given(text=TEXTS, budget=st.integers(0, 30), stopped=st.integers(0, 99))
def test_a_thought_ends_at_its_budget_and_the_answer_follows(
    name: str, text: str, budget: int, stopped: int
) -> None:
    """In each format. No character is cut, nor a tag that has begun; a reply that was stopped
    anywhere, even within the words that close its thought, continues the same."""
    thinker, whole = Thinker(name, text), text.encode()
    ids, tokens, thought, answer = thinker.write(budget, [])
    kept, replies = whole[:tokens].decode(), thinker.tokenizer.replies
    assert answer == "Yes!"
    if ids == thinker.script[: len(ids)]:
        assert thought == text
        assert len(whole) < budget or "<" in text or not text
    else:
        words = CUT_OFF + "\n" * (not replies.format.has_channels)
        assert thought.startswith(kept)
        # Newlines that are there already are not repeated.
        assert thought.removeprefix(kept) in ((words, words[1:], words[2:]) if kept else ("",))
        assert budget <= tokens <= min(budget + (GRACE if "<" in text else 3), len(whole))
    segments = replies.segments(np.array(ids, np.int32).tobytes(), answer, thought)
    assert all(each.ids is not None for each in segments)
    again = thinker.write(budget, ids[: stopped % len(ids)])
    assert (again[0], *again[2:]) == (ids, thought, answer)


@pytest.mark.parametrize("name", ALL)
def test_a_thought_that_is_reopened_is_closed_at_once(name: str) -> None:
    """And a closing tag that the model writes once more is not part of the answer."""
    format_ = ALL[name].tokenizer().replies.format
    again, twice = f"\n\n{format_.opens}{format_.label}", [format_.closes]
    if format_.has_channels:
        again, twice = format_.closes.replace(format_.begins, format_.opens), []
    wait, end = again.removeprefix("<|end|>") + "Wait", ALL[name].reply.partition(format_.closes)[2]
    _, tokens, thought, answer = Thinker(name, "Hm, duck?", wait, wait, *twice, end).write(4, [])
    assert (thought.count(CUT_OFF), "Wait" in thought, answer, tokens) == (1, False, "Yes!", 4)


@settings(max_examples=examples(4))
@given(name=st.sampled_from([*ALL]), text=TEXTS, budget=st.integers(0, 9))
def test_the_reply_is_the_same_however_it_is_computed(name: str, text: str, budget: int) -> None:
    """One by one, with drafts, and in a window that evicts; the cache is as if the model had
    written the same of its own accord. And a constraint begins after the thought."""
    thinker = Thinker(name, text)
    ids = thinker.write(budget, [])[0]
    known = [*thinker.script, *thinker.script]
    plain, drafted = thinker.begin(budget), thinker.begin(budget, drafter=drafter_after(known))
    narrow = thinker.begin(budget, 40, drafter=drafter_after(known))
    tokens, *others = [[*generate(reply)] for reply in (plain, drafted, narrow)]
    assert others == [tokens, tokens]
    assert [each.id for each in tokens if each.id is not None] == ids
    assert (plain.finish_reason, plain.stats.generated_tokens) == ("stop", len(ids))
    tokenizer, prompt = thinker.tokenizer, Prompt(thinker.prompt)
    choice = Constrained(Constraint.from_choices(["left", "right"]), tokenizer, prompt)
    chosen = thinker.begin(budget, constrained=choice)
    assert "".join(each.text for each in generate(chosen) if not each.thought) in ("left", "right")
    thinker.script = [*ids, thinker.after(ids)]
    alike = thinker.begin(-1)
    assert [each[:2] for each in generate(alike)] == [each[:2] for each in tokens]
    for reply in (plain, drafted):
        check_same_state(reply.cache, alike.cache, 1e-3)


def test_the_program_reports_what_was_cut_off_and_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words that close it end no text. A model without thoughts ignores the budget."""
    model, words = Thinker("harmony", "Hm, duck?").model, f"Hm, {CUT_OFF}"
    monkeypatch.setattr(opening, "load_directory", lambda *_, **__: model)
    given = ["-m", str(HARMONY.write(tmp_path / "harmony")), "--think-budget", "4"]
    done = run_in_process("generate", "--json", "--stop", "\n\n", *given, "hello")
    last = events_of(done.stdout)[-1]
    assert (last["thought"], last["text"]) == (words, "Yes!")
    assert (last["thought_tokens"], last["thought_cut"]) == (4, True)
    shown = run_in_process("chat", "--stats", *given, "hello")
    assert shown.stdout == f"<think>{words}</think>\n\nYes!\n"
    assert "thought 4 tokens, cut off" in shown.stderr
    night = tmp_path / "night"
    saving = ["--checkpoint", str(night), "--checkpoint-every", "4", "--think", "on", "-n", "30"]
    strongly = ["--template-arg", "reasoning_effort=strong"]
    run_in_process("generate", *saving, *given, *strongly, "hello")
    assert (night / "output.txt").read_text() == f"<think>{words[:20]}"
    run_in_process("generate", "--resume", str(night), "-n", "200")
    assert json.loads((night / "run.json").read_text())["request"]["think"] == "on"
    assert f"{(night / 'output.txt').read_text()}\n" == shown.stdout
    refused = run_in_process("generate", "--raw", *given[:-1], "0", "hello")
    assert (refused.returncode, "--think-budget needs" in refused.stderr) == (2, True)
    model = Scripted(CHAT_TEMPLATE, (), "Yes!<|im_end|>").model()
    ignored = run_in_process("generate", *given, "hello")
    assert (ignored.stdout, ignored.stderr.count("--think-budget has no effect")) == ("Yes!\n", 1)
    assert without_effect(GenerationSettings(min_tokens=2, max_tokens=1), model.tokenizer)
