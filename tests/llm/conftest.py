"""Tiny translation models: real MarianMT, random weights."""

from __future__ import annotations

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
