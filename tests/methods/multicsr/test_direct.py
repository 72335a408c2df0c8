"""A language model scores pairs itself: the aggregation, answers that hold no score, what is asked of whom."""

import json
import re

import numpy as np
import pytest

from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.sts import StsSubset, StsTask
from sentsmith.llm.backend import Answer
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.multicsr.direct import estimate_directly, evaluate_directly, unreadable_lines


@pytest.fixture
def scorer(scripted):
    """Return a function that makes a model which answers by the second sentence; ``None`` is a lost request."""

    def make(answers, name="scripted"):
        def reply(prompt, decoding):
            text = answers[re.findall(r'Sentence 2: "(.*)"', prompt.text)[-1]]
            failure = "no connection" if text is None else None
            return Answer(
                text or "",
                finished=True,
                prompt_tokens=9,
                answer_tokens=2,
                seconds=0,
                failure=failure,
                lost=text is None,
            )

        return scripted(reply, block=1, name=name, guides=False)

    return make


def task(name, *subsets):
    """Return a task whose pairs are ("one 1", "two 1") …, numbered through."""
    made, number = [], 0
    for place, gold in enumerate(subsets):
        rows = range(number + 1, number + 1 + len(gold))
        number += len(gold)
        pairs = ScoredPairs(
            tuple(f"{name} one {row}" for row in rows),
            tuple(f"{name} two {row}" for row in rows),
            np.array(gold, float),
        )
        made.append(StsSubset(f"part-{place}", pairs))
    return StsTask(name, "dev", tuple(made))


def script(name, answers):
    return {f"{name} two {row}": text for row, text in enumerate(answers, start=1)}


@pytest.fixture
def suites(monkeypatch):
    """Return a function that sets the tasks of the suites."""

    def set_to(**tasks):
        loaded = {name.replace("_", "-"): members for name, members in tasks.items()}
        monkeypatch.setattr("sentsmith.methods.multicsr.direct.load_suites", lambda names, data_dir: loaded)
        return list(loaded)

    return set_to


def test_one_correlation_over_all_subsets(suites, scorer, tmp_path):
    # METHODS' worked numbers (eval_sts_all), the predictions times ten.
    names = suites(sts=[task("A", [0, 1, 2, 3], [5, 4, 4, 0, 1])])
    model = scorer(script("A", ["1.0", "3.0", "2.0", "4.0", "3.5", "3.0", "2.5", "1.5", "0.5"]))
    result = evaluate_directly(lambda: model, suites=names, output=tmp_path).result
    assert result["scores"] == {"A": pytest.approx(69.494, abs=1e-3)}
    assert result["averages"] == {"sts": pytest.approx(69.494, abs=1e-3)}
    assert result["unreadable"] == {"A": 0}
    details = result["details"]["tasks"]["A"]
    assert [subset["spearman"] for subset in details["subsets"].values()] == pytest.approx([80, 87.2082], abs=1e-3)
    assert (details["rows"], details["different_scores"]) == (9, 8)
    assert json.loads((tmp_path / "results.json").read_text()) == result
    assert list(unreadable_lines(result)) == []


def test_no_score_is_counted_and_stands_at_the_tasks_own_mean(suites, scorer, tmp_path):
    gold = [5, 3, 1, 4]
    names = suites(sts_dev=[task("A", gold), task("B", gold)])
    low = ["1.0", "0.5", "0.0", "very alike"]
    high = ["5.0", "2.5", "0.0", None]
    model = scorer(script("A", low) | script("B", high))
    result = evaluate_directly(lambda: model, suites=names, output=tmp_path).result
    # In each task the fourth pair ties with the second: ranks 4, 2.5, 1, 2.5 against 4, 2, 1, 3.
    expected = 100 * 4.5 / np.sqrt(4.5 * 5)
    assert result["scores"] == {"A": pytest.approx(expected), "B": pytest.approx(expected)}
    assert result["unreadable"] == {"A": 1, "B": 1}
    assert result["details"]["tasks"]["A"]["unreadable_reasons"] == {"no score": 1}
    assert list(unreadable_lines(result)) == [
        "A: 1 of 4 answers hold no score (1 no score); they count as the mean",
        (
            "B: 1 of 4 answers hold no score (1 no connection); they count as the mean. No answer came to 1 of them: "
            "--retry-quarantined asks again"
        ),
    ]
    # Unreadable answers are asked twice, lost requests once in a run.
    assert len(model.seen) == 9
    assert (result["details"]["asked"], result["details"]["answer_tokens"]) == (8, 18)


def test_a_task_without_any_score_counts_0_beside_one_that_has_scores(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2]), task("B", [1, 2])])
    model = scorer(script("A", ["1", "2"]) | script("B", ["no", "idea"]))
    result = evaluate_directly(lambda: model, suites=names, output=tmp_path).result
    assert result["scores"] == {"A": pytest.approx(100), "B": 0}
    assert result["unreadable"] == {"A": 0, "B": 2}


def test_no_score_at_all_fails_and_writes_nothing(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2])])
    model = scorer(script("A", ["6.0", "very alike"]))
    with pytest.raises(SentsmithError, match=r"none of 2 answers holds a score \(1 .*, 1 .*\). Does the model follow"):
        evaluate_directly(lambda: model, suites=names, output=tmp_path)
    assert not (tmp_path / "results.json").exists()


def test_requests_that_were_all_lost_say_nothing_about_the_prompts(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2])])
    with pytest.raises(SentsmithError, match="No answer came to 2 of them: --retry-quarantined asks again") as caught:
        evaluate_directly(lambda: scorer(script("A", [None, None])), suites=names, output=tmp_path)
    assert "follow these prompts" not in str(caught.value)


def test_a_budget_stops_before_results_and_a_later_run_completes(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2, 3])])
    model = scorer(script("A", ["1.0", "2.0", "3.0"]))
    (tokens,) = model.count_tokens([load_prompts("multicsr").question("score", ("A one 1", "A two 1")).prompt.text])
    asked = {"suites": names, "output": tmp_path, "max_new_tokens": 5}
    found = estimate_directly(lambda: model, **asked, price=Price(1.0, 2.0))
    assert (found.requests, found.answer_tokens, model.seen) == (3, 15, [])
    stopped = evaluate_directly(lambda: model, **asked, budget=Budget(tokens=tokens + 5))
    assert (stopped.result, stopped.pairs, stopped.pending, stopped.outcome.stopped) == (None, 3, 2, True)
    assert not (tmp_path / "results.json").exists()
    done = evaluate_directly(lambda: model, **asked, price=Price(1.0, 2.0))
    assert (done.pending, done.outcome.asked, done.result["scores"]) == (0, 2, {"A": pytest.approx(100)})
    assert done.result["details"]["money"] == pytest.approx(2 * (9 + 2 * 2) / 1e6)
    assert {decoding.max_new_tokens for _, decoding in model.seen} == {5}


def test_what_was_asked_is_not_asked_again_unless_that_is_wanted(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2, 3])])
    advanced, expected = [], []
    first = scorer(script("A", ["1.0", "what?", "3.0"]))
    before = evaluate_directly(
        lambda: first, suites=names, output=tmp_path, advance=advanced.append, expect=expected.append
    ).result
    assert sum(advanced) == expected[0] == 3
    second = scorer(script("A", ["1.0", "2.0", "0.0"]))
    again = evaluate_directly(lambda: second, suites=names, output=tmp_path).result
    assert second.seen == []
    assert (again["scores"], again["details"]["skipped"]) == (before["scores"], 3)
    mended = evaluate_directly(lambda: second, suites=names, output=tmp_path, retry_quarantined=True).result
    assert len(second.seen) == 1
    assert mended["unreadable"] == {"A": 0}
    # Another model has answers of its own, in the same ledger.
    other = scorer(script("A", ["3.0", "2.0", "1.0"]), name="other")
    ledger = tmp_path / "ledger.sqlite"
    contrary = evaluate_directly(lambda: other, suites=names, output=tmp_path / "other", ledger=ledger).result
    assert contrary["scores"] == {"A": pytest.approx(-100)}
    assert not (tmp_path / "other" / "ledger.sqlite").exists()


def test_examples_are_the_prompt_files(suites, scorer, tmp_path):
    names = suites(sts=[task("A", [1, 2])])
    model = scorer(script("A", ["1.0", "2.0"]))
    plain = evaluate_directly(lambda: model, suites=names, output=tmp_path / "a").result
    shown = evaluate_directly(lambda: model, suites=names, output=tmp_path / "b", prompts="score-examples").result
    assert plain["details"]["prompts"]["exemplars"] == 0
    assert shown["details"]["prompts"]["exemplars"] == 6
    assert plain["details"]["prompts"]["sha256"] != shown["details"]["prompts"]["sha256"]
    assert [prompt.count("Score:") for prompt, _ in model.seen] == [1, 1, 7, 7]
    assert all(prompt.endswith('two 1"\nScore:') for prompt, _ in model.seen[::2])


def test_the_examples_that_ship_cover_the_scale_and_keep_the_instruction():
    examples = load_prompts("score-examples").tasks["score"]
    assert [exemplar.output for exemplar in examples.exemplars] == ["5.0", "4.0", "3.0", "2.0", "1.0", "0.0"]
    assert examples.instructions == load_prompts("multicsr").tasks["score"].instructions


def never():
    raise AssertionError("the model was opened")


def test_mistakes_are_found_before_a_model_is_opened(suites, tmp_path):
    for wrong in ("transfer", "bitext", "diagnostics"):
        with pytest.raises(SettingsError, match=f"suite '{wrong}' needs vectors; .*: sts, sts-dev"):
            evaluate_directly(never, suites=["sts", wrong], data_dir=tmp_path, output=tmp_path)
    with pytest.raises(SettingsError, match="unknown suite 'sts-dve'; did you mean 'sts-dev'"):
        evaluate_directly(never, suites=["sts-dve"], data_dir=tmp_path, output=tmp_path)
    with pytest.raises(InputError, match="no such folder; --data-dir must hold sts/"):
        evaluate_directly(never, suites=["sts"], data_dir=tmp_path, output=tmp_path)
    names = suites(sts=[task("A", [1, 2])])
    layout = "template: {prompt: '{instruction}{exemplars}{inputs}', exemplar: '{inputs}{output}', input: '{input}'}\n"
    file = tmp_path / "prompts.yaml"
    file.write_text(layout + "tasks: {rate: {instructions: [Rate.], inputs: 2, parse: score}}\n")
    with pytest.raises(SettingsError, match=r"prompts.yaml: has no task 'score'; it has: rate"):
        evaluate_directly(never, suites=names, output=tmp_path, prompts=file)
    file.write_text(layout + "tasks: {score: {instructions: [Rate.], inputs: 3, parse: score}}\n")
    with pytest.raises(SettingsError, match=r"prompts.yaml: task 'score' is asked about 3 inputs; it needs 2"):
        evaluate_directly(never, suites=names, output=tmp_path, prompts=file)
    file.write_text(layout + "tasks: {score: {instructions: [Rate.], inputs: 2, parse: sentence}}\n")
    with pytest.raises(SettingsError, match=r"prompts.yaml: task 'score' is read as a sentence; it needs a score"):
        evaluate_directly(never, suites=names, output=tmp_path, prompts=file)
