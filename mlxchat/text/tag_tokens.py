"""The tokens that spell tags, such as `<thinking>`, if a model writes them as ordinary text."""

from collections.abc import Collection, Iterable, Sequence

# Models may write these around a tag, within one token.
AROUND = (b"", b"\n", b"\n\n")


class TagTokens:
    """The tokens of a vocabulary, given the bytes of each; control tokens spell nothing."""

    def __init__(self, tokens: Sequence[bytes], control_ids: Collection[int]) -> None:
        self.tokens = tokens
        self._ids = {text: id_ for id_, text in enumerate(tokens) if id_ not in control_ids}
        self._ids.pop(b"", None)

    def continuing(self, tags: Iterable[str], written: bytes) -> set[int]:
        """The tokens that may follow `written`, the text so far, if it is to begin with a tag."""
        texts = {
            before + tag.encode() + after for tag in tags for before in AROUND for after in AROUND
        }
        rests = [text[len(written) :] for text in texts if text.startswith(written)]
        beginnings = {rest[:length] for rest in rests for length in range(1, len(rest) + 1)}
        return {self._ids[each] for each in beginnings if each in self._ids}

    def crossing(self, tag: str, written: bytes) -> list[int]:
        """The tokens with which the text, `written` so far, would continue after the tag with more
        than newlines."""
        end = tag.encode()
        found: list[int] = []
        for length in range(1, len(end)):
            if written.endswith(end[:length]):
                found += self._beginning_with(end[length:])
        return found

    def _beginning_with(self, rest: bytes) -> Iterable[int]:
        for text, id_ in self._ids.items():
            if text.startswith(rest) and text[len(rest) :].strip(b"\n"):
                yield id_
