"""Which part of an answer is its code block."""

import pytest

from mlxchat.text.extract import extract_code, is_settled

TWO = "First:\n\n```python\nprint(1)\n```\n\nthen\n\n```sh\nls -l\n```\nDone.\n"


def test_the_first_or_the_last_block_is_extracted() -> None:
    assert extract_code(TWO) == "print(1)\n"
    assert extract_code(TWO, last=True) == "ls -l\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\nx\n```", "x\n"),
        ("```\nx\n```   \nmore", "x\n"),
        ("~~~\nx\n~~~\n", "x\n"),
        ("~~~ python\nx\n~~~\n", "x\n"),
        ("```c++\nx\n```\n", "x\n"),
        ("``` bash\nx\n```\n", "x\n"),
        ('```python title="a.py"\nx\n```\n', "x\n"),
        ("```{.python .numberLines}\nx\n```\n", "x\n"),
        ("```\n\n```\n", "\n"),
        ("```\n```\n", ""),
        ("```sh\r\nls\r\n```\r\n", "ls\r\n"),
        ("```\n  indented\n\ttab\n```\n", "  indented\n\ttab\n"),
    ],
)
def test_forms_of_a_block(text: str, code: str) -> None:
    assert extract_code(text) == code


def test_a_longer_fence_contains_shorter_ones() -> None:
    inner = "```\nx\n```\n"
    assert extract_code(f"````md\n{inner}````\n") == inner
    assert extract_code(f"~~~\n{inner}~~~\n") == inner
    assert extract_code("```\nx\n````\n") == "x\n"


def test_an_unclosed_block_extends_to_the_end() -> None:
    """An answer cut off by its length still has nothing but code in it."""
    assert extract_code("Here:\n```sh\nls\necho") == "ls\necho"
    assert extract_code("```\nx\n```\n```sh\nls", last=True) == "ls"
    assert extract_code("```") == ""


def test_a_text_that_is_cut_off_is_settled_if_its_first_block_is_closed() -> None:
    closed, open_ = "Sure:\n```\nls\n```\nOr", "Sure:\n```\nls\n"
    assert is_settled(closed)
    assert not is_settled(open_)
    assert not is_settled("```\nls\n```")
    assert extract_code("```\nls\n``` x") == "ls\n``` x"
    assert not is_settled("Sure:")
    assert not is_settled(closed, last=True)
