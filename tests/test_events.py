"""JSON events: one object per line, whatever the text."""

import json

from mlxchat.app.events import EventWriter
from mlxchat.engine.reply import Token
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer

# Everything `str.splitlines` splits at.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def test_no_text_can_break_the_line_of_an_event() -> None:
    """A reply with U+0085 became two lines for a reader that splits as Python does."""
    events = EventWriter(Tokenizer(byte_tokenizer()), with_top=False)
    line = events.token(Token(f"a{SEPARATORS}é", 1))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == f"a{SEPARATORS}é"
