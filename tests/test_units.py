import pytest

from mlxchat.units import beginning, format_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (2_260_000_000, "2.26 GB"),
        (10**16, "10000 TB"),
    ],
)
def test_bytes_are_written_with_three_digits(size_bytes: int, text: str):
    assert format_bytes(size_bytes) == text


def test_only_the_beginning_of_a_long_text_is_shown() -> None:
    """Resuming a session whose last message contained a 20 MB file took minutes to draw."""
    assert beginning("abc", 3) == "abc"
    assert beginning("abcd" * 500, 3) == "abc … (2,000 characters)"
