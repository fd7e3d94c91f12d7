"""Stop texts: found across token boundaries, wherever tokens begin and end."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlxchat.text.reply_reader import StopTexts

short_text = st.text(alphabet="ab\n", max_size=12)
stop_texts = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


@given(short_text, stop_texts, st.lists(st.integers(0, 12)))
def test_the_text_before_the_first_stop_text_is_shown(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    matcher = StopTexts(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.add(piece)
        if matcher.found:
            break
    else:
        shown += matcher.finish()
    starts = [text.find(stop) for stop in stops if stop in text]
    assert matcher.found == bool(starts)
    if not starts:
        assert shown == text
    else:
        # Of several stop texts, the one completed first counts.
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert shown == text[: len(shown)]
        assert not any(stop in shown for stop in stops)
        assert len(shown) <= ends
