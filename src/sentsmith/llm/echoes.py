"""Round-trip translation: each sentence and its echo, the sentence translated there and back.

What is translated is appended to ``OUT.part`` block by block: a first line with the key of the work, then one JSON
line per sentence. A run that was killed goes on from there; a run of other models, or over other data, does not mistake
the rest for its own.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentsmith import __version__
from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.normalising import normal_form
from sentsmith.corpus.reading import read_sentences, rereadable
from sentsmith.corpus.rows import Translation, as_dict
from sentsmith.corpus.writing import new_table, write_rows
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.files import sha256
from sentsmith.llm.translation import MarianTranslator, Translator, model_folder, model_names

logger = logging.getLogger(__name__)

COLUMNS = ("sentence", "echo")
# What a killed run loses at most, in sentences; sorted by length, it makes several batches with little padding.
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Echoes:
    """What became of the sentences.

    Attributes:
        sentences: How many were translated.
        echoes: Rows written.
        unchanged: Left out: the echo has the sentence's normal form (:func:`normal_form`).
        empty: Left out: no translation, or none that came to its end.
    """

    sentences: int
    echoes: int
    unchanged: int
    empty: int


def translate_path(
    sentences: str | Path,
    output: str | Path,
    spec: str,
    *,
    column: str | None = None,
    limit: int | None = None,
    batch_tokens: int = 4096,
    max_new_tokens: int = 128,
    num_beams: int = 1,
    device: str | None = None,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Echoes:
    """Translate a file or folder of sentences, or standard input (``-``), there and back; see :func:`write_echoes`.

    Args:
        sentences: What :func:`~sentsmith.corpus.reading.read_sentences` reads.
        output: A table to write.
        spec: The two models (:func:`~sentsmith.llm.translation.model_names`).
        column: The text column, where there are several.
        limit: Only so many sentences, from the start.
        batch_tokens: See :class:`~sentsmith.llm.translation.MarianTranslator`, as for the next three. It may change
            between a killed run and the next one (so may the device), the others may not.
        max_new_tokens: The longest translation.
        num_beams: Beams of the search.
        device: Where the models run.
        overwrite: Replace a finished output.
        advance: Called with the number of sentences finished since the last call.

    Raises:
        InputError: The sentences or a model cannot be read, or the output cannot be written.
        SettingsError: The models are not named as they should, or a number is too small.
        SentsmithError: The hub cannot be reached, or no sentence has an echo.
    """
    names = model_names(spec)
    if limit is not None and limit < 1:
        raise SettingsError(f"limit {limit}: must be at least 1")
    target = new_table(output, source=sentences, replace=overwrite)
    with rereadable(sentences, target) as path:
        folders = [model_folder(name) for name in names]
        key = {
            "data": data_hash(path),
            "column": column,
            "limit": limit,
            "models": [sha256(folder) for folder in folders],
            "max_new_tokens": max_new_tokens,
            "num_beams": num_beams,
            "version": __version__,
        }
        lines = itertools.islice(read_sentences(path, column=column), limit)
        there, back = (
            MarianTranslator(
                folder, device=device, batch_tokens=batch_tokens, max_new_tokens=max_new_tokens, num_beams=num_beams
            )
            for folder in folders
        )
        return write_echoes(lines, target, there, back, key=key, overwrite=overwrite, advance=advance)


def write_echoes(
    sentences: Iterable[str],
    output: str | Path,
    there: Translator,
    back: Translator,
    *,
    key: dict[str, Any],
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Echoes:
    """Write each sentence beside its echo; a killed run goes on where it was.

    Args:
        sentences: The stream, from its start.
        output: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``, also with ``.gz``; columns ``sentence`` and ``echo``.
        there: Translates into the other language.
        back: Translates back.
        key: What the echoes depend on, as JSON. Work of an earlier run is taken up only if its key is equal.
        overwrite: Replace a finished output.
        advance: Called with the number of sentences finished since the last call.

    Returns:
        The counts. A sentence without an echo of its own is left out and counted.

    Raises:
        InputError: The output exists or cannot be written, or there is no sentence.
        SentsmithError: No sentence has an echo of its own.
    """
    target = new_table(output, replace=overwrite)
    part = target.with_name(target.name + ".part")
    rows, size = _done(part, key)
    stream = iter(sentences)
    advance(rows)
    with part.open("r+b" if part.exists() else "w+b") as file:
        file.truncate(size)
        file.seek(size)
        if not size:
            file.write(_line({"key": key}))
        for block in _blocks(itertools.islice(stream, rows, None)):
            echoes = _round_trip(block, there, back)
            file.write(b"".join(_line({"sentence": text, "echo": echo}) for text, echo in echoes))
            file.flush()
            os.fsync(file.fileno())
            rows += len(block)
            advance(len(block))
    if rows == 0:
        part.unlink()
        raise InputError("there is no sentence to translate")
    counts: Counter[str] = Counter()
    try:
        write_rows(target, _kept(part, counts), columns=COLUMNS)
    except _NoEchoError:
        part.unlink()
        raise
    part.unlink()
    return Echoes(rows, counts["echoes"], counts["unchanged"], counts["empty"])


class _NoEchoError(SentsmithError):
    """No sentence has an echo of its own."""


def _done(part: Path, key: dict[str, Any]) -> tuple[int, int]:
    """Return the sentences, in whole blocks, and the bytes that an earlier run of this key left."""
    if not part.exists():
        return 0, 0
    with part.open("rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return 0, 0
        if _parsed(header) != {"key": json.loads(json.dumps(key))}:
            logger.warning("%s holds the work of other models, data or settings; starting again", part)
            return 0, 0
        rows, size = 0, len(header)
        safe = (rows, size)
        # Only whole blocks, so that the batches are those of a run that was never killed.
        for line in file:
            if set(_parsed(line)) != set(COLUMNS):
                break
            rows, size = rows + 1, size + len(line)
            if rows % _BLOCK == 0:
                safe = (rows, size)
    logger.info("%s: going on after %d sentences", part, safe[0])
    return safe


def _parsed(line: bytes) -> dict[str, Any]:
    # A line that the kill cut short has no end.
    try:
        value = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _blocks(sentences: Iterator[str]) -> Iterator[list[str]]:
    while block := list(itertools.islice(sentences, _BLOCK)):
        yield block


def _round_trip(block: list[str], there: Translator, back: Translator) -> Iterator[tuple[str, str]]:
    echoes = back.translate(there.translate(block))
    return ((sentence, " ".join(echo.split())) for sentence, echo in zip(block, echoes, strict=True))


def _kept(part: Path, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    with part.open("rb") as file:
        file.readline()
        for line in file:
            row = json.loads(line)
            verdict = _verdict(row["sentence"], row["echo"])
            counts[verdict] += 1
            if verdict == "echoes":
                yield as_dict(Translation(**row))
    if not counts["echoes"]:
        raise _NoEchoError(
            f"{counts.total()} sentences gave no echo ({counts['unchanged']} unchanged, {counts['empty']} empty or "
            "without an end) and nothing was written; do the two models go from the sentences' language and back to it?"
        )


def _verdict(sentence: str, echo: str) -> str:
    form = normal_form(echo)
    if not form:
        return "empty"
    return "unchanged" if form == normal_form(sentence) else "echoes"
