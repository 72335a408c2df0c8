"""What the tests share: tiny real models, a few sentences, and the folder of development data where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

WORDS = (
    "a an the man woman child dog cat bird plays eats reads sings runs sleeps guitar soup book song park house river "
    "is are on in near with and not red blue small large old young quickly slowly again never someone nobody , . ?"
).split()


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
