"""The normal form under which two copies of a sentence are the same, however they were typed or tokenised.

Test sets print their sentences in many ways: ``it's``, ``it 's`` (Penn Treebank), ``it ' s`` (SemEval STS),
in lower case, with ``-LRB-`` for a bracket and double back-ticks for a quotation mark. A sentence in a
training set must be recognised in all of these dresses.
"""

from __future__ import annotations

import re
import unicodedata

_BRACKET = re.compile(r"-(?:lrb|rrb|lsb|rsb|lcb|rcb)-")
_NOT = re.compile(r"\s*\bn\s*'\s*t\b")
_ENDING = re.compile(r"\s*'\s*(s|m|d|ll|re|ve|t)\b")
# The Treebank splits these too.
_SPLIT = re.compile(r"\b(can) (not)\b|\b(gon|wan) (na)\b|\b(got) (ta)\b")
_SPLIT_PARTS = ("can not", "gon na", "wan na", "got ta")

# Writing without spaces: each of these characters counts as a word of its own.
_ONE_CHARACTER_WORDS = (
    (0x0E00, 0x0E7F),  # Thai
    (0x3040, 0x30FF),  # Japanese syllables
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


class _Fold(dict[int, str]):
    """Maps a character to what the normal form keeps of it; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kept = " " if unicodedata.category(character)[0] in "PSZC" else character
        if any(first <= code <= last for first, last in _ONE_CHARACTER_WORDS) and kept != " ":
            kept = f" {character} "
        self[code] = kept
        return kept


_FOLD = _Fold()
_APOSTROPHES = str.maketrans("‘’ʼ´", "''''")


def _unicode_folded(text: str) -> str:
    # Apostrophes first: NFKC turns some of them into a space and a combining mark. Folding the case can undo
    # the normalisation, so it is done again.
    folded = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    return unicodedata.normalize("NFKC", folded)


def normal_form(text: str) -> str:
    """Return the normal form: words in small letters with one space between them.

    NFKC and case folding; punctuation, symbols, control characters and runs of space become one space;
    apostrophes go, and endings that a tokeniser cut off (``'s``, ``n't``, ``can not``) are joined again. Text
    without letters or digits gives ``""``.
    """
    folded = text.lower() if text.isascii() else _unicode_folded(text)
    if "'" in folded:
        folded = _ENDING.sub(r"\1", _NOT.sub("nt", folded)).replace("'", " ")
    if "-" in folded:
        folded = _BRACKET.sub(" ", folded)
    joined = " ".join(folded.translate(_FOLD).split())
    if any(part in joined for part in _SPLIT_PARTS):
        joined = _SPLIT.sub(lambda match: "".join(filter(None, match.groups())), joined)
    return joined


def match_key(text: str) -> str:
    """Return the key that normalised copies of a text share: the normal form without its spaces.

    So "cell phone" equals "cellphone", and "multi-colored" equals "multicolored".
    """
    return normal_form(text).replace(" ", "")
