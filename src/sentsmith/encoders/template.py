"""A prompt as a template, filled with a sentence and cut so that its end survives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentsmith.errors import InputError, SettingsError

REPRESENTATIVE_WORD = 'The representative word for sentence {sentence} is:"'
"""The prompt of BeLLM's code; the paper's leaves out "sentence". The quotation mark at the end is meant."""

IN_CONTEXT = 'Given the context {condition}, summarize the sentence {sentence} in one word:"'
"""The prompt of BeLLM's conditional task."""

_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS = ("sentence", "condition")

Item = str | Sequence[str]
"""What a template takes: a sentence; or (sentence, condition), if it has a place for the condition."""


@dataclass(frozen=True)
class Filled:
    """A filled template.

    Attributes:
        text: The whole of it.
        spans: For each field, where its text begins and ends.
    """

    text: str
    spans: Mapping[str, tuple[int, int]]


class Template:
    """A text with the place ``{sentence}``, and ``{condition}`` if it is conditional.

    Args:
        text: For example :data:`REPRESENTATIVE_WORD`.

    Raises:
        SettingsError: ``{sentence}`` is missing, a field is unknown or stands twice.
    """

    def __init__(self, text: str) -> None:
        fields = _FIELD.findall(text)
        unknown = [name for name in fields if name not in _FIELDS]
        if unknown or fields.count("sentence") != 1 or fields.count("condition") > 1:
            raise SettingsError(
                f"template {text!r}: it needs {{sentence}} once, may have {{condition}} once, and no other {{field}}"
            )
        self.text = text
        self.fields = tuple(fields)

    def values(self, item: Item) -> dict[str, str]:
        """Return the text of each field.

        Raises:
            InputError: The item is a sentence and the template wants a condition too, or the reverse; or no text.
        """
        if "condition" in self.fields:
            if isinstance(item, str) or not isinstance(item, Sequence) or len(item) != 2 or not _texts(item):
                raise InputError(
                    f"the model's prompt {self.text!r} wants (sentence, condition), not {_shown(item)}; a model "
                    "without {condition} in its prompt takes sentences"
                )
            return {"sentence": item[0], "condition": item[1]}
        if not isinstance(item, str):
            raise InputError(
                f"the model's prompt {self.text!r} has no {{condition}}, so it takes sentences, not {_shown(item)}"
            )
        return {"sentence": item}

    def fill(self, values: Mapping[str, str]) -> Filled:
        """Return the template with its fields filled."""
        text, spans, end = "", {}, 0
        for match in _FIELD.finditer(self.text):
            text += self.text[end : match.start()]
            value = values[match[1]]
            spans[match[1]] = (len(text), len(text) + len(value))
            text, end = text + value, match.end()
        return Filled(text + self.text[end:], spans)


def with_full_stop(sentence: str) -> str:
    """Return the sentence ended as the authors' code ends it: a full stop for ``?`` and where there is no end."""
    stripped = sentence.strip()
    if stripped.endswith("?"):
        return stripped[:-1] + "."
    return stripped if not stripped or stripped.endswith((".", '"', "'")) else stripped + "."


@dataclass(frozen=True)
class Tokens:
    """A tokenized item.

    Attributes:
        ids: Of its tokens.
        own: For each token, whether it stands for the sentence itself.
    """

    ids: list[int]
    own: list[bool]


def tokenize(
    template: Template, items: Sequence[Mapping[str, str]], tokenizer: Any, longest: int | None
) -> list[Tokens]:
    """Fill and tokenize, cut the fields of what is too long.

    The longest field is cut, at the end of one of its tokens, but not shorter than the other, and the template is
    filled and tokenized again: the tokens are those of a whole prompt, whose end is never lost.

    Args:
        template: The template.
        items: For each, the text of its fields.
        tokenizer: A fast tokenizer of transformers (it knows where in the text a token stands).
        longest: Tokens at most; None cuts nothing.

    Raises:
        InputError: The template alone has more tokens than that.
    """
    filled = [template.fill(values) for values in items]
    # verbose: the library would warn of texts that are about to be cut.
    encoded = tokenizer([each.text for each in filled], return_offsets_mapping=True, verbose=False)
    results = []
    for place, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
        if longest is not None and len(ids) > longest:
            results.append(_cut(template, dict(items[place]), tokenizer, longest))
        else:
            results.append(Tokens(ids, _own(offsets, filled[place].spans["sentence"])))
    return results


def _cut(template: Template, values: dict[str, str], tokenizer: Any, longest: int) -> Tokens:
    while True:
        filled = template.fill(values)
        encoded = tokenizer(filled.text, return_offsets_mapping=True, verbose=False)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        if len(ids) <= longest:
            return Tokens(ids, _own(offsets, filled.spans["sentence"]))
        ends = {name: _ends(offsets, span) for name, span in filled.spans.items()}
        lengths = {name: len(each) for name, each in ends.items()}
        if not any(lengths.values()):
            raise InputError(
                f"the prompt {template.text!r} has {len(ids)} tokens without any sentence, and {longest} are allowed; "
                "give a longer max_length or a shorter prompt"
            )
        # The tokens of a cut text may be more than were counted: then there is another round.
        for name, keep in _shares(lengths, sum(lengths.values()) - (len(ids) - longest)).items():
            values[name] = _first(values[name], ends[name], keep)


def _shares(lengths: Mapping[str, int], room: int) -> dict[str, int]:
    """Deal out room for tokens: what is short keeps all, and what is long gets as much as what else is long."""
    shares, room = {}, max(room, 0)
    for place, name in enumerate(sorted(lengths, key=lambda each: lengths[each])):
        shares[name] = min(lengths[name], room // (len(lengths) - place))
        room -= shares[name]
    return shares


def _first(text: str, ends: Sequence[int], keep: int) -> str:
    """Return the text of its first ``keep`` tokens; one less where that would cut a character of several tokens."""
    if keep >= len(ends):
        return text
    while keep > 0 and ends[keep - 1] == ends[keep]:
        keep -= 1
    return text[: ends[keep - 1]].rstrip() if keep > 0 else ""


def _ends(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> list[int]:
    """Return where in a field's text each of its tokens ends, the field's own end at most."""
    begin, end = span
    return [min(stop, end) - begin for start, stop in offsets if start < end and stop > begin and stop > start]


def _own(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> list[bool]:
    own = [start < span[1] and stop > span[0] and stop > start for start, stop in offsets]
    if not any(own):
        own[-1] = True  # an empty sentence is read at the prompt's end: there is nothing else
    return own


def _texts(item: Sequence[object]) -> bool:
    return all(isinstance(each, str) for each in item)


def _shown(item: object) -> str:
    return f"({', '.join(map(repr, item))})" if isinstance(item, (list, tuple)) else repr(item)
