"""``sentsmith evaluate --llm`` from the outside: an endpoint, and a local model."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from sentsmith.cli.main import app
from sentsmith.errors import SentsmithError, SettingsError

# Word overlap (Jaccard, times 5): 5.0, 3.0, 1.2, 2.5, 0.0. Ranks 5 4 2 3 1 against gold's 4 5 1 2 3, the squares of
# their differences sum up to 8: Spearman 1 - 6 * 8 / (5 * 24) = 0.6.
STSB = "a b c d,a b c d,4\na b c d,a b c e,5\na b,a c d,1\na b c,a b d,2\na,b,3\n"
# The third pair holds no score and gets the mean of the others, 2.5, between them: ranks 3, 1, 2 against 3, 1, 2.
SICK = "1\tx y\tx y\t5\n2\tx\ty\t1\n3\tx unreadable\tx\t3\n"
HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"


def overlap(request, times):
    """Score by word overlap."""
    first, second = (
        set(text.split()) for text in re.findall(r'Sentence \d: "(.*)"', request["messages"][0]["content"])[-2:]
    )
    return "about three" if "unreadable" in first else f"{5 * len(first & second) / len(first | second):.1f}"


@pytest.fixture
def judge(endpoint):
    """Return the options of an endpoint that scores by word overlap."""
    endpoint.reply = overlap
    return ("--llm", f"{endpoint.url}#m")


@pytest.fixture
def data(tmp_path):
    """Return a data folder with the development parts."""
    for name, text in (("STSBenchmark/dev.csv", STSB), ("SICK/SICK_trial.txt", HEADER + SICK)):
        file = tmp_path / "data" / "sts" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path / "data"


def run(data, *arguments):
    fixed = ("--suite", "sts-dev", "--data-dir", data, "--output", data.parent / "out")
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), *map(str, fixed)])


def test_an_endpoint_that_scores_by_word_overlap(data, endpoint, judge, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-do-not-write-me")
    result = run(data, *judge, "--key-env", "MY_KEY", "--quiet")
    assert result.exit_code == 0, result.output
    assert "SICKR-dev: 1 of 3 answers hold no score (1 no score); they count as the mean" in result.stdout
    assert "8 questions asked, 0 answered before; " in result.stdout
    found = json.loads((data.parent / "out" / "results.json").read_text())
    assert found["scores"] == {"STSB-dev": pytest.approx(60), "SICKR-dev": pytest.approx(100)}
    assert found["averages"] == {"sts-dev": pytest.approx(80)}
    assert found["unreadable"] == {"STSB-dev": 0, "SICKR-dev": 1}
    assert found["model"].endswith("/v1#m")
    # Eight pairs, the unreadable one a second time, drawn.
    assert sorted(request.get("temperature") or 0 for request in endpoint.requests) == [0] * 8 + [0.7]
    assert endpoint.headers["authorization"] == "Bearer sk-do-not-write-me"
    assert not any(b"sk-do-not-write-me" in file.read_bytes() for file in (data.parent / "out").iterdir())
    again = run(data, *judge, "--key-env", "MY_KEY", "--quiet", "--json")
    assert len(endpoint.seen) == 9
    assert json.loads(again.stdout)["scores"] == found["scores"]
    retried = run(data, *judge, "--retry-quarantined", "--quiet", "--concurrency", 2)
    assert retried.exit_code == 0, retried.output
    assert len(endpoint.seen) > 9


def test_a_prompt_file_and_a_ledger_of_ones_own(data, endpoint, judge):
    ledger = data.parent / "answers.sqlite"
    result = run(data, *judge, "--prompts", "score-examples", "--ledger", ledger, "--max-new-tokens", 7, "--json")
    assert json.loads(result.stdout)["details"]["prompts"]["exemplars"] == 6
    assert all(prompt.count("Sentence 2:") == 7 for prompt in endpoint.seen)
    assert {request["max_tokens"] for request in endpoint.requests} == {7}
    assert ledger.is_file()
    assert [file.name for file in (data.parent / "out").iterdir()] == ["results.json"]


def test_a_dry_run_and_a_budget(data, endpoint, judge):
    prices = ("--price-in", 1, "--price-out", 2)
    result = run(data, *judge, *prices, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("8 requests (0 more are in the ledger already); about ")
    assert "at these prices" in result.stdout
    assert endpoint.seen == []
    # One more request must fit as a whole: so much is left for about three, of 10 tokens each.
    said = json.loads(run(data, *judge, "--dry-run", "--json").stdout)
    budget = (said["prompt_tokens"] + said["answer_tokens"]) // 8 + 3 * 10
    stopped = run(data, *judge, *prices, "--budget", budget, "--concurrency", 1)
    assert stopped.exit_code == 0, stopped.output
    asked = len(endpoint.seen)
    assert 0 < asked < 8
    assert f"the budget is used up, {8 - asked} of 8 pairs are still to be asked: run the same" in stopped.stdout
    assert "no results.json yet" in stopped.stdout
    said = json.loads(run(data, *judge, "--budget", "1", "--json").stdout)
    assert (said["pending"], said["asked"], said["stopped"]) == (8 - asked, 0, True)
    assert not (data.parent / "out" / "results.json").exists()
    whole = run(data, *judge, *prices)
    assert f"{8 - asked} questions asked, {asked} answered before" in whole.stdout
    assert (data.parent / "out" / "results.json").exists()


def test_an_endpoint_that_never_answers(data, endpoint, judge, quick_retries):
    endpoint.reply = lambda request, times: ("fault", "hang") if times == 0 and "a c d" in str(request) else "3.0"
    result = run(data, *judge, "--timeout", 0.2, "--attempts", 1)
    assert result.exit_code == 0, result.output
    assert "No answer came to 1 of them: --retry-quarantined asks again" in result.stdout


@pytest.fixture(scope="module")
def echo_of_numbers(tmp_path_factory):
    """Return a real LLaMA that answers with a number for the last word of its prompt, and ends.

    Its layers add nothing, so the next token is what the head has for the last one: "five" → "5.0" → the end.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = ["<s>", "</s>", "<pad>", "<unk>", "five", "three", "one", "none", "5.0", "3.0", "1.0", "many"]
    numbers = {word: place for place, word in enumerate(names)}
    backend = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    folder = tmp_path_factory.mktemp("numbers")
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    size = len(names)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        head = torch.zeros(size, size)
        follows = {"five": "5.0", "three": "3.0", "one": "1.0", "none": "many", "many": "many", "<unk>": "many"}
        for word, answer in (*follows.items(), *((number, "</s>") for number in ("5.0", "3.0", "1.0"))):
            head[numbers[answer], numbers[word]] = 100.0  # certain, even where it is drawn
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    return folder


def test_a_local_model(data, echo_of_numbers):
    prompts = data.parent / "prompts.yaml"
    prompts.write_text(
        "template: {prompt: '{exemplars}{instruction} {inputs}', exemplar: '{inputs}{output}', input: '{input} '}\n"
        "tasks: {score: {instructions: [Rate.], inputs: 2, parse: score}}\n"
    )
    (data / "sts" / "STSBenchmark" / "dev.csv").write_text("a,five,1\na,three,2\na,one,3\n")
    (data / "sts" / "SICK" / "SICK_trial.txt").write_text(HEADER + "1\ta\tone\t1\n2\ta\tnone\t3\n3\ta\tfive\t5\n")
    result = run(data, "--llm", echo_of_numbers, "--prompts", prompts, "--batch", 2, "--json", "--quiet")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["scores"] == {"STSB-dev": pytest.approx(-100), "SICKR-dev": pytest.approx(100)}
    assert found["unreadable"] == {"STSB-dev": 0, "SICKR-dev": 1}


def test_a_model_that_never_answers_with_a_number_is_told(data, echo_of_numbers):
    result = run(data, "--llm", echo_of_numbers)
    assert isinstance(result.exception, SentsmithError)
    assert result.exception.exit_code == 1
    assert re.search(
        r"none of 8 answers holds a score \(8 .*\). Does the model follow these prompts\?", str(result.exception)
    )
    assert not (data.parent / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to measure: give a MODEL .* or --llm SPEC"),
        (["minilm", "--llm", "m"], "--llm and minilm: measure one or the other"),
        *(
            (["minilm", *given], f"{given[0]} is for a language model: give --llm SPEC in place of MODEL")
            for given in (
                ["--prompts", "multicsr"],
                ["--retry-quarantined"],
                ["--key-env", "K"],
                ["--budget", "1k"],
                ["--price-in", "1"],
                ["--price-out", "1"],
                ["--dry-run"],
                ["--timeout", "9"],
                ["--attempts", "2"],
                ["--device", "cpu"],
                ["--max-new-tokens", "16"],
                ["--ledger", "l"],
                ["--batch", "4"],
                ["--concurrency", "16"],
            )
        ),
        (["--llm", "m", "--budget", "lots"], "budget 'lots'"),
        (["--llm", "m", "--price-in", "1"], "--price-in and --price-out need each other"),
        (["--llm", "m", "--tokens", "8"], "--tokens is for the suite diagnostics, which --llm has not"),
    ],
)
def test_one_of_model_and_llm_with_its_own_options(data, arguments, message):
    result = run(data, *arguments)
    assert isinstance(result.exception, SettingsError)
    assert re.search(message, str(result.exception))
    assert not (data.parent / "out").exists()


@pytest.mark.slow
def test_the_small_language_model_scores_weakly_but_not_by_chance(data_dir, data, nli_lm):
    for name in ("STSBenchmark/dev.csv", "SICK/SICK_trial.txt"):
        lines = (data_dir / "sts" / name).read_text(encoding="utf-8").split("\n")[:301]
        (data / "sts" / name).write_text("\n".join(lines), encoding="utf-8")
    result = run(data, "--llm", nli_lm, "--prompts", "nli-lm-8m", "--json", "--quiet")
    found = json.loads(result.stdout)
    assert all(10 < score < 60 for score in found["scores"].values())
    assert sum(found["unreadable"].values()) < 30
