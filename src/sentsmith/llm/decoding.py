"""Guided decoding, the loop: two prompts are two rows of one batch, share one cache and get one token.

The loop runs inside ``model.generate(custom_generate=…)`` of transformers, which prepares what differs between models
(encoder outputs, masks, positions, the decoder's first token). So it serves decoder-only and encoder-decoder models
alike, and with weights (1, 0) it is transformers' own greedy search.

What the loop adds: pairs that are finished leave the batch, and the cache grows in place instead of being copied for
each token. What it drops: the taste of the model's own generation settings (temperature, repetition penalty, beams,
lengths), since :class:`~sentsmith.llm.backend.Decoding` says all of that. What the model cannot start or end without
stays: the ids of its special tokens, a forced first token, tokens that must never be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers.generation.utils import ALL_CACHE_NAMES

from sentsmith.llm.backend import Decoding
from sentsmith.llm.cache import growing_cache
from sentsmith.llm.guidance import choose, combine_logits, keep_plausible
from sentsmith.llm.prefill import prefill

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What of a model's generation settings its output cannot be right without.
_KEPT = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
)
# Taking finished rows out copies the rest of the cache once; it pays when this share of the batch goes.
_LEAVING = 1 / 8


@dataclass(frozen=True, slots=True)
class Pair:
    """What one answer is decoded from.

    Attributes:
        first: Token ids of the prompt.
        second: Token ids of the prompt that is steered by; None steers by nothing.
        limit: The longest answer in tokens, its end sign included.
        uniform: float64 ``[limit or more]``, a number per token to draw it by; not read at temperature 0.
    """

    first: Sequence[int]
    second: Sequence[int] | None
    limit: int
    uniform: NDArray[np.float64] | None = None


@dataclass(slots=True)
class Written:
    """What was decoded.

    Attributes:
        tokens: The answer's ids, its end sign included.
        finished: Whether it came to its end sign.
        broken: Whether the model's logits stopped being numbers.
    """

    tokens: list[int] = field(default_factory=list)
    finished: bool = False
    broken: bool = False


class Decoder:
    """Decodes batches of pairs by one model of transformers, whose own generation settings it replaces.

    Args:
        model: Decoder-only or encoder-decoder, with a language modelling head, in evaluation mode.
        pad: Fills the shorter rows. Masked, so any id will do.
        ends: Ids of the tokens that end an answer; the model's own by default.

    Raises:
        ValueError: Neither the model nor ``ends`` names a token that ends an answer.
    """

    def __init__(self, model: Any, *, pad: int = 0, ends: Sequence[int] = ()) -> None:
        self.model, self.pad = model, pad
        self.encodes = bool(model.config.is_encoder_decoder)
        kept = {name: getattr(model.generation_config, name, None) for name in _KEPT}
        own = kept["eos_token_id"]
        self.ends = frozenset(ends or ([own] if isinstance(own, int) else own or ()))
        if not self.ends:
            raise ValueError("no token ends an answer: the model names none, and none is given")
        settings: Any = GenerationConfig
        model.generation_config = settings(**{**kept, "eos_token_id": sorted(self.ends), "pad_token_id": pad})

    def decode(self, pairs: Sequence[Pair], decoding: Decoding) -> list[Written]:
        """Decode one batch.

        Args:
            pairs: All with a second prompt, or all without. They are padded to the longest, so let them be of similar
                length.
            decoding: How the next token is chosen. Its limit and seed have gone into the pairs.

        Returns:
            One per pair, in order. Apart from float rounding (a batch's shape can change the last bits) it does not
            depend on the other pairs.
        """
        if not pairs:
            return []
        guided = sum(pair.second is not None for pair in pairs)
        if guided not in (0, len(pairs)):
            raise ValueError("a batch is steered or it is not: all pairs have a second prompt, or none has")
        # Decoder-only models write on where the prompt ends, so all must end in the same column.
        side = "right" if self.encodes else "left"
        run = _Run(pairs, decoding, self.ends, guided=bool(guided))
        rows = [*(pair.first for pair in pairs), *(pairs[place].second or () for place in run.owners)]
        ids = pad_sequence(
            [torch.tensor(row) for row in rows],
            batch_first=True,
            padding_value=self.pad,
            padding_side=side,
        )
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        columns = torch.arange(ids.shape[1])
        mask = columns < lengths if self.encodes else columns >= ids.shape[1] - lengths
        options: dict[str, Any] = {"custom_generate": run, "do_sample": False}
        if cache := growing_cache(self.model):
            options["past_key_values"] = cache
        with torch.inference_mode():
            self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.long().to(self.model.device),
                max_new_tokens=run.longest,
                **options,
            )
        return run.written


class _Run:
    """One batch on its way; called by ``generate`` in place of its own loop."""

    def __init__(self, pairs: Sequence[Pair], decoding: Decoding, ends: frozenset[int], *, guided: bool) -> None:
        self.decoding, self.ends, self.guided = decoding, ends, guided
        self.limits = [pair.limit for pair in pairs]
        self.longest = max(self.limits)
        self.written = [Written() for _ in pairs]
        # The pairs of the batch by row, and whether each still writes; those that do not leave with the next others.
        self.places = list(range(len(pairs)))
        self.writing = [True] * len(pairs)
        # A batch has a row per pair, then one for each second prompt that differs from the first: the pairs of those.
        self.owners = [place for place, pair in enumerate(pairs) if guided and not _alike(pair)]
        self.uniform = _numbers(pairs, self.longest) if decoding.temperature > 0 else None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,  # noqa: ARG002 - generate hands it over; ours are the limits and the ends
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor:
        """Write the answers into ``written``; the pattern is ``GenerationMixin._sample``."""
        encodes = model.config.is_encoder_decoder
        outputs = prefill(model, input_ids, generation_config, model_kwargs)
        with model._optimize_model_for_decode():  # noqa: SLF001
            for step in range(self.longest):
                if step:
                    reuse = 1 if model_kwargs["use_cache"] else None
                    inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=reuse, **model_kwargs)
                    outputs = model(**inputs, return_dict=True)
                model_kwargs = model._update_model_kwargs_for_generation(  # noqa: SLF001
                    outputs, model_kwargs, is_encoder_decoder=encodes
                )
                tokens = self._tokens(outputs.logits[:, -1], input_ids, logits_processor, step)
                del outputs  # the prompts' logits can be large
                self._write(tokens)
                if not any(self.writing):
                    break
                both = torch.cat([tokens, tokens[_index(self.owners, tokens)]])
                input_ids = torch.cat([input_ids, both[:, None]], dim=1)
                input_ids, model_kwargs = self._leave(input_ids, model_kwargs)
        return input_ids

    def _tokens(self, logits: Tensor, input_ids: Tensor, processors: Any, step: int) -> Tensor:
        """Return the next token of each pair, int64 ``[pairs in the batch]``; −1 where there is no number to go by."""
        count, how = len(self.places), self.decoding
        # What the model must or must not write is said of the prompt's own logits, which decide what is possible.
        first = processors(input_ids[:count], logits[:count].float())
        combined = first
        if self.guided:
            second = logits[:count].float().index_copy(0, _index(self.owners, logits), logits[count:].float())
            combined = combine_logits(first, second, first_weight=how.first_weight, second_weight=how.second_weight)
        combined = keep_plausible(combined, first, floor=how.floor)
        broken = ~combined.amax(dim=-1).isfinite()
        uniform = None if self.uniform is None else self.uniform[self.places, step].to(combined.device)
        if uniform is not None:
            # A draw from what is no number would stop the batch.
            combined = combined.masked_fill(broken[:, None], 0.0)
        tokens = choose(combined, temperature=how.temperature, top_p=how.top_p, uniform=uniform)
        return tokens.masked_fill(broken, -1)

    def _write(self, tokens: Tensor) -> None:
        for row, (place, token) in enumerate(zip(self.places, tokens.tolist(), strict=True)):
            if not self.writing[row]:
                continue
            found = self.written[place]
            if token < 0:
                found.broken = True
            else:
                found.tokens.append(token)
                found.finished = token in self.ends
            self.writing[row] = not (found.broken or found.finished or len(found.tokens) >= self.limits[place])
        # Rows that wait to leave are fed on; a model knows no token −1.
        tokens.clamp_(min=0)

    def _leave(self, input_ids: Tensor, model_kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Take the rows of finished pairs out of everything, once enough are finished."""
        count = len(self.places)
        leaving = self.writing.count(False)
        caches = [model_kwargs[name] for name in ALL_CACHE_NAMES if model_kwargs.get(name) is not None]
        if leaving < max(1, count * _LEAVING) or not all(hasattr(cache, "reorder_cache") for cache in caches):
            return input_ids, model_kwargs
        staying = [row for row in range(count) if self.writing[row]]
        rows = staying + [row for row, owner in enumerate(self.owners, count) if self.writing[owner]]
        self.owners = [staying.index(owner) for owner in self.owners if self.writing[owner]]
        self.places = [self.places[row] for row in staying]
        self.writing = [True] * len(staying)
        index = _index(rows, input_ids)
        kept = {name: _rows(value, index, len(input_ids)) for name, value in model_kwargs.items()}
        return input_ids[index], kept


def _alike(pair: Pair) -> bool:
    return pair.second is not None and list(pair.first) == list(pair.second)


def _index(rows: Sequence[int], beside: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=beside.device)


def _numbers(pairs: Sequence[Pair], longest: int) -> Tensor:
    """Return ``[pairs, longest]``, the numbers to draw by; what lies beyond a pair's limit is not read."""
    numbers = torch.zeros(len(pairs), longest)
    for row, pair in zip(numbers, pairs, strict=True):
        if pair.uniform is None or len(pair.uniform) < pair.limit:
            raise ValueError(f"drawing up to {pair.limit} tokens takes as many uniform numbers")
        row[: pair.limit] = torch.from_numpy(pair.uniform[: pair.limit])
    return numbers


def _rows(value: Any, rows: Tensor, count: int) -> Any:
    """Return these rows of what a model is called with: tensors with a row per sequence, outputs of them, caches."""
    if isinstance(value, Tensor):
        return value[rows] if value.dim() > 0 and value.shape[0] == count else value
    if hasattr(value, "reorder_cache"):
        value.reorder_cache(rows)
        return value
    if isinstance(value, dict):
        for name in list(value):
            value[name] = _rows(value[name], rows, count)
    return value
