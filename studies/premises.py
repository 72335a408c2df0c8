"""Draw the premises of the MultiCSR studies from NLI pairs: captions, each once, in random order.

    python studies/premises.py DATA/nli/pairs.tsv.gz --split train --sources snli-cat snli-2k --output premises.txt
    sentsmith audit premises.txt --against DATA/sts --output clean.txt
    python studies/premises.py DATA/nli/pairs.tsv.gz --split test --sources snli --count 300 --output captions.txt

Premises that stand in another part under ``--apart`` (train, where nothing else is said) are left out.
"""

from __future__ import annotations

import argparse
import random

from sentsmith.corpus.reading import read_rows
from sentsmith.files import write_text


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs")
    parser.add_argument("--split", required=True)
    parser.add_argument("--sources", nargs="+", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--count", type=int, help="so many; all if not given")
    parser.add_argument("--words", type=int, nargs=2, default=(5, 30), help="least and most words of a premise")
    parser.add_argument("--apart", default="train", help="part whose premises are left out of another part")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = list(read_rows(options.pairs))
    known = {row["premise"] for row in rows if row["split"] == options.apart != options.split}
    low, high = options.words
    drawn = list(
        dict.fromkeys(
            row["premise"]
            for row in rows
            if row["split"] == options.split
            and row["source"] in options.sources
            and row["premise"] not in known
            and low <= len(row["premise"].split()) <= high
        )
    )
    random.Random(options.seed).shuffle(drawn)
    write_text(options.output, "\n".join(drawn[: options.count]) + "\n")


if __name__ == "__main__":
    main()
