"""Reply formats: the markers with which models separate thoughts from answers.

A model's format follows from its tokenizer and its chat template. `reply_reader` reads replies.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain


class Role(Enum):
    """What a marker begins."""

    THOUGHT = "thought"
    ANSWER = "answer"
    # The text up to BODY, which names what BODY begins.
    HEADER = "header"
    BODY = "body"
    # Nothing yet; after an answer, ends the turn.
    END = "end"
    # Text to hide up to the next marker, such as the name of the section that has ended.
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The markers in a reply and their roles.

    `opens` and `closes` enclose a thought that an answer follows; `label` follows the opening
    marker and belongs to it. In a format with channels, `begins` precedes an answer, and `thoughts`
    are the header words that announce a thought. `ends` are end-of-turn tokens that the model's
    files may not name.
    """

    markers: Mapping[str, Role]
    opens: str
    closes: str
    label: str = ""
    begins: str = ""
    thoughts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def has_channels(self) -> bool:
        return bool(self.begins)

    @property
    def needs(self) -> set[str]:
        """The markers without which a vocabulary has another format."""
        return {*self.markers, *self.ends[:1]} if self.has_channels else {self.opens, self.closes}

    def is_thought(self, header: str) -> bool:
        """Whether a message with this header is a thought."""
        return any(word in self.thoughts for word in header.split())


def _tags(
    opens: str, closes: str, *, label: str = "", others: Mapping[str, Role] | None = None
) -> ReplyFormat:
    markers = {opens: Role.THOUGHT, closes: Role.ANSWER, **(others or {})}
    return ReplyFormat(markers, opens, closes, label)


# A model without thoughts.
NO_THOUGHTS = ReplyFormat({}, "", "")
# Source: OpenAI's description of harmony. Commentary is addressed to tools.
HARMONY = ReplyFormat(
    {
        "<|start|>": Role.HEADER,
        "<|channel|>": Role.HEADER,
        "<|message|>": Role.BODY,
        "<|end|>": Role.END,
    },
    begins="<|channel|>final<|message|>",
    opens="<|channel|>analysis<|message|>",
    closes="<|end|><|start|>assistant<|channel|>final<|message|>",
    thoughts=("analysis", "commentary"),
    ends=("<|return|>", "<|call|>"),
)
SOLAR = ReplyFormat(
    {
        "<|begin|>": Role.HEADER,
        "<|think|>": Role.THOUGHT,
        "<|content|>": Role.ANSWER,
        "<|end|>": Role.END,
    },
    begins="<|content|>",
    opens="<|think|>",
    closes="<|end|><|begin|>assistant<|content|>",
)
# Source: mlx-lm 0.32.2's `_infer_structural_markers`.
XTML = ReplyFormat(
    {"<|open|>": Role.HEADER, "<|sep|>": Role.BODY, "<|close|>": Role.CLOSE},
    begins="<|open|>response<|sep|>",
    opens="<|open|>think<|sep|>",
    closes="<|close|>think<|sep|><|open|>response<|sep|>",
    thoughts=("think",),
    ends=("<|end_of_msg|>",),
)
# Source: mlx-lm 0.32.2's `chat_templates.muse_spark`. A header names the recipient; another message
# follows <|eom|>, even after an answer.
MUSE = ReplyFormat(
    {"<|start|>": Role.HEADER, "<|message|>": Role.BODY, "<|eom|>": Role.CLOSE},
    begins=" to=user<|message|>",
    opens=" to=self<|message|>",
    closes="<|eom|><|start|>assistant to=user<|message|>",
    thoughts=("to=self",),
    ends=("<|eot|>",),
)
COHERE = _tags(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    others={
        "<|START_RESPONSE|>": Role.ANSWER,
        "<|END_RESPONSE|>": Role.END,
        "<|START_TEXT|>": Role.ANSWER,
        "<|END_TEXT|>": Role.END,
    },
)
GEMMA = _tags("<|channel>", "<channel|>", label="thought\n")
# Moonshot's Kimi-VL and Kimi-Dev: neither templates nor vocabularies contain these tags, but
# Kimi-VL's template has the control token of Moonshot's own models.
KIMI_VL = _tags("◁think▷", "◁/think▷")
MOONSHOT = "<|im_middle|>"
FORMATS = (
    HARMONY,
    SOLAR,
    XTML,
    MUSE,
    GEMMA,
    COHERE,
    _tags("<think>", "</think>"),
    _tags("<thinking>", "</thinking>"),
    _tags("<longcat_think>", "</longcat_think>"),
    _tags("<seed:think>", "</seed:think>"),
    _tags("[THINK]", "[/THINK]"),
    _tags("<mm:think>", "</mm:think>"),
    _tags("<think:opensource>", "</think:opensource>"),
    _tags("<|thought_start|>", "<|thought_end|>"),
    _tags("<|think:start|>", "<|think:end|>"),
    KIMI_VL,
)


def infer_format(tokens: Collection[str], template: str) -> ReplyFormat:
    """The format of a model with these added tokens and this chat template.

    Markers that are tokens and appear in the template take precedence over tags that the template
    spells in plain text, and those over tags that are only tokens.
    """
    as_tokens = [each for each in FORMATS if each.needs <= set(tokens)]
    as_text = [each for each in FORMATS if not each.has_channels]
    mentioned = (
        each for each in (*as_tokens, *as_text) if any(text in template for text in each.needs)
    )
    named = (each for each in as_tokens if not each.has_channels)
    unnamed = KIMI_VL if MOONSHOT in template else NO_THOUGHTS
    return next(chain(mentioned, named), unnamed)
