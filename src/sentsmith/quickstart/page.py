"""The page of the quickstart: what was done, what changed, and what fell."""

from __future__ import annotations

from typing import Any

from sentsmith.quickstart.outcome import Outcome
from sentsmith.report import pictures
from sentsmith.report.page import Callout, Headline, Page, Picture, Section
from sentsmith.report.side_by_side import side_by_side
from sentsmith.report.tables import Cell, Delta, Table, number

_WORDS = {"better": "good", "worse": "warning", "no clear change": "note"}


def build_page(outcome: Outcome) -> Page:
    """Return the page; every number on it was measured in this run."""
    record = outcome.record
    sections = [_changes(outcome)]
    if outcome.suites is not None:
        sections.append(_sts(*outcome.suites))
    sections += [_similarities(outcome), _search(outcome), _training(record), _origin(record)]
    start = record["settings"]["model"]
    return Page(
        title="Sentsmith quickstart",
        lead=f"`{start}` was trained on {_rows(record)} in {record['seconds']['train']:.0f} s; "
        f"the whole job took {outcome.seconds:.0f} s. Every number here was measured in this run.",
        headlines=[
            Headline(row.name, f"{row.after:.1f}", Delta(row.change, 1, row.low, row.high), f"{row.items} items")
            for row in outcome.comparisons
        ],
        sections=sections,
        footer=f"sentsmith {record['versions']['sentsmith']}, {record['created']}",
    )


def _rows(record: dict[str, Any]) -> str:
    """Return what a run was trained on: lists and triplets of the sample, or lines of the user's."""
    rows = record["data"]["rows"]
    if "ranking" not in record:
        return f"{rows:,} rows"
    return f"{rows:,} ranked lists and {record['ranking']['triplets']['rows']:,} triplets"


def _changes(outcome: Outcome) -> Section:
    rows: list[list[Cell]] = [
        [row.name, number(row.before), number(row.after), Delta(row.change, 2, row.low, row.high), row.items]
        for row in outcome.comparisons
    ]
    differences = [pictures.Difference(row.name, row.change, row.low, row.high) for row in outcome.comparisons]
    callouts = [
        Callout(
            _WORDS[row.verdict],  # type: ignore[arg-type]
            f"{row.name}: {row.verdict} ({row.before:.2f} → {row.after:.2f}).",
        )
        for row in outcome.comparisons
    ]
    return Section(
        "Before and after",
        text="Measured on held-out items that were not trained on, times 100. The interval is a 95 % paired bootstrap "
        "over items: where it holds zero, the data do not tell the two models apart.",
        callouts=callouts,
        tables=[Table(("measure", "before", "after", "change", "items"), rows)],
        pictures=[Picture(pictures.bars_with_intervals(differences))],
    )


def _sts(before: dict[str, Any], after: dict[str, Any]) -> Section:
    rows: list[list[Cell]] = []
    scores = [*before["scores"].items(), ("average", before["averages"]["sts"])]
    later = {**after["scores"], "average": after["averages"]["sts"]}
    for name, value in scores:
        rows.append([name, number(value), number(later[name]), Delta(later[name] - value, 2)])
    fallen = [row[0] for row, (name, value) in zip(rows, scores, strict=True) if later[name] < value]
    callouts = [Callout("warning", f"Fell: {', '.join(map(str, fallen))}.")] if fallen else []
    return Section(
        "Semantic textual similarity",
        text="Spearman correlation times 100 on the test parts; the subsets of a year together (“all”).",
        callouts=callouts,
        tables=[Table(("task", "before", "after", "change"), rows)],
    )


def _similarities(outcome: Outcome) -> Section:
    shown = [
        Picture(
            pictures.histogram_panels(
                outcome.cosines, x_label="cosine similarity", title="Similarity of held-out pairs"
            ),
            "The further the two groups stand apart, the better they can be told apart.",
        )
    ]
    if outcome.positions is not None:
        before, after = outcome.positions
        shown.append(
            Picture(
                pictures.positions(before, after, first=2),
                "Each list drifts away from its first sentence; the cosine to it should fall from place to place.",
            )
        )
    return Section("Similarities", pictures=shown)


def _search(outcome: Outcome) -> Section:
    return side_by_side(
        outcome.questions,
        *outcome.hits,
        title="Search, side by side",
        text=f"The nearest of {outcome.searched:,} sentences of {outcome.text}. No measure here: judge by reading.",
    )


def _training(record: dict[str, Any]) -> Section:
    loss = [(point["step"], point["loss"]) for point in record["loss"]]
    # A run of a few steps logs no loss.
    curve = pictures.curve({"loss": loss}, x_label="step", y_label="loss", title="Training loss") if loss else ""
    shown = [Picture(curve)] if curve else []
    selection = record["selection"]
    notes = []
    if selection is not None and selection["history"]:
        points = [(point["step"], point["score"]) for point in selection["history"]]
        chosen = selection["best_step"] if selection["select"] == "best" else None
        shown.append(
            Picture(
                pictures.curve(
                    {selection["metric"]: points}, x_label="step", y_label=selection["metric"],
                    title="The score on data kept apart", chosen=chosen,
                )
            )
        )  # fmt: skip
        kept = f"step {chosen} was kept" if chosen is not None else "the last step was kept, by the recipe"
        notes.append(f"Scored on {selection['source']}; {kept}.")
    return Section("Training", pictures=shown, notes=notes)


def _origin(record: dict[str, Any]) -> Section:
    data, hardware = record["data"], record["hardware"]
    rows: list[list[Cell]] = [
        ["data", f"{data['path']} ({data['rows']} rows, sha256 {data['sha256'][:12]}…)"],
        ["machine", f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB"],
        ["seed", record["settings"]["training"]["seed"]],
        ["number format", record["precision"]],
        ["versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())],
        ["commit", record["commit"] or "installed package"],
    ]
    callouts = [Callout("warning", warning) for warning in record["warnings"]]
    return Section("Where it comes from", callouts=callouts, tables=[Table(("what", "value"), rows)])
