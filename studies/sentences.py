"""Draw the sentences of a study from an audited corpus: short ones, at random, in random order.

sentsmith audit DATA/sentences/sentences.tsv.gz --against DATA --output clean.tsv.gz
python studies/sentences.py clean.tsv.gz sentences.txt
"""

from __future__ import annotations

import argparse
import random

from sentsmith.corpus.reading import read_sentences
from sentsmith.corpus.sampling import sample_random
from sentsmith.files import write_text


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("output")
    parser.add_argument("--column", default="2", help="of the sentences, where the corpus has several")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--words", type=int, nargs=2, default=(4, 12), help="least and most words of a sentence")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    low, high = options.words
    fitting = (
        text for text in read_sentences(options.corpus, column=options.column) if low <= len(text.split()) <= high
    )
    drawn = sample_random(fitting, options.count, seed=options.seed)
    random.Random(options.seed).shuffle(drawn)
    write_text(options.output, "\n".join(drawn) + "\n")


if __name__ == "__main__":
    main()
