"""Real text that every interpreter carries: the prose of Python's language reference (``pydoc_data.topics``).

The topics are reStructuredText rendered as plain text: paragraphs wrapped at some 70 characters, with code,
grammar and tables between them. Here only the sentences are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentsmith.corpus.splitting import split_sentences

_SHORTEST, _LONGEST = 5, 80  # words of a sentence
# Stops within code (`typing.Generic`) end no sentence: they are put away while the text is split.
_HIDE = str.maketrans(".?!", "\ue000\ue001\ue002")
_RESTORE = str.maketrans("\ue000\ue001\ue002", ".?!")

_BULLET = re.compile(r"(?:[*+-]|\d{1,2}\.|\[\d+\])\s+")
_RULE = re.compile(r"[-=~*^.\"'#+|\s]*")
_NOT_PROSE = re.compile(r"::=|>>>|\S {3,}\S|^\s*(?:[|+$#@]|\.\.\.)|-> |\w\(\w*[=,]|\s==?\s")
_VERSION = re.compile(r"^(?:Changed|New|Added|Deprecated|Removed)(?: in| since)? version [\d.]+(?:,[^:]*)?:\s*")
_LABEL = re.compile(r"^(?:Note|See also|Warning|Important|CPython implementation detail):\s*")
_FOOTNOTE = re.compile(r"\s\[\d+\](?=[\s.,;:)]|$)")
_CODE = re.compile(r"\"([^\"]*)\"|``([^`]*)``|`([^`]*)`")
_STRONG = re.compile(r"(?<![\w*])\*\*(\S(?:[^*]*\S)?)\*\*(?!\*)")
_EMPHASIS = re.compile(r"(?<![\w*])\*(\w(?:[^*]*\S)?)\*(?!\*)")
_WORD = re.compile(r"[(“‘]*[A-Za-z][A-Za-z’'-]*[.,;:?!)”’]*")
_WHOLE = re.compile(r"[“‘(]?[A-Z][^\"`\\]*[.?!][)”’]?")  # from a capital to a stop, no quote of code left
_COMMON = re.compile(
    r"\b(?:a|an|and|are|as|be|by|can|for|if|in|is|it|may|not|of|on|or|that|the|this|to|when|with)\b",
    re.IGNORECASE,
)


def pydoc_sentences() -> list[list[str]]:
    """Return the prose of this interpreter's language reference: paragraphs of sentences, topic by topic.

    Code, grammar, tables, headings and signatures are left out, lines unwrapped, markup (quotes around code,
    emphasis, footnote marks) taken off. No sentence comes twice: topics quote one another.
    """
    from pydoc_data import topics

    seen: set[str] = set()
    paragraphs = []
    for name in sorted(topics.topics):
        for text in _paragraphs(topics.topics[name]):
            sentences = []
            for sentence in map(_restored, split_sentences(text)):
                if _is_sentence(sentence) and sentence not in seen:
                    seen.add(sentence)
                    sentences.append(sentence)
            if sentences:
                paragraphs.append(sentences)
    return paragraphs


def _paragraphs(topic: str) -> Iterator[str]:
    """Yield the prose paragraphs of a topic, unwrapped and without markup."""
    for block in re.split(r"\n\s*\n", topic):
        for lines in _runs(block.splitlines()):
            if _is_prose(lines):
                yield _plain(_unwrap(lines))


def _runs(lines: list[str]) -> Iterator[list[str]]:
    """Split a block where its indentation changes: a term from its definition, an item from the next."""
    run: list[str] = []
    indent = 0
    for line in lines:
        text = line.lstrip()
        here = len(line) - len(text)
        bullet = _BULLET.match(text)
        if bullet:
            text = text[bullet.end() :]
            here += bullet.end()
        if run and (bullet or here != indent):
            yield run
            run = []
        indent = here
        run.append(text.rstrip())
    if run:
        yield run


def _is_prose(lines: list[str]) -> bool:
    if any(_NOT_PROSE.search(_CODE.sub("x", line)) or _RULE.fullmatch(line) for line in lines):
        return False
    text = " ".join(lines)
    if text.count('"') % 2 or '\\"' in text:
        return False  # quotes within quoted code: which is which cannot be told
    words = text.split()
    plain = sum(bool(_WORD.fullmatch(word)) for word in words)
    return len(words) >= _SHORTEST and plain >= 0.5 * len(words)


def _unwrap(lines: list[str]) -> str:
    text = lines[0]
    for line in lines[1:]:
        # A word broken at its hyphen ("post-" / "mortem") has no space after it; "pre- and post-" does.
        broken = re.search(r"\w-$", text) and re.match(r"(?!and\b|or\b)\w", line)
        text += line if broken else f" {line}"
    return text


def _plain(text: str) -> str:
    text = _FOOTNOTE.sub("", text)
    parts = []
    place = 0
    # Asterisks between quotes are code (`*args`), outside they are emphasis.
    for code in _CODE.finditer(text):
        inner = next(group for group in code.groups() if group is not None)
        parts += [_unmarked(text[place : code.start()]), inner.translate(_HIDE)]
        place = code.end()
    plain = " ".join("".join([*parts, _unmarked(text[place:])]).split())
    return _VERSION.sub("", _LABEL.sub("", plain))


def _unmarked(text: str) -> str:
    return _EMPHASIS.sub(r"\1", _STRONG.sub(r"\1", text))


def _restored(sentence: str) -> str:
    text = sentence.translate(_RESTORE)
    # Of two sentences in one parenthesis, each has one half of it.
    return text[1:] if text.startswith("(") and text.count("(") > text.count(")") else text


def _is_sentence(text: str) -> bool:
    words = text.split()
    if not _SHORTEST <= len(words) <= _LONGEST or not _WHOLE.fullmatch(text):
        return False
    plain = sum(bool(_WORD.fullmatch(word)) for word in words)
    return plain >= 0.6 * len(words) and _COMMON.search(text) is not None
