"""A tiny encoder and a tiny data folder in SentEval's layout."""

import zlib
from pathlib import Path

import numpy as np
import pytest


class BagOfWords:
    """The mean of a fixed random vector for each word; remembers what it was asked."""

    def __init__(self, dimension=32):
        self.dimension = dimension
        self.calls = []

    def encode(self, sentences):
        self.calls.append(list(sentences))
        return np.stack([self._one(text) for text in sentences]).astype(np.float32)

    def _one(self, text):
        words = [zlib.crc32(word.encode()) for word in text.lower().split()]
        return np.mean([np.random.default_rng(seed).normal(size=self.dimension) for seed in words], axis=0)


class Constant:
    """The same vector for everything."""

    def encode(self, sentences):
        return np.ones((len(sentences), 4), dtype=np.float32)


@pytest.fixture
def bag_of_words():
    return BagOfWords()


@pytest.fixture
def constant():
    return Constant()


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "OnWN", "headlines"),
    "STS14": ("OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}


@pytest.fixture
def sts_dir(tmp_path):
    """``data_dir`` with ``sts/``: three rows a subset, one of them without gold."""
    root = tmp_path / "data" / "sts"
    for year, names in YEARS.items():
        for name in names:
            folder = root / f"{year}-en-test"
            lines = "a dog runs\ta dog runs fast\nred car\tblue sky\nno gold here\tat all\n"
            write(folder / f"STS.input.{name}.txt", lines)
            write(folder / f"STS.gs.{name}.txt", "4.5\n0.200\n\n")
    for part in ("train", "dev", "test"):
        rows = f'A dog runs.,"A dog, a {part}, runs.",4.2\r\nred car,blue sky,0.0\r\n'
        write(root / "STSBenchmark" / f"{part}.csv", rows)
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    for part in ("train", "trial", "test_annotated"):
        rows = f"1\tA {part} dog\tA dog\t4.5\tNEUTRAL\r\n2\tA cat\tThe moon\t1.0\tNEUTRAL\r\n"
        write(root / "SICK" / f"SICK_{part}.txt", header + rows)
    return root.parent


def _reviews(label, count, seed):
    generator = np.random.default_rng(seed)
    mood = ["good", "great", "fine"] if label else ["bad", "awful", "poor"]
    filler = ["film", "plot", "actor", "scene", "story", "screen"]
    return [f"{generator.choice(mood)} {' '.join(generator.choice(filler, 2))} {row}" for row in range(count)]


@pytest.fixture
def transfer_dir(tmp_path):
    """``data_dir`` with ``transfer/``: 40 rows a class, told apart by one word."""
    root = tmp_path / "data" / "transfer"
    binary = [
        ("MR", "rt-polarity.pos", "rt-polarity.neg"),
        ("CR", "custrev.pos", "custrev.neg"),
        ("SUBJ", "subj.objective", "subj.subjective"),
        ("MPQA", "mpqa.pos", "mpqa.neg"),
    ]
    for seed, (folder, positive, negative) in enumerate(binary):
        write(root / folder / positive, "\n".join(_reviews(1, 40, seed)) + "\n")
        write(root / folder / negative, "\n".join(_reviews(0, 40, seed + 10)) + "\n")
    for seed, part in enumerate(("train", "dev", "test")):
        rows = [f"{text}\t{label}" for label in (0, 1) for text in _reviews(label, 40, seed + 20)]
        write(root / "SST" / "binary" / f"sentiment-{part}", "\n".join(rows) + "\n")
    for file in ("train_5500.label", "TREC_10.label"):
        classes = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
        rows = [f"{name}:fine What {name.lower()} is number {row} ?" for name in classes for row in range(12)]
        write(root / "TREC" / file, "\n".join(rows) + "\n")
    for part in ("train", "test"):
        rows = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        rows += [f"1\t1\t2\tthe {row} dog runs\tthe {row} dog runs home" for row in range(20)]
        rows += [f"0\t1\t2\tthe {row} dog runs\tall prices of oil fell" for row in range(20)]
        write(root / "MRPC" / f"msr_paraphrase_{part}.txt", "\r\n".join(rows) + "\r\n")
    return root.parent
