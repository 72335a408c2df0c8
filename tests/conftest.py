"""What the tests share: tiny real models, a few sentences, and the folder of development data where it is."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
# Tests run in several processes, on tiny models: threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

WORDS = (  # noqa: SIM905
    "a an the man woman child dog cat bird plays eats reads sings runs sleeps guitar soup book song park house river "
    "is are on in near with and not red blue small large old young quickly slowly again never someone nobody , . ?"
).split()


def _shared_fixtures(folder: str):
    """Return the fixtures of a folder's ``conftest.py``, for the tests of other folders."""
    file = Path(__file__).parent / folder / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"fixtures_of_{folder}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Whoever asks a language model is tested against one without weights, and against a real HTTP server.
_llm = _shared_fixtures("llm")
endpoint, quick_retries, scripted = _llm.endpoint, _llm.quick_retries, _llm.scripted
make_writer, save_writer, nli_lm = _llm.make_writer, _llm.save_writer, _llm.nli_lm
brief_writer = _llm.brief_writer


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the development data, or skip."""
    folder = Path(os.environ.get("SENTSMITH_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the development data is not here; set SENTSMITH_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Return 60 different short sentences of very different length."""
    import random

    dice = random.Random(0)
    return [" ".join(dice.choices(WORDS, k=dice.randint(2, 24))) + " ." for _ in range(60)]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """Return a real WordPiece tokenizer over a tiny vocabulary."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)), encoding="utf-8")
    backend = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    return BertTokenizerFast(tokenizer_object=backend._tokenizer, model_max_length=64)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory, tokenizer) -> Path:
    """Return the folder of a tiny BERT (2 layers, width 32, dropout 0.1), plain transformers format."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-bert")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        # The usual 0.02 makes all vectors of so small a model alike, and every gradient vanish.
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory, tokenizer) -> Path:
    """Return the folder of a tiny LLaMA (2 layers, width 32), plain transformers format."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-llama")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
        initializer_range=0.3,
    )
    LlamaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentence_file(tmp_path_factory, sentences) -> Path:
    """Return a file of the sentences, one a line."""
    file = tmp_path_factory.mktemp("data") / "sentences.txt"
    file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def tiny_settings(tiny_bert, sentence_file) -> dict:
    """Return the settings of a SimCSE run of the tiny BERT that takes part of a second and visibly learns."""
    return {
        "method": "simcse",
        "model": str(tiny_bert),
        "data": {"train": str(sentence_file), "held_out": 0.0},
        "training": {
            "batch_size": 8,
            "learning_rate": 5e-3,
            "max_steps": 4,
            "precision": "fp32",
            "max_length": 32,
            "eval_steps": 2,
        },
    }


@pytest.fixture(scope="session")
def trains():
    """Return a function from a method and its settings to one that trains by them.

    That one takes a folder and overrides, and returns the run record.
    """
    from sentsmith import settings
    from sentsmith.methods.registry import load_method

    def trains(method, values):
        recipe = load_method(method)

        def train(output, *overrides, resume=False, overwrite=False):
            resolved = settings.resolve(recipe.Recipe, values, overrides)
            return recipe.run(resolved, output, resume=resume, overwrite=overwrite)

        return train

    return trains


@pytest.fixture(scope="session")
def train_tiny(trains, tiny_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("simcse", tiny_settings)


@pytest.fixture(scope="session")
def killed_training(sentsmith_process):
    """Return a function that trains in a process of its own and kills it once the file ``blocked`` is there.

    It takes a folder to work in, settings, overrides and the code that makes ``blocked`` and waits; it returns the
    folder of the unfinished run.
    """
    import yaml

    def killed(here, values, overrides, before):
        here.mkdir()
        (here / "r.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        sets = [part for override in overrides for part in ("--set", override)]
        command = sentsmith_process("train", "r.yaml", "--output", "model", *sets, cwd=here, before=before)
        command.wait_for((here / "blocked").exists)
        command.kill()
        assert command.returncode == -9
        assert not (here / "model" / "run.json").exists()
        return here / "model"

    return killed


@pytest.fixture(scope="session")
def blocked_at():
    """Return a function from a step to the code that stops the world after it, for :func:`killed_training`."""

    def code(step):
        return f"""
            import pathlib, signal
            from sentsmith.training.trainer import LossLog
            def on_log(self, args, state, control, **kwargs):
                if state.global_step == {step}:
                    pathlib.Path("blocked").touch()
                    signal.pause()
            LossLog.on_log = on_log
"""

    return code


@pytest.fixture(scope="module")
def small_blocks():
    """Embed files in blocks of 16 rows; the value is the code that does so in another process."""
    from sentsmith.encoders import vectorfile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorfile, "_BLOCK", 16)
        yield """
            from sentsmith.encoders import vectorfile
            vectorfile._BLOCK = 16
"""


@pytest.fixture(scope="session")
def assert_same_run():
    """Return a function that compares the weights of two runs, to the bit, and these keys of their records.

    It returns the two records.
    """
    import numpy as np
    from safetensors.numpy import load_file

    def weights(folder):
        return {
            (str(file.relative_to(folder)), name): value
            for file in sorted(folder.rglob("*.safetensors"))
            for name, value in load_file(file).items()
        }

    def check(first, second, *keys):
        one, two = weights(first), weights(second)
        assert one
        assert one.keys() == two.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name], err_msg=str(name))
        records = [json.loads((folder / "run.json").read_text(encoding="utf-8")) for folder in (first, second)]
        for key in ("settings_sha256", "data", "selection", "loss", *keys):
            assert records[0][key] == records[1][key]
        return records

    return check


class Command:
    """``sentsmith`` in a process of its own, which can be killed; the output goes to files beside ``cwd``."""

    def __init__(self, context, arguments, cwd, before):
        self.out, self.err = (cwd.parent / f"{cwd.name}-{os.urandom(4).hex()}.{end}" for end in ("out", "err"))
        code = f"""if True:
            import os, sys
            os.chdir({str(cwd)!r})
            for number, path in ((1, {str(self.out)!r}), (2, {str(self.err)!r})):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), number)
            sys.argv = ["sentsmith", *{[str(argument) for argument in arguments]!r}]
            {before}
            from sentsmith.cli.main import main
            main()
        """
        # The fork server has imported the heavy libraries once; `exec` needs no module of the tests to be importable.
        self.process = context.Process(target=exec, args=(code, {"__name__": "__main__"}))
        self.process.start()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.wait()

    def wait_for(self, reached):
        """Wait until ``reached()``, which the command has to bring about while it runs."""
        deadline = time.monotonic() + 120
        while not reached():
            assert self.running, self.stderr
            assert time.monotonic() < deadline, "the command hangs"
            time.sleep(0.005)

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)
        return self.wait()

    def wait(self):
        self.process.join(120)
        assert self.process.exitcode is not None, "the command hangs"
        return self

    @property
    def running(self):
        return self.process.is_alive()

    @property
    def returncode(self):
        return self.process.exitcode

    @property
    def stdout(self):
        return self.out.read_text(encoding="utf-8")

    @property
    def stderr(self):
        return self.err.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def sentsmith_process():
    """Return a function that starts ``sentsmith ARGUMENTS`` in the folder ``cwd`` and returns a :class:`Command`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sentsmith.training.run", "sentsmith.encoders.vectorfile"])
    started = []

    def start(*arguments, cwd, before=""):
        started.append(Command(context, arguments, cwd, before))
        return started[-1]

    yield start
    for command in started:
        if command.running:
            command.kill()


@pytest.fixture(scope="session")
def in_two_processes(tmp_path_factory):
    """Return a function that calls ``function(rank, *arguments)``, a function of a test's file, in two processes.

    They form a group of ``torch.distributed`` (gloo). Returns what the two returned, in the order of their ranks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sentsmith.training.run", "sentsmith.encoders.vectorfile"])

    def call(function, *arguments):
        import torch

        folder = tmp_path_factory.mktemp("processes")
        torch.save(arguments, folder / "arguments")
        code = f"""if True:
            import datetime, os, runpy, traceback
            os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")
            import torch
            torch.set_num_threads(1)
            try:
                torch.distributed.init_process_group(
                    "gloo", init_method="file://{folder / "store"}", rank=int(rank), world_size=2,
                    timeout=datetime.timedelta(seconds=60),
                )
                arguments = torch.load({str(folder / "arguments")!r}, weights_only=False)
                function = runpy.run_path({function.__code__.co_filename!r})[{function.__name__!r}]
                torch.save(function(int(rank), *arguments), {str(folder)!r} + "/" + rank)
                torch.distributed.destroy_process_group()
            except BaseException:
                with open({str(folder)!r} + "/error-" + rank, "w") as stream:
                    traceback.print_exc(file=stream)
                raise
        """
        processes = [context.Process(target=exec, args=(code, {"rank": str(rank)})) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            if process.is_alive():
                process.kill()
        errors = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("error-*")))
        assert [process.exitcode for process in processes] == [0, 0], errors
        return [torch.load(folder / str(rank), weights_only=False) for rank in range(2)]

    return call


@pytest.fixture(scope="session", autouse=True)
def _imports_set_aside():
    """Spare the garbage collector the imported libraries: the trainer calls it in each run, half a second a time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _packages_read_once():
    """Spare the libraries reading which packages are installed, as they do for every model: a tenth of a training."""
    distribution = importlib.metadata.Distribution
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "from_name", staticmethod(functools.cache(distribution.from_name)))
        patch.setattr(distribution, "metadata", property(functools.cache(distribution.metadata.fget)))
        yield


@pytest.fixture(autouse=True)
def _quiet_log():
    """Undo what a command of the test did to the library's log: one test's level is not the next one's."""
    import logging

    logger = logging.getLogger("sentsmith")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs ``sentsmith ARGUMENTS`` in this process and returns (exit code, stdout, stderr)."""
    import sys

    from sentsmith.cli.main import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sentsmith", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call
