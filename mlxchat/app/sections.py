"""Reads large documents section by section: an answer from each, then a prompt with the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx

from mlxchat.app.opening import Loaded
from mlxchat.app.overflow import room_for_prompt
from mlxchat.app.section_answers import NOTHING, Answered, SectionAnswers
from mlxchat.engine.brief import MAX_TEMP, write_brief
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.reply import Reply
from mlxchat.errors import CacheError
from mlxchat.passages.quote import LineRange, heading
from mlxchat.passages.split import Span, split
from mlxchat.request import Request
from mlxchat.request.template_args import thinking_variables
from mlxchat.settings import GenerationSettings
from mlxchat.text.document import Document
from mlxchat.text.documents import SEPARATOR
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Progress, count

# The share of the window that the answer from a section may have, and its tokens.
ANSWER_SHARE = 8
MAX_ANSWER_TOKENS = 512
MIN_ANSWER_TOKENS = 32
# The share of the window that earlier answers may have in the prompt about the next section.
EARLIER_SHARE = 8
# A section's minimum tokens.
MIN_SECTION_TOKENS = 64
# A first estimate, for the progress.
BYTES_A_TOKEN = 4
# Text that is encoded in pieces may have more tokens than in one.
SPARE_TOKENS = 8
EARLIER = "Answers from the sections before:\n"
ANSWERS = "Answers from the sections of a long text, in order:"
NO_ANSWERS = "Nothing in the text is about this."


class SectionReader:
    """Reads the documents; `kept` has the answers of an earlier run that was stopped. After the
    last answer, `prompt` is set unless the reading was stopped; then `so_far` is what there is.

    Raises CacheError if the window has no room for the question and a section.
    """

    def __init__(
        self, request: Request, documents: Sequence[Document], loaded: Loaded, kept: SectionAnswers
    ) -> None:
        self.prompt: Prompt | None = None
        self._request = request
        self._documents = documents
        self._loaded = loaded
        self._kept = kept
        self._answers: list[Answered] = []
        assert request.prompt is not None
        assert loaded.settings.max_kv_size is not None
        self._question: str = request.prompt
        self._window: int = loaded.settings.max_kv_size
        self._limit = max(MIN_ANSWER_TOKENS, min(self._window // ANSWER_SHARE, MAX_ANSWER_TOKENS))
        self._earlier = self._window // EARLIER_SHARE
        bare = max(
            len(self._ids(text)) for text in (self._about_section("", []), self._about_answers([]))
        )
        self._room = self._window - bare - self._limit - self._earlier - SPARE_TOKENS
        place = max(self._count(heading(_widest(each))) for each in documents)
        self._room -= place
        # Two answers must fit, to be combined.
        if self._room < max(MIN_SECTION_TOKENS, 2 * (self._limit + place + SPARE_TOKENS)):
            raise CacheError(
                f"the question and the template take {bare:,} tokens, so the window's "
                f"{self._window:,} have no room for a section of the document: "
                "--max-kv-size must be larger"
            )

    def read(self, should_stop: ShouldStop, on_progress: Progress) -> Iterator[Answered]:
        """Yield the answer from each section, as soon as it is there."""
        known = self._kept.read()
        total_bytes = sum(each.size_bytes for each in self._documents)
        done_bytes = done_tokens = 0
        on_progress(0, total_bytes // BYTES_A_TOKEN)
        for place, text, size_bytes in self._sections():
            answer = known.pop(0) if known and known[0].place == place else None
            if answer is None:
                known = []
                written = self._written(text, should_stop)
                if written is None:
                    return
                answer = Answered(place, written)
                self._kept.add(answer)
            self._answers.append(answer)
            yield answer
            done_bytes += size_bytes
            done_tokens += self._count(text)
            # The bar counts tokens, and how many there will be is an estimate.
            estimate = done_tokens * total_bytes // max(done_bytes, 1)
            on_progress(done_tokens, max(estimate, done_tokens + (done_bytes < total_bytes)))
        self._finish(should_stop)

    def so_far(self) -> str:
        """The answers from the sections that were read, with their places."""
        return SEPARATOR.join(self._quoted())

    def stopped_at(self) -> str:
        """How far a reading came that was stopped."""
        read = f"stopped after reading {count(len(self._answers), 'section')}"
        return f"{read}; the same command continues" if self._kept.is_kept else read

    def end(self) -> None:
        """The prompt has been answered: the answers are not needed again."""
        self._kept.discard()

    def _finish(self, should_stop: ShouldStop) -> None:
        """Combine the answers until they fit in one prompt, which becomes `prompt`."""
        limit = room_for_prompt(self._request, self._window)
        answers = self._quoted()
        while True:
            text = SEPARATOR.join(answers) or NO_ANSWERS
            final = SEPARATOR.join([ANSWERS, text, self._question])
            prompt = self._loaded.model.tokenizer.prompt(
                final, self._request.system, variables=self._request.variables()
            )
            if len(prompt.ids) <= limit:
                self.prompt = prompt
                return
            combined: list[str] = []
            for group in self._groups(answers):
                answer = self._answer(self._about_answers(group), should_stop)
                if answer is None:
                    return
                combined += [answer] if answer else []
            answers = combined

    def _written(self, text: str, should_stop: ShouldStop) -> str | None:
        """The model's answer from a section; None if it was stopped."""
        before = self._before()
        answer = self._answer(self._about_section(text, before), should_stop)
        if answer is None or not any(_copies(answer, each) for each in before):
            return answer
        # A small model copies what it has said, and then does so for every section that follows.
        return self._answer(self._about_section(text, []), should_stop)

    def _sections(self) -> Iterator[tuple[LineRange, str, int]]:
        """Sections of the documents that fit in the window, with their bytes."""
        for document in self._documents:
            spans: list[Span] = []
            tokens = 0
            for span, data in split(document):
                cost = self._count(data.decode("utf-8", "replace")) + 2
                if spans and tokens + cost > self._room:
                    yield from self._section(document, spans)
                    spans, tokens = [], 0
                spans.append(span)
                tokens += cost
            yield from self._section(document, spans)

    def _section(
        self, document: Document, spans: Sequence[Span]
    ) -> Iterator[tuple[LineRange, str, int]]:
        """The section of these passages; in pieces if it is a single one and too long."""
        first, last = spans[0], spans[-1]
        place = LineRange(document.name, first.first_line, last.last_line)
        data = document.bytes_at(first.start, last.end - first.start)
        pieces = self._pieces(data.decode("utf-8", "replace").strip())
        for piece in pieces:
            yield place, heading(place) + piece, len(data) // len(pieces)

    def _pieces(self, text: str) -> list[str]:
        if len(text) < 2 or self._count(text) <= self._room:
            return [text]
        half = len(text) // 2
        return [*self._pieces(text[:half]), *self._pieces(text[half:])]

    def _quoted(self) -> list[str]:
        return [each.quoted() for each in self._answers if each.says_something]

    def _groups(self, answers: Sequence[str]) -> Iterator[list[str]]:
        """Neighbouring answers, as many as fit in one prompt."""
        group: list[str] = []
        tokens = 0
        for answer in answers:
            cost = self._count(answer + SEPARATOR) + SPARE_TOKENS
            if group and tokens + cost > self._room:
                yield group
                group, tokens = [], 0
            group.append(answer)
            tokens += cost
        if group:
            yield group

    def _before(self) -> list[str]:
        """The latest answers, as many as have room."""
        found: list[str] = []
        room = self._earlier - self._count(EARLIER)
        for answer in reversed(self._answers):
            if answer.says_something:
                room -= self._count(answer.text) + 2
                if room < 0:
                    break
                found.insert(0, answer.text)
        return found

    def _about_section(self, text: str, before: Sequence[str]) -> str:
        """What the model is asked about a section of a document, after the answers `before`."""
        earlier = EARLIER + "\n".join(before) if before else ""
        asked = (
            "Answer from this section of the text alone, in a few sentences. If it does not say, "
            f"write: {NOTHING}.\n{self._question}"
        )
        return SEPARATOR.join(filter(None, [text, earlier, asked]))

    def _about_answers(self, group: Sequence[str]) -> str:
        """What the model is asked about answers that do not fit in one prompt with all others."""
        asked = f"Combine these answers into one, in a few sentences.\n{self._question}"
        return SEPARATOR.join([ANSWERS, *group, asked])

    def _answer(self, text: str, should_stop: ShouldStop) -> str | None:
        """The model's answer; None if it was stopped. Raises what generating raises."""
        loaded = self._loaded
        ids = self._ids(text)
        sampling = replace(loaded.sampling, temp=min(loaded.sampling.temp, MAX_TEMP))
        reply = Reply(
            loaded.model,
            ids,
            loaded.model.make_cache(self._window, loaded.settings.keep),
            sampling=sampling,
            settings=GenerationSettings(max_tokens=self._window - len(ids)),
            reader=loaded.model.tokenizer.reader(ids),
        )
        step_size = loaded.settings.prefill_step_size
        answer = write_brief(reply, self._limit, should_stop, step_size=step_size)
        mx.clear_cache()
        return None if reply.finish_reason == "interrupted" else answer

    def _ids(self, text: str) -> TokenIds:
        variables = {**self._request.variables(), **thinking_variables(False)}
        tokenizer = self._loaded.model.tokenizer
        return tokenizer.prompt(text, self._request.system, variables=variables).ids

    def _count(self, text: str) -> int:
        return len(self._loaded.model.tokenizer.encode(text, begins=False))


def _copies(answer: str, earlier: str) -> bool:
    """Whether the answer only repeats an earlier one, or a part of it. One that goes on after the
    earlier one says something new."""
    answer, earlier = (" ".join(text.casefold().split()) for text in (answer, earlier))
    return answer != "" and (answer in earlier or answer.endswith(earlier))


def _widest(document: Document) -> LineRange:
    """The place in the document with the longest name."""
    return LineRange(document.name, document.size_bytes, document.size_bytes)
