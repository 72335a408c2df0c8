"""The representative word: what a decoder would say at the end of its prompt.

BeLLM's vector is the state that says the next word. Here that word is said, by the language model's own head, the
likeliest token each time. The paper (Li and Li 2024) reports that 91.74 % of the words are no frequent words and
does not say what is frequent; here the stop words of scikit-learn are (``ENGLISH_STOP_WORDS``, 318 of them), and where
no word comes at all, but a quotation mark or another sign, that counts as frequent too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sentsmith.encoders.chunked import Features, forward
from sentsmith.encoders.embedding import INFERENCE, evaluation_mode
from sentsmith.encoders.loading import loading_errors, refuse_pickled_weights, resolve
from sentsmith.encoders.readout import last_token, states_at
from sentsmith.errors import InputError
from sentsmith.methods.bellm.encoder import encoder_of, is_saved_decoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TOKENS = 6
"""So many tokens are said at most: a word of more is read as far as they go."""

_BLOCK = 512  # sentences
# Letters and digits, joined inside by hyphens and apostrophes.
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_MAY_GO_ON = ("", "'", "’", "-", "\ufffd")  # after a word, or before one; the last is half a character


@dataclass(frozen=True)
class Word:
    """What is said of one sentence.

    Attributes:
        sentence: The sentence.
        word: As it was said; empty if no word was.
        frequent: Whether it is a stop word, or no word.
        in_sentence: Whether it is one of the sentence's own words, upper and lower case being the same.
    """

    sentence: str
    word: str
    frequent: bool
    in_sentence: bool


def summary(words: Sequence[Word]) -> dict[str, Any]:
    """Return ``sentences``, ``different`` (how many words, upper and lower case being the same; no word is none).

    And the shares, from 0 to 1: ``infrequent`` (the paper's 0.9174), ``in_sentence`` and ``no_word``.

    Raises:
        InputError: There are no words to sum up.
    """
    if not words:
        raise InputError("there is no sentence to say a word for")
    count = len(words)
    return {
        "sentences": count,
        "infrequent": sum(not each.frequent for each in words) / count,
        "in_sentence": sum(each.in_sentence for each in words) / count,
        "no_word": sum(not each.word for each in words) / count,
        "different": len({each.word.lower() for each in words if each.word}),
    }


def open_speaker(
    name: str | Path,
    *,
    head: str | Path | None = None,
    template: str | None = None,
    both_ways_from: int | str | None = None,
    device: str | None = None,
) -> tuple[SentenceTransformer, nn.Module]:
    """Return a decoder as an encoder, and the head that says words of its states.

    Args:
        name: A decoder's folder or hub name, or one of our saved models (whose head is not saved).
        head: The language model whose head it is; for one of ours that has the same embeddings at both ends, and for
            a plain decoder, nothing need be given.
        template: Another prompt than the model's.
        both_ways_from: Another first layer; see :func:`sentsmith.methods.bellm.encoder.encoder_of`.
        device: Where to; the fastest present by default.

    Raises:
        InputError: No such model, no head, or one of another model.
    """
    source = head if head is not None or is_saved_decoder(resolve(name)) else name
    # Before the model: read whole, the language model is as large.
    found = None if source is None else load_head(source)
    model = encoder_of(name, template=template, both_ways_from=both_ways_from, merge=False, device=device)
    decoder: Any = model[0]
    embeddings = decoder.model.get_input_embeddings().weight
    if found is None:
        if not decoder.model.config.get_text_config().tie_word_embeddings:
            raise InputError("is saved without the head that says words; give --head FOLDER, its base", path=name)
        found = nn.Linear(embeddings.shape[1], embeddings.shape[0], bias=False, device="meta")
        found.weight = nn.Parameter(embeddings.detach(), requires_grad=False)
    if found.weight.shape != embeddings.shape:
        shapes = " and ".join(f"{list(weight.shape)}" for weight in (found.weight, embeddings))
        raise InputError(
            f"its head and the model's embeddings are {shapes}, tokens × width; give its base", path=source
        )
    return model, found.to(model.device)


def load_head(name: str | Path) -> Any:
    """Return the last layer of a language model: states to one number for each token.

    Raises:
        InputError: No such model, no weights in safetensors, or it has no head.
    """
    from transformers import AutoModelForCausalLM

    folder = resolve(name)
    refuse_pickled_weights(folder)
    with loading_errors(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder), use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    model, loading = loaded
    head = model.get_output_embeddings()
    names = [place for place, module in model.named_modules() if module is head]
    if not names or any(missing.startswith(f"{names[0]}.") for missing in loading["missing_keys"]):
        raise InputError("has no head that says words; give --head FOLDER, a language model's", path=folder)
    return head


def representative_words(
    model: SentenceTransformer,
    head: nn.Module,
    sentences: Sequence[str],
    *,
    tokens: int = TOKENS,
    advance: Callable[[int], None] | None = None,
) -> list[Word]:
    """Return the word of each sentence, in their order.

    Layers that look both ways see each new token from the first one on, and nothing of an earlier pass can be kept:
    the prompt is read again for each token. A word ends at the quotation mark that closes it, a space or another sign.

    Args:
        model: One that begins with :class:`sentsmith.encoders.decoder.Decoder`.
        head: See :func:`open_speaker`.
        sentences: Any number.
        tokens: Said at most, for one word.
        advance: Told how many sentences were done.
    """
    runner, found = _Says(model[0], head), list[Word]()
    with evaluation_mode(runner), torch.no_grad():
        for start in range(0, len(sentences), _BLOCK):
            block = sentences[start : start + _BLOCK]
            found += map(word_for, block, _block(runner, block, tokens))
            if advance is not None:
                advance(len(block))
    return found


def word_for(sentence: str, said: str) -> Word:
    """Return the word that begins what was said of a sentence, judged."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    word = _word_of(said)
    own = {each.lower() for each in _WORD.findall(sentence)}
    return Word(sentence, word, not word or word.lower() in ENGLISH_STOP_WORDS, word.lower() in own)


class _Says(nn.Module):
    """Adds the likeliest next token, int64 ``[rows, 1]``, as ``next``."""

    def __init__(self, decoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.decoder: Any = decoder
        self.head: Any = head

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        states = self.decoder(dict(features))["token_embeddings"]
        last = states_at(states, last_token(features["attention_mask"]))
        return {"next": self.head(last.to(self.head.weight.dtype)).argmax(dim=-1, keepdim=True)}


def _block(runner: _Says, sentences: Sequence[str], tokens: int) -> list[str]:
    """Return what is said of each sentence, until its word is whole."""
    decoder = runner.decoder
    longest = decoder.max_seq_length
    # A learned position ends where the model does: what is said needs room there.
    features = decoder.preprocess(list(sentences), max_length=longest and max(longest - tokens, 1))
    prompts = [ids[mask.bool()] for ids, mask in zip(features["input_ids"], features["attention_mask"], strict=True)]
    said: list[list[int]] = [[] for _ in prompts]
    unfinished = list(range(len(prompts)))
    for _ in range(tokens):
        texts = [torch.cat([prompts[row], prompts[row].new_tensor(said[row])]) for row in unfinished]
        following = forward(runner, _padded(texts, decoder.model.device), INFERENCE, output="next")
        for row, token in zip(unfinished, following[:, 0].tolist(), strict=True):
            said[row].append(token)
        unfinished = [row for row in unfinished if not _is_whole(decoder.tokenizer.decode(said[row]))]
        if not unfinished:
            break
    return [decoder.tokenizer.decode(ids) for ids in said]


def _padded(texts: Sequence[Tensor], device: torch.device) -> Features:
    ids = pad_sequence(list(texts), batch_first=True)
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _word_of(said: str) -> str:
    """Return the word that a text begins with; empty if it begins with something else."""
    match = _WORD.match(said.lstrip())
    return match[0] if match else ""


def _is_whole(said: str) -> bool:
    """Whether nothing that comes after can change the word."""
    text = said.lstrip()
    return text.removeprefix(_word_of(text)) not in _MAY_GO_ON
