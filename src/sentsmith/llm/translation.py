"""A translation model that turns sentences of one language into another: MarianMT, or any encoder-decoder."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sentsmith.errors import InputError, SettingsError
from sentsmith.llm import loading

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_SHORT = re.compile(r"marian:(\w+)-(\w+)-(\w+)")
_ALLOWED = (
    "use THERE,BACK, two translation models by folder or hub name "
    "(Helsinki-NLP/opus-mt-en-fr,Helsinki-NLP/opus-mt-fr-en), or marian:en-fr-en, short for these two"
)


class Translator(Protocol):
    """What turns sentences of one language into another."""

    def translate(self, sentences: list[str]) -> list[str]:
        """Return one translation per sentence, in order; an empty string where there is none."""
        ...


def model_names(spec: str) -> tuple[str, str]:
    """Return the models that translate there and back, by folder or hub name.

    Args:
        spec: ``THERE,BACK``, or ``marian:en-fr-en`` for the pair of models of Helsinki-NLP.

    Raises:
        SettingsError: Anything else.
    """
    short = _SHORT.fullmatch(spec)
    if short:
        first, middle, last = short.groups()
        if first != last or first == middle:
            raise SettingsError(f"--llm {spec!r} does not lead to another language and back; {_ALLOWED}")
        return f"Helsinki-NLP/opus-mt-{first}-{middle}", f"Helsinki-NLP/opus-mt-{middle}-{first}"
    names = [name.strip() for name in spec.split(",")]
    if len(names) != 2 or not all(names) or any(name.startswith("marian:") for name in names):
        raise SettingsError(f"--llm {spec!r} names no two translation models; {_ALLOWED}")
    return names[0], names[1]


def model_folder(name: str | Path) -> Path:
    """Return the folder of a translation model; see :func:`sentsmith.llm.loading.model_folder`."""
    return loading.model_folder(name, advice="give the folders of two translation models: --llm THERE,BACK")


class MarianTranslator:
    """An encoder-decoder model of transformers as a translator; MarianMT is the family it is meant for.

    A sentence's translation does not depend on the sentences beside it: they are batched by length, padding is masked,
    and the limits count the tokens of one sentence. (Float rounding differs with a batch's shape, so two words of
    exactly equal probability may still fall either way.) Nothing is cut silently: a sentence longer than the model
    reads, and a translation that does not come to its end (a long one, or a model that repeats itself), give "".

    Args:
        name: A folder or hub name. Models that need to be told the language (a code or a prefix in the text) get
            no such thing.
        device: ``"cpu"``, ``"cuda"``, …; the fastest present by default.
        batch_tokens: A batch holds about this many source tokens, padding and beams included.
        max_new_tokens: A translation must end within this many tokens, its end sign included.
        num_beams: Beams of the search; 1 is greedy.

    Raises:
        InputError: No such model, one that is no encoder-decoder, or weights missing or not in safetensors.
        MissingExtraError: Its tokenizer needs sentencepiece.
        SentsmithError: The name needs a hub that cannot be reached.
        SettingsError: A number that is too small.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        device: str | None = None,
        batch_tokens: int = 4096,
        max_new_tokens: int = 128,
        num_beams: int = 1,
    ) -> None:
        for what, value, least in (
            ("batch tokens", batch_tokens, 1),
            ("max_new_tokens", max_new_tokens, 2),
            ("beams", num_beams, 1),
        ):
            if value < least:
                raise SettingsError(f"{what} {value}: must be at least {least}")
        folder = model_folder(name)
        self.tokenizer, self.model = _load(folder, device)
        self.batch_tokens, self.num_beams = batch_tokens, num_beams
        # A model with relative positions names no number of them.
        positions = getattr(self.model.config, "max_position_embeddings", None) or 1 << 30
        self.max_new_tokens = min(max_new_tokens, positions)
        self.longest = min(self.tokenizer.model_max_length, positions)
        generation = self.model.generation_config
        ends = generation.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else list(ends or ())
        if not self.ends or self.tokenizer.pad_token_id is None:
            raise InputError("names no end-of-sentence or padding token; it cannot translate in batches", path=folder)
        self.pad: int = self.tokenizer.pad_token_id
        # The model's own defaults (length in all, beams) would stand beside ours and be warned of.
        generation.max_length, generation.early_stopping = None, None
        codes = getattr(self.tokenizer, "supported_language_codes", ())
        if codes:
            logger.warning("%s knows several languages (%s …) and chooses one by itself", name, ", ".join(codes[:4]))

    def translate(self, sentences: list[str]) -> list[str]:
        """Return one translation per sentence, in order.

        Returns:
            "" for a blank sentence, for one longer than the model reads, and where the translation does not end.
        """
        import torch

        from sentsmith.encoders.chunked import Chunking, plan

        found = [""] * len(sentences)
        rows = self.tokenizer(sentences, verbose=False)["input_ids"] if sentences else []
        readable = [i for i, row in enumerate(rows) if sentences[i].strip() and len(row) <= self.longest]
        chunking = Chunking(tokens=max(1, self.batch_tokens // self.num_beams), min_rows=1)
        for chunk in plan(torch.tensor([len(rows[i]) for i in readable]), chunking):
            places = [readable[i] for i in chunk.tolist()]
            for place, text in zip(places, self._batch([rows[i] for i in places]), strict=True):
                found[place] = text
        return found

    def _batch(self, rows: Sequence[list[int]]) -> list[str]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        device = self.model.device
        lengths = torch.tensor([len(row) for row in rows])
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=self.pad)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        with torch.inference_mode():
            output: Tensor = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                num_beams=self.num_beams,
                do_sample=False,
                max_new_tokens=self.max_new_tokens,
            )
        # The first token starts every translation. One at the last place may have been forced there: no end.
        written = output[:, 1:].cpu()
        ended = torch.isin(written[:, : self.max_new_tokens - 1], torch.tensor(self.ends)).any(dim=1)
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [text if end else "" for text, end in zip(texts, ended.tolist(), strict=True)]


def _load(folder: Path, device: str | None) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    config = loading.load_config(folder)
    if not config.is_encoder_decoder:
        raise InputError(
            f"is a model of kind {config.model_type!r}, which is no encoder-decoder; give a translation model, "
            "such as MarianMT",
            path=folder,
        )
    tokenizer = loading.load_tokenizer(folder)
    model = loading.load_weights(
        folder,
        AutoModelForSeq2SeqLM,
        device=device or loading.fastest(),
        dtype=torch.float32,
        kind="a translation model",
        trained_to="translate",
    )
    return tokenizer, model
