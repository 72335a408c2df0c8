"""The pairs on which a model and people are farthest apart."""

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.largest_errors import fitted_line, largest_errors, lines
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.suite import evaluate


def pairs_of(gold):
    return ScoredPairs(
        tuple(f"a{row}" for row in range(len(gold))), tuple(f"b{row}" for row in range(len(gold))), np.array(gold)
    )


def test_scale_and_offset_of_the_scores_do_not_matter():
    generator = np.random.default_rng(0)
    gold, scores = generator.uniform(0, 5, 60), generator.normal(size=60)
    slope, offset = fitted_line(scores, gold)
    assert (slope, offset) == pytest.approx(np.polyfit(scores, gold, 1))
    found, moved = (largest_errors(values, pairs_of(gold), most=7) for values in (scores, 0.01 * scores - 3))
    errors = gold - slope * scores - offset
    for one, other, order in (
        (found.too_high, moved.too_high, np.argsort(errors)),
        (found.too_low, moved.too_low, np.argsort(-errors)),
    ):
        assert [miss.sentence1 for miss in one] == [f"a{row}" for row in order[:7]]
        assert [miss.fitted for miss in other] == pytest.approx([miss.fitted for miss in one])
    assert found.spread == pytest.approx(np.sqrt(np.mean(errors**2)))


def test_a_side_holds_only_what_is_on_it():
    exact = largest_errors([0.0, 0.5, 1.0], pairs_of([0.0, 2.5, 5.0]))
    assert (exact.too_high, exact.too_low, exact.spread) == ((), (), 0.0)
    # Scores that are all the same say nothing: the fit is the mean.
    flat = largest_errors([0.1 + 0.2] * 4, pairs_of([1.0, 1.0, 1.0, 5.0]))
    assert (flat.slope, flat.offset) == (0.0, 2.0)
    assert [(miss.sentence2, miss.gold, miss.fitted) for miss in flat.too_low] == [("b3", 5.0, 2.0)]
    assert len(flat.too_high) == 3
    for scores in ([1.0], [], [[1.0, 2.0]]):
        with pytest.raises(InputError, match="one score for each"):
            largest_errors(scores, pairs_of([1.0, 2.0] if scores else []))


def test_the_suite_measures_any_encoder(sts_dir, bag_of_words):
    result = evaluate(bag_of_words, suites=["errors"], data_dir=sts_dir, name="bag")
    found = result["errors"]
    assert (found["rows"], result["scores"]) == (2, {})  # a line through two points misses neither
    assert found["spread"] == pytest.approx(0, abs=1e-6)
    rows = "a b,a c,5\na b,a b,0\nc d,e f,1\nc d e,c d f,2.5\n"
    (sts_dir / "sts" / "STSBenchmark" / "dev.csv").write_text(rows)
    result = evaluate(bag_of_words, suites=["errors"], data_dir=sts_dir, name="bag")
    worst = result["errors"]["too_high"][0]
    assert (worst["sentence1"], worst["sentence2"], worst["gold"]) == ("a b", "a b", 0.0)
    assert worst["fitted"] > 1
    (line,) = lines([result, {"model": "without"}])
    assert "most too high: “a b” / “a b”, gold 0.0, fitted" in line
