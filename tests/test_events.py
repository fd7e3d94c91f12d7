"""JSON events: one object a line, whatever the text is."""

import json

from mlxchat.app.events import EventWriter
from mlxchat.engine.generate import Token
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer

# All that `str.splitlines` splits at.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def test_no_text_can_end_an_events_line() -> None:
    """A reply with U+0085 in it was two lines to a reader that splits as Python does."""
    events = EventWriter(Tokenizer(byte_tokenizer()), with_top=False)
    line = events.token(Token(f"a{SEPARATORS}é", 1))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == f"a{SEPARATORS}é"
