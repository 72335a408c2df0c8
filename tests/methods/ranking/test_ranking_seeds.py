"""Seeds of lists: evenly over the meanings, drawn once, kept, and not embedded twice whatever is killed."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from sentsmith.corpus import sampling
from sentsmith.encoders import loading, vectorfile
from sentsmith.errors import InputError
from sentsmith.methods.ranking.seeds import draw_seeds

GROUPS = ("dog cat bird park river", "guitar song sings plays house", "soup eats book reads slowly")


@pytest.fixture(scope="module")
def corpus():
    """Return 48 sentences of three kinds of words, ten of the first kind, and five of them twice."""
    rows = [f"{' '.join(GROUPS[kind].split()[i % 5 :])} {'and ' * (i // 5)}." for kind in range(3) for i in range(20)]
    return rows[:10] + rows[20:] + rows[:5]


@pytest.fixture
def draw(corpus, tiny_bert, tmp_path):
    """Return a function that draws seeds with these numbers, or others."""

    def draw(sentences=corpus, **changes):
        given = {"clusters": 4, "per_cluster": 3, "model": str(tiny_bert), "seed": 0, "kept": tmp_path / "k.json"}
        return draw_seeds(sentences, **{**given, **changes})

    return draw


@pytest.fixture
def no_model(monkeypatch):
    """Let no model be loaded any more."""

    def refuse(*_args, **_named):
        raise AssertionError("a model is loaded")

    return lambda: monkeypatch.setattr(loading, "load", refuse)


def test_as_many_as_asked_in_the_order_of_the_sentences(draw, corpus, tmp_path):
    seeds = draw()
    assert len(seeds) == len(set(seeds)) == 12
    places = [corpus.index(seed) for seed in seeds]
    assert places == sorted(places)
    assert [file.name for file in tmp_path.iterdir()] == ["k.json"]
    assert json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))["seeds"] == seeds


def test_a_sentence_that_comes_twice_counts_once(draw, corpus, tmp_path):
    everything = draw(clusters=1, per_cluster=100)
    assert everything == list(dict.fromkeys(corpus))
    assert draw(everything, kept=tmp_path / "other.json") == draw(kept=tmp_path / "third.json")


def test_white_space_tells_no_sentences_apart(draw):
    texts = ["the dog", "the  dog", "\tthe\ndog ", "The dog", "the cat"]
    assert draw(texts, clusters=1, per_cluster=100) == ["the dog", "The dog", "the cat"]


def test_a_bar_is_drawn_where_it_is_wanted(draw, tmp_path, capsys):
    draw()
    assert "seeds" not in capsys.readouterr().err
    draw(kept=tmp_path / "other.json", progress=True)
    assert re.search(r"seeds: 100%.* 50/50 ", capsys.readouterr().err)


def test_the_draw_is_even_over_clusters_not_over_sentences(tiny_bert, tmp_path):
    # Drawn over sentences, the few would have one or two of the twelve.
    many = [f"the dog {'and the cat ' * (i % 3)}{'a ' * (i // 3)}" for i in range(54)]
    few = ["guitar song sings plays", "guitar song sings", "guitar song plays"]
    few += ["soup eats book reads", "soup eats book", "soup eats reads"]
    seeds = draw_seeds(many + few, clusters=6, per_cluster=2, model=str(tiny_bert), seed=0, kept=tmp_path / "kept.json")
    assert sum(seed in few for seed in seeds) >= 4


def test_a_later_run_reads_what_was_kept(draw, no_model):
    seeds = draw()
    no_model()
    assert draw() == seeds


@pytest.mark.parametrize("changes", [{"clusters": 3}, {"per_cluster": 2}, {"seed": 1}])
def test_other_numbers_are_another_draw(draw, caplog, changes):
    seeds = draw()
    other = draw(**changes)
    assert other != seeds
    assert "holds seeds of another model, data or setting; drawing again" in caplog.text
    assert draw(**changes) == other
    assert draw() == seeds


def test_other_sentences_or_weights_are_another_draw(draw, corpus, tiny_bert, tmp_path, no_model):
    draw()
    shorter = draw(corpus[:20])
    assert set(shorter) <= set(corpus[:20])
    # The same weights elsewhere are the same model; other weights in the same place are not.
    shutil.copytree(tiny_bert, tmp_path / "moved")
    no_model()
    assert draw(corpus[:20], model=str(tmp_path / "moved")) == shorter
    (tmp_path / "moved" / "more.txt").write_text("x")
    with pytest.raises(AssertionError, match="a model is loaded"):
        draw(corpus[:20], model=str(tmp_path / "moved"))


def test_a_run_killed_while_embedding_goes_on(draw, tmp_path, small_blocks, monkeypatch):
    whole, steps = draw(kept=tmp_path / "whole.json"), []
    embed_file = vectorfile.embed_file

    def counted(*arguments, advance, **named):
        def count(rows):
            advance(rows)
            steps.append(rows)
            if steps == [0, 16, 16]:
                raise KeyboardInterrupt

        return embed_file(*arguments, advance=count, **named)

    monkeypatch.setattr(vectorfile, "embed_file", counted)
    with pytest.raises(KeyboardInterrupt):
        draw()
    assert not (tmp_path / "k.json").exists()
    assert draw() == whole
    assert steps == [0, 16, 16, 32, 16, 2]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["k.json", "whole.json"]


def test_a_run_killed_while_it_clusters_keeps_its_vectors(draw, tmp_path, monkeypatch, no_model):
    whole = draw(kept=tmp_path / "whole.json")
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "sample_kmeans", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            draw()
    no_model()
    # The vectors do not depend on the numbers of the draw.
    assert draw(kept=tmp_path / "k.json") == whole
    assert sorted(file.name for file in tmp_path.iterdir()) == ["k.json", "whole.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": 0}, "clusters 0, sentences per cluster 3: both must be at least 1"),
        ({"per_cluster": 0}, "clusters 4, sentences per cluster 0: both must be at least 1"),
        ({"clusters": 51}, "51 clusters of 50 different sentences: ask for no more clusters than sentences"),
        ({"sentences": []}, "4 clusters of 0 different sentences"),
        ({"model": "no such model!"}, "is no folder here and no valid hub name"),
    ],
)
def test_bad_input(draw, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        draw(**changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["not json", "[]", '{"seeds": []}', '{"key": {}, "seeds": 3}'])
def test_somebody_elses_file_is_not_written_over(draw, tmp_path, text):
    (tmp_path / "k.json").write_text(text)
    with pytest.raises(InputError, match=r"k\.json: is no file of seeds; remove it"):
        draw()
    assert (tmp_path / "k.json").read_text() == text
