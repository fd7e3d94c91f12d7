"""Reply formats: the markers with which models separate thoughts from answers.

A model's format follows from its tokenizer and its chat template. `reply_reader` reads replies.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from tokenizers import AddedToken


class Place(Enum):
    """A place in a reply, as a marker begins it."""

    START = "start"
    THOUGHT = "thought"
    ANSWER = "answer"
    # The text up to BODY, which names what BODY begins.
    HEADER = "header"
    # Text to hide up to the next marker, such as the name of the section that has ended.
    CLOSING = "closing"
    # Of markers only: BODY, and one that ends the turn after an answer, and else begins nothing.
    BODY = "body"
    END = "end"


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The markers in a reply and what each begins.

    `opens` and `closes` enclose a thought that an answer follows; `label` follows the opening
    marker and belongs to it. In a format with channels, `begins` precedes an answer, and `thoughts`
    are the header words that announce a thought. `ends` are more end-of-turn tokens.
    """

    markers: Mapping[str, Place]
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
    opens: str, closes: str, *, label: str = "", others: Mapping[str, Place] | None = None
) -> ReplyFormat:
    markers = {opens: Place.THOUGHT, closes: Place.ANSWER, **(others or {})}
    return ReplyFormat(markers, opens, closes, label)


# A model without thoughts.
NO_THOUGHTS = ReplyFormat({}, "", "")
# Source: OpenAI's description of harmony. Commentary is addressed to tools.
HARMONY = ReplyFormat(
    {
        "<|start|>": Place.HEADER,
        "<|channel|>": Place.HEADER,
        "<|message|>": Place.BODY,
        "<|end|>": Place.END,
    },
    begins="<|channel|>final<|message|>",
    opens="<|channel|>analysis<|message|>",
    closes="<|end|><|start|>assistant<|channel|>final<|message|>",
    thoughts=("analysis", "commentary"),
    ends=("<|return|>", "<|call|>"),
)
SOLAR = ReplyFormat(
    {
        "<|begin|>": Place.HEADER,
        "<|think|>": Place.THOUGHT,
        "<|content|>": Place.ANSWER,
        "<|end|>": Place.END,
    },
    begins="<|content|>",
    opens="<|think|>",
    closes="<|end|><|begin|>assistant<|content|>",
)
# Source: mlx-lm 0.32.2's `_infer_structural_markers`.
XTML = ReplyFormat(
    {"<|open|>": Place.HEADER, "<|sep|>": Place.BODY, "<|close|>": Place.CLOSING},
    begins="<|open|>response<|sep|>",
    opens="<|open|>think<|sep|>",
    closes="<|close|>think<|sep|><|open|>response<|sep|>",
    thoughts=("think",),
    ends=("<|end_of_msg|>",),
)
# Source: mlx-lm 0.32.2's `chat_templates.muse_spark`. A header names the recipient; another message
# follows <|eom|>, even after an answer.
MUSE = ReplyFormat(
    {"<|start|>": Place.HEADER, "<|message|>": Place.BODY, "<|eom|>": Place.CLOSING},
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
        "<|START_RESPONSE|>": Place.ANSWER,
        "<|END_RESPONSE|>": Place.END,
        "<|START_TEXT|>": Place.ANSWER,
        "<|END_TEXT|>": Place.END,
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
    either = [*as_tokens, *(each for each in FORMATS if not each.has_channels)]
    mentioned = (each for each in either if any(text in template for text in each.needs))
    named = (each for each in as_tokens if not each.has_channels)
    return next(chain(mentioned, named), KIMI_VL if MOONSHOT in template else NO_THOUGHTS)


# What a marker that may be text begins, by place: a reply without a thought, with the closing tag.
_EXPECTED = {Place.START: (Place.THOUGHT, Place.ANSWER), Place.THOUGHT: (Place.ANSWER,)}


@dataclass(frozen=True, slots=True)
class Markers:
    """A format's markers by id; without any, its tags are searched for in the text.

    Those that are not `special` count as text where none is expected: models write about them.
    """

    format: ReplyFormat
    roles: Mapping[int, Place]
    special: frozenset[int] = frozenset()

    @property
    def tags(self) -> tuple[str, ...]:
        """The opening and closing tag, if they are not tokens."""
        is_text = not self.roles and self.format is not NO_THOUGHTS
        return (self.format.opens, self.format.closes) if is_text else ()

    def role(self, id_: int, place: Place) -> Place | None:
        """What the token begins at this place; None for text."""
        role = self.roles.get(id_)
        return role if id_ in self.special or role in _EXPECTED.get(place, ()) else None

    def having(self, *roles: Place) -> frozenset[int]:
        """The markers that have one of the roles."""
        return frozenset(id_ for id_, role in self.roles.items() if role in roles)

    def after(self, role: Place, place: Place, header: str) -> Place:
        """The place that a marker begins."""
        if role is Place.BODY and place is Place.HEADER:
            return Place.THOUGHT if self.format.is_thought(header) else Place.ANSWER
        return Place.START if role in (Place.BODY, Place.END) else role


def find_markers(added: Mapping[int, AddedToken], template: str) -> Markers:
    """The format, and its markers among the tokens added to a vocabulary."""
    ids = {token.content: id_ for id_, token in added.items()}
    format_ = infer_format(ids, template)
    named = format_.markers.items() if format_.needs <= ids.keys() else ()
    roles = {ids[text]: role for text, role in named if text in ids}
    special = {id_ for id_ in roles if added[id_].special or "|" in added[id_].content}
    return Markers(format_, roles, frozenset(special))
