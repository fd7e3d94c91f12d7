"""Templates of prompts: fields in braces, and nothing that is evaluated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.row_template import RowTemplate

TEXT = st.text(st.sampled_from("ab {}\n€"), max_size=12)


@given(texts=st.lists(TEXT, min_size=2, max_size=4), values=st.lists(TEXT, min_size=4, max_size=4))
def test_texts_come_out_as_they_were_and_values_are_never_searched(
    texts: list[str], values: list[str]
) -> None:
    """A value such as "{secret}" must not be filled in again."""
    names = [f"f{at}" for at in range(len(texts) - 1)]
    written = [text.replace("{", "{{").replace("}", "}}") for text in texts]
    source = written[0] + "".join(
        f"{{{name}}}{text}" for name, text in zip(names, written[1:], strict=True)
    )
    template = RowTemplate.parse(source)
    known = dict(zip(names, values, strict=False))
    pairs = zip(names, texts[1:], strict=True)
    assert template.fill(known) == texts[0] + "".join(known[n] + text for n, text in pairs)
    assert template.fields == tuple(names)


def test_a_name_is_a_name_and_nothing_is_evaluated() -> None:
    template = RowTemplate.parse("{text.__class__} {rows[0]} {text!r} {text:>9} { a b }")
    assert template.fields == ("text.__class__", "rows[0]", "text!r", "text:>9", "a b")
    with pytest.raises(KeyError):
        template.fill({"text": "x"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{text", "has a single {: write {{ for a literal brace"),
        ("text}", "has a single }: write }} for a literal brace"),
        ("{{{text}} {", "has a single }: write }} for a literal brace"),
        ("{ }{text}", "has an empty field: write its name in the braces, as in {text}"),
        ("Hello {{text}}", "must contain a field of the row, such as {text}"),
        ("", "must contain a field of the row, such as {text}"),
    ],
)
def test_a_malformed_template_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        RowTemplate.parse(source)
    assert str(error.value) == message
