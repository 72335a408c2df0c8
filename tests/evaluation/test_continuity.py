"""The task made from a user's own text: find the next sentence."""

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.continuity import measure_continuity, next_sentence_task, paragraphs_of_lines


def test_blank_lines_part_paragraphs_and_without_them_lines_are_neighbours():
    assert paragraphs_of_lines(["a", "b", "", " ", "c", ""]) == [["a", "b"], ["c"]]
    assert paragraphs_of_lines(["a", "b", "c"]) == [["a", "b", "c"]]
    assert paragraphs_of_lines(["", ""]) == []


def test_pairs_stay_inside_their_paragraph():
    task = next_sentence_task([["a", "b", "c"], ["d"], ["e", "f"]], seed=0)
    pairs = [(query, task.candidates[target]) for query, target in zip(task.queries, task.targets, strict=True)]
    assert pairs == [("a", "b"), ("b", "c"), ("e", "f")]
    assert task.candidates == ("b", "c", "f")


def test_repeated_pairs_blank_and_equal_sentences_are_left_out():
    task = next_sentence_task([["a", "b", " ", "b", "c"], ["a", "b"], ["d", "c"]], seed=0)
    assert list(zip(task.queries, task.targets, strict=True)) == [("a", 0), ("b", 1), ("d", 1)]
    assert task.candidates == ("b", "c")


def test_the_limit_samples_by_seed_in_order():
    text = [[f"sentence {row}" for row in range(200)]]
    first, again, other = (next_sentence_task(text, seed=seed, limit=20) for seed in (1, 1, 2))
    assert len(first) == 20
    assert first.queries == again.queries != other.queries
    numbers = [int(query.split()[1]) for query in first.queries]
    assert numbers == sorted(numbers)
    assert [int(first.candidates[t].split()[1]) for t in first.targets] == [number + 1 for number in numbers]


class Axis:
    """The vector of "t 30" is at 30 degrees."""

    def encode(self, sentences):
        angles = np.radians([float(text.split()[-1]) for text in sentences])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_ranks_by_hand():
    # Candidates: 10, 40, 90. From 0 the next (10) is first, from 35 (90) last, from 80 (40) second.
    task = next_sentence_task([["t 0", "t 10"], ["t 35", "t 90"], ["t 80", "t 40"]], seed=0)
    result = measure_continuity(Axis(), task)
    np.testing.assert_allclose(result.reciprocal_rank, [1, 1 / 3, 1 / 2])
    assert result.accuracy_at_1.tolist() == [1, 0, 0]
    assert result.accuracy_at_10.tolist() == [1, 1, 1]
    assert result.candidates == 3


def test_a_query_is_no_candidate_for_itself():
    """In running text each query is also the next sentence of the one before; its cosine to itself is 1."""
    task = next_sentence_task([["t 0", "t 10", "t 30", "t 60"]], seed=0)
    assert set(task.queries) & set(task.candidates)
    result = measure_continuity(Axis(), task)
    np.testing.assert_allclose(result.reciprocal_rank, [1, 1, 1 / 2])  # otherwise 1, 1/2 and 1/3


def test_a_model_that_tells_nothing_apart_gets_chance(constant):
    task = next_sentence_task([[f"s {row}", f"t {row}"] for row in range(21)], seed=0)
    result = measure_continuity(constant, task)
    np.testing.assert_allclose(result.reciprocal_rank, 1 / 11)
    assert result.accuracy_at_1.sum() == result.accuracy_at_10.sum() == 0


def test_many_queries_are_ranked_in_blocks(bag_of_words):
    paragraphs = [[f"word{row} common", f"word{row} other"] for row in range(1500)]
    result = measure_continuity(bag_of_words, next_sentence_task(paragraphs, seed=0, limit=5000))
    assert result.accuracy_at_1.shape == (1500,)
    assert result.accuracy_at_1.mean() > 0.3


@pytest.mark.parametrize("text", [[], [["alone"]], [["a", "b"]], [["a", "b"], ["c", "b"]]])
def test_text_without_two_next_sentences_is_an_error(text):
    with pytest.raises(InputError, match="next sentences to tell apart"):
        next_sentence_task(text, seed=0)


def test_a_limit_below_two_is_an_error():
    with pytest.raises(InputError, match="limit=1"):
        next_sentence_task([["a", "b", "c"]], seed=0, limit=1)
