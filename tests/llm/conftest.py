"""Tiny translation models (real MarianMT, random weights), a backend without a model, a real HTTP endpoint."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture(scope="session")
def make_translator(tmp_path_factory, tokenizer):
    """Return a function that saves a MarianMT of 1 + 1 layers and width 16, and returns its folder.

    Left alone, random weights repeat one word for ever. No word twice, and an end that grows likelier with the
    length, make them write different texts of different length that do come to an end.
    """

    def make(seed, *, tokenizer=tokenizer, **generation):
        import torch
        from transformers import MarianConfig, MarianMTModel

        torch.manual_seed(seed)
        config = MarianConfig(
            vocab_size=len(tokenizer),
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=64,
            init_std=0.5,
            pad_token_id=tokenizer.pad_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.sep_token_id or tokenizer.eos_token_id,
            forced_eos_token_id=tokenizer.sep_token_id or tokenizer.eos_token_id,
        )
        model = MarianMTModel(config)
        defaults = {
            "bad_words_ids": [[tokenizer.pad_token_id]],
            "no_repeat_ngram_size": 1,
            "exponential_decay_length_penalty": (2, 1.1),
        }
        model.generation_config.update(**defaults | generation)
        folder = tmp_path_factory.mktemp(f"translator-{seed}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def there(make_translator):
    """Return the folder of a model that translates into another language, so to speak."""
    return make_translator(7)


@pytest.fixture(scope="session")
def back(make_translator):
    """Return the folder of a model that translates back."""
    return make_translator(11)


class Scripted:
    """A backend whose answers a function gives: (prompt, decoding) → text or Answer; blocks as a local one has.

    One that does not guide is no local one either.
    """

    concurrency = 1

    def __init__(self, reply, *, block=4, name="scripted", guides=True):
        self.reply, self.block, self.name, self.guides, self.local = reply, block, name, guides, guides
        self.seen = []
        self.pulled = 0
        self.closed = 0

    def answers(self, prompts, decoding):
        from sentsmith.llm.backend import Answer

        stream = iter(prompts)
        try:
            while block := list(itertools.islice(stream, self.block)):
                self.pulled += len(block)
                batch = []
                for key, prompt in block:
                    self.seen.append((prompt.text, decoding))
                    reply = self.reply(prompt, decoding)
                    if isinstance(reply, str):
                        read, written = self.count_tokens([prompt.text, reply])
                        reply = Answer(reply, finished=True, prompt_tokens=read, answer_tokens=written, seconds=0.5)
                    batch.append((key, reply))
                yield batch
        finally:
            self.closed += 1

    def count_tokens(self, texts):
        return [len(text.split()) for text in texts]


@pytest.fixture
def scripted():
    """Return the class of backends whose answers a function gives."""
    return Scripted


class Endpoint:
    """An OpenAI-compatible endpoint on this machine.

    Attributes:
        reply: Called with the request's JSON and how often this very text was sent before; returns text, a body (dict)
            or a fault: ``hang``, ``drop``, ``half`` or ``drip`` as ``("fault", name)``, or ``(status, headers, body)``.
        answered: How often each text was answered as it should be.
        seen: Texts in the order of their requests.
        requests: Their JSON.
        headers: Of the last request, their names in lower case.
        most: Requests under way at a time, at most.
    """

    def __init__(self):
        self.reply = lambda request, times: "yes"
        self.answered, self.sent, self.seen, self.requests = Counter(), Counter(), [], []
        self.headers, self.under_way, self.most = {}, 0, 0
        self.hang = 5.0
        self.lock = threading.Lock()
        self.stop = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                endpoint.handle(self)

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, address):
                pass  # the client went away, which is what is tested

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle(self, handler):
        request = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        text = request["messages"][0]["content"]
        with self.lock:
            times = self.sent[text]
            self.sent[text] += 1
            self.seen.append(text)
            self.requests.append(request)
            self.headers = {name.lower(): value for name, value in handler.headers.items()}
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            self.respond(handler, text, self.reply(request, times))
        finally:
            with self.lock:
                self.under_way -= 1

    def respond(self, handler, text, reply):
        if reply == ("fault", "drop"):
            handler.close_connection = True
            handler.connection.close()
            return
        if reply == ("fault", "hang"):
            self.stop.wait(self.hang)
            handler.close_connection = True
            return
        status, headers, body = reply if isinstance(reply, tuple) and len(reply) == 3 else (200, {}, reply)
        if isinstance(reply, str):
            body = completion(reply)
        data = json.dumps(completion("half")).encode()[:40] if body == ("fault", "half") else json.dumps(body).encode()
        if body == ("fault", "drip"):
            data = json.dumps(completion("drip")).encode()
        if isinstance(reply, str):
            # Before it is sent: afterwards, the test may look before this thread goes on.
            with self.lock:
                self.answered[text] += 1
        handler.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": len(data)} | headers).items():
            handler.send_header(name, str(value))
        handler.end_headers()
        for piece in [data] if body != ("fault", "drip") else [data[index : index + 1] for index in range(len(data))]:
            handler.wfile.write(piece)
            if len(piece) < len(data):
                time.sleep(0.02)

    def close(self):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()


def completion(text, **fields):
    """Return the JSON of a chat completion."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}} | fields
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def endpoint():
    """Return an :class:`Endpoint` that listens."""
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture
def quick_retries(monkeypatch):
    """Let the client try again at once, and not after half a second and more."""
    import openai._base_client

    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.002)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.01)


def _tiny_writer(kind, size):
    """Return a tiny model of this kind that writes, with random weights large enough to tell prompts apart."""
    import torch
    import transformers as t

    torch.manual_seed(1)
    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    rotary = {**width, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
    signs = {"vocab_size": size, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**signs, **rotary))
    if kind.startswith("qwen3"):
        sliding = kind == "qwen3-sliding"
        window = {"use_sliding_window": sliding, "sliding_window": 6, "max_window_layers": 1, "head_dim": 8}
        return t.Qwen3ForCausalLM(t.Qwen3Config(**signs, **rotary, **window))
    if kind == "gpt2":
        return t.GPT2LMHeadModel(
            t.GPT2Config(**signs, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
        )
    if kind == "t5":
        feed = {
            "feed_forward_proj": "gated-gelu",
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
        }
        config = t.T5Config(**{**signs, "bos_token_id": None}, **feed, decoder_start_token_id=0, initializer_factor=4.0)
        return t.T5ForConditionalGeneration(config)
    halves = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    config = t.BartConfig(
        **signs, **halves, d_model=32, max_position_embeddings=64, init_std=0.6, decoder_start_token_id=3,
        forced_bos_token_id=None, forced_eos_token_id=None,
    )  # fmt: skip
    return t.BartForConditionalGeneration(config)


@pytest.fixture(scope="session")
def make_writer(tokenizer):
    """Return a function that builds a tiny model that writes: llama, qwen3, qwen3-sliding, gpt2, t5 or bart."""
    return lambda kind: _tiny_writer(kind, len(tokenizer)).eval()


@pytest.fixture(scope="session")
def save_writer(tmp_path_factory, tokenizer, make_writer):
    """Return a function that saves such a model beside a tokenizer (the words' own) and returns the folder."""
    import copy

    own = copy.deepcopy(tokenizer)
    own.eos_token = "[SEP]"

    def save(kind, *, tokenizer=own, change=lambda model: None, **generation):
        model = make_writer(kind)
        change(model)
        model.generation_config.update(**generation)
        folder = tmp_path_factory.mktemp(f"writer-{kind}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def brief_writer(save_writer):
    """Return the folder of a tiny LLaMA most of whose answers come to their end after a few words."""
    import torch

    def change(model):
        with torch.no_grad():
            model.lm_head.weight[model.config.eos_token_id] *= 3

    return save_writer("llama", change=change)


@pytest.fixture(scope="session")
def nli_lm(data_dir):
    """Return the folder of the small real language model beside the development data, or skip."""
    folder = data_dir.parent / "models" / "nli-lm-8m"
    if not folder.is_dir():
        pytest.skip("the development model nli-lm-8m is not here; it lies in models/ beside the data")
    return folder
