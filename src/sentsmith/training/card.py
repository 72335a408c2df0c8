"""The model card: what a stranger has to know before using the model, taken from the run record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_USE = """```python
{load}
vectors = model.encode(["A sentence.", "Another one."])
```
"""
_PLAIN = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")"""
_OURS = """import sentsmith  # a module of this model is sentsmith's own: plain loading refuses it

model = sentsmith.load("path/to/this/folder")"""


def render(record: dict[str, Any], notes: Sequence[str] = (), *, plain: bool = True) -> str:
    """Return the card (Markdown with the hub's YAML header) of a run.

    Args:
        record: The run record.
        notes: Lines that the method adds.
        plain: Whether the model is made of sentence-transformers' own modules, which load without this package.
    """
    data = record["data"]
    starts = " and ".join(f"`{name}`" for name in dict.fromkeys(record["starts"]))
    parts = [
        header(record["method"]),
        f"# A sentence-embedding model by {record['method']}\n",
        (
            f"Started from {starts}, trained with sentsmith {record['versions']['sentsmith']} "
            f"on {data['rows']} rows ({', '.join(data['columns'])}).\n"
        ),
        use(plain=plain),
        "## How it was made\n",
        *_facts(record),
        "",
        *(f"{note}\n" for note in notes),
        "`settings.yaml` holds every setting and `run.json` the whole record, beside this card.\n",
    ]
    if record["warnings"]:
        parts += ["## Warnings\n", *(f"- {warning}" for warning in record["warnings"]), ""]
    return "\n".join(parts)


def header(method: str) -> str:
    """Return what the hub reads of a card, in YAML."""
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "sentsmith", method]
    fields = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": tags}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n"


def use(*, plain: bool) -> str:
    """Return a card's section on how to use the model; ``plain`` as in :func:`render`."""
    return f"## Use\n\n{_USE.format(load=_PLAIN if plain else _OURS)}"


def _facts(record: dict[str, Any]) -> list[str]:
    data, hardware = record["data"], record["hardware"]
    gpu = f", {hardware['gpu']}" if hardware["gpu"] else ""
    facts = [
        f"- data: `{data['path']}`, sha256 `{data['sha256'][:16]}…`, "
        + ("audited for overlap with test sets" if data["audit"] else "not audited for overlap with test sets"),
        f"- cost: {sum(record['seconds'].values()):.0f} s on {hardware['cpu']} ({hardware['cores']} cores{gpu})",
    ]
    # A method that computes its map has neither steps nor chance.
    if training := record["settings"].get("training"):
        facts.append(f"- seed: {training['seed']}")
    if "selection" in record:
        facts.append(f"- checkpoint: {_choice(record['selection'])}")
    if record["commit"]:
        facts.append(f"- code: commit `{record['commit']}`")
    return facts


def _choice(selection: dict[str, Any] | None) -> str:
    if selection is None:
        return "the last one; nothing was held out to choose by"
    if selection["select"] == "last":
        return "the last one, by choice"
    return (
        f"step {selection['best_step']}, the best by {selection['metric']} on {selection['source']} "
        f"({selection['best_score']:.4g})"
    )
