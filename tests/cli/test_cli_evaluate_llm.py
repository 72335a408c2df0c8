"""``sentsmith evaluate --llm`` from the outside: an endpoint, and a local model."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


class Overlap(BaseHTTPRequestHandler):
    """An endpoint that scores by word overlap, and says what it was asked."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][0]["content"]
        self.server.asked.append((prompt, body.get("temperature"), self.headers["Authorization"]))
        first, second = (set(text.split()) for text in re.findall(r'Sentence \d: "(.*)"', prompt)[-2:])
        score = f"{5 * len(first & second) / len(first | second):.1f}"
        answer = "about three" if "unreadable" in first else score
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def endpoint():
    """Yield a running server; ``asked`` holds what it was asked."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Overlap) as server:
        server.asked = []
        server.spec = f"http://127.0.0.1:{server.server_address[1]}/v1#m"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


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


def test_an_endpoint_that_scores_by_word_overlap(data, endpoint, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-do-not-write-me")
    result = run(data, "--llm", endpoint.spec, "--key-env", "MY_KEY", "--quiet")
    assert result.exit_code == 0, result.output
    assert "SICKR-dev: 1 of 3 answers hold no score (1 no score); they count as the mean" in result.stdout
    found = json.loads((data.parent / "out" / "results.json").read_text())
    assert found["scores"] == {"STSB-dev": pytest.approx(60), "SICKR-dev": pytest.approx(100)}
    assert found["averages"] == {"sts-dev": pytest.approx(80)}
    assert found["unreadable"] == {"STSB-dev": 0, "SICKR-dev": 1}
    assert found["model"].endswith("/v1#m")
    # Eight pairs, the unreadable one a second time, drawn.
    assert sorted(temperature or 0 for _, temperature, _ in endpoint.asked) == [0] * 8 + [0.7]
    assert {key for *_, key in endpoint.asked} == {"Bearer sk-do-not-write-me"}
    assert not any(b"sk-do-not-write-me" in file.read_bytes() for file in (data.parent / "out").iterdir())
    again = run(data, "--llm", endpoint.spec, "--key-env", "MY_KEY", "--quiet", "--json")
    assert len(endpoint.asked) == 9
    assert json.loads(again.stdout)["scores"] == found["scores"]
    retried = run(data, "--llm", endpoint.spec, "--retry-quarantined", "--quiet", "--concurrency", 2)
    assert retried.exit_code == 0, retried.output
    assert len(endpoint.asked) > 9


def test_a_prompt_file_and_a_ledger_of_ones_own(data, endpoint):
    ledger = data.parent / "answers.sqlite"
    result = run(data, "--llm", endpoint.spec, "--prompts", "score-examples", "--ledger", ledger, "--json", "--quiet")
    assert json.loads(result.stdout)["details"]["prompts"]["exemplars"] == 6
    assert all(prompt.count("Sentence 2:") == 7 for prompt, *_ in endpoint.asked)
    assert ledger.is_file()
    assert [file.name for file in (data.parent / "out").iterdir()] == ["results.json"]


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
        (["minilm", "--prompts", "multicsr"], "--prompts asks a language model: give --llm"),
        (["minilm", "--retry-quarantined"], "--retry-quarantined asks a language model"),
        (["minilm", "--key-env", "K"], "--key-env asks a language model"),
        (["--llm", "m", "--tokens", "8"], "--tokens is for the suite diagnostics, which --llm has not"),
    ],
)
def test_one_of_model_and_llm_with_its_own_options(data, arguments, message):
    result = run(data, *arguments)
    assert isinstance(result.exception, SettingsError)
    assert re.search(message, str(result.exception))
    assert not (data.parent / "out").exists()


@pytest.mark.slow
def test_the_small_language_model_scores_weakly_but_not_by_chance(data_dir, data):
    model = data_dir.parent / "models" / "nli-lm-8m"
    if not model.is_dir():
        pytest.skip("the model nli-lm-8m is not beside the development data")
    for name in ("STSBenchmark/dev.csv", "SICK/SICK_trial.txt"):
        lines = (data_dir / "sts" / name).read_text(encoding="utf-8").split("\n")[:301]
        (data / "sts" / name).write_text("\n".join(lines), encoding="utf-8")
    result = run(data, "--llm", model, "--prompts", "nli-lm-8m", "--json", "--quiet")
    found = json.loads(result.stdout)
    assert all(10 < score < 60 for score in found["scores"].values())
    assert sum(found["unreadable"].values()) < 30
