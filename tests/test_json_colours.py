"""JSON in colours, however it is cut into pieces."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.terminal.json_colours import KEY, NULL, NUMBER, RESET, STRING, JsonColours

TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@given(TEXTS, st.integers(1, 5))
def test_any_json_stays_the_same_but_for_colours(value: object, size: int) -> None:
    text = json.dumps(value, ensure_ascii=True)
    colours = JsonColours()
    shown = [colours.add(text[i : i + size]) for i in range(0, len(text), size)]
    assert without_colours("".join(shown)) == text
    for piece in shown:
        assert piece.count("\x1b[") == 2 * piece.count(RESET), "a piece ends without a colour"


def test_keys_strings_numbers_and_null_differ() -> None:
    shown = JsonColours().add('{"a": ["b", -1.5e3, null, true], "c\\"": {"d": "e:{"}}')
    for part, colour in {
        '"a"': KEY,
        '"b"': STRING,
        "-1.5e3": NUMBER,
        "null": NULL,
        "true": NUMBER,
        '"c\\""': KEY,
        '"d"': KEY,
        '"e:{"': STRING,
    }.items():
        assert f"{colour}{part}{RESET}" in shown


@pytest.mark.parametrize("size", [1, 3, 100])
def test_thoughts_have_no_colours(size: int) -> None:
    thought = '<think>\nIs "a" a key? {"x"\n</think>\n\n'
    text = f'{thought}{{"a": 1}}'
    colours = JsonColours()
    shown = "".join(colours.add(text[i : i + size]) for i in range(0, len(text), size))
    assert shown.startswith(thought)
    assert without_colours(shown) == text
    assert f'{KEY}"' in shown
