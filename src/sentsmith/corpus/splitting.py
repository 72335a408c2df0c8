"""Documents → sentences, with the sentencex library (rules for some 250 languages)."""

from __future__ import annotations

import re

_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Split a text into sentences.

    A blank line always ends a sentence; a single line break does not, since text is often wrapped.

    Args:
        text: Any length.
        language: A language code such as ``en`` or ``tl``; sentencex falls back to a related language, at
            last to English, for one that it has no rules for.

    Returns:
        The sentences in order, space around and runs of space within them folded; no empty ones.

    Raises:
        ValueError: ``language`` is not a language code.
    """
    import sentencex

    if not _LANGUAGE.fullmatch(language):
        raise ValueError(f"language {language!r} is not a language code; give one such as 'en'")
    # The library keeps wrapped lines within a sentence but wants paragraphs apart by exactly a blank line.
    paragraphs = re.split(r"\n\s*\n", text.replace("\r\n", "\n"))
    sentences = (
        " ".join(sentence.split())
        for paragraph in paragraphs
        for sentence in sentencex.segment(language, " ".join(paragraph.split()))
    )
    return [sentence for sentence in sentences if sentence]
