"""Reading the prompts of a batch: each token once, where a padded batch reads many of them many times, and padding too.

The prompts of a task begin alike (the instruction, its examples), some are equal, and they differ in length. So equal
prompts are read as one; what several begin with is read once, and its keys and values are handed to all of them; what
is left of each is read in chunks of similar length. All of it ends up in one cache, as if it had been read at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from sentsmith.encoders.chunked import Chunking, plan
from sentsmith.llm.cache import GrowingLayer, growing_cache

# A shared beginning is read by itself if that saves as many tokens: a further call or two of the model cost as much.
_WORTH = 128
_CHUNKING = Chunking(tokens=1024, min_rows=8)


def prefill(model: Any, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> Any:
    """Read the prompts of a batch; the same as ``GenerationMixin._prefill`` but for float rounding.

    A row of the cache has what its prompt shares with others at the left end, the rest of the prompt at the right end,
    and masked columns in between. So this is for models that keep nothing but growing keys and values, and that are
    told positions. Others (sliding windows, recurrent states, positions counted from columns, encoder-decoders) read
    the padded batch as it is.

    Args:
        model: Any that generates.
        input_ids: int64 ``[rows, width]``, padded on the left.
        generation_config: Handed on.
        model_kwargs: What ``generate`` prepared. The cache is filled, and the mask replaced by that of its columns.

    Returns:
        The model's output; ``logits`` end in those after each prompt.
    """
    if not _fits(model, input_ids, model_kwargs):
        return model._prefill(input_ids, generation_config, model_kwargs)  # noqa: SLF001 - meant for such loops
    cache, mask = model_kwargs["past_key_values"], model_kwargs.get("attention_mask")
    if mask is None:  # generate drops one that masks nothing
        mask = torch.ones_like(input_ids)
    prompts = [tuple(ids[kept].tolist()) for ids, kept in zip(input_ids.cpu(), mask.cpu().bool(), strict=True)]
    rows = defaultdict(list)
    for row, prompt in enumerate(prompts):
        rows[prompt].append(row)
    reader = _Reader(model, generation_config, model_kwargs)
    columns, logits = torch.zeros_like(mask), None
    for part, shared, read, last in reader.read(list(rows), 0, None):
        targets = torch.tensor([row for prompt in part for row in rows[prompt]], device=mask.device)
        sources = torch.tensor([i for i, prompt in enumerate(part) for _ in rows[prompt]], device=mask.device)
        _put(read, cache, shared, sources, targets, input_ids.shape)
        logits = last.new_empty(len(input_ids), *last.shape[1:]) if logits is None else logits
        logits[targets] = last[sources]
        for row in targets.tolist():
            columns[row, :shared] = 1
            columns[row, input_ids.shape[1] - len(prompts[row]) + shared :] = 1
    if model_kwargs.get("attention_mask") is not None:
        model_kwargs["attention_mask"] = columns
    return CausalLMOutputWithPast(logits=logits, past_key_values=cache)


def _fits(model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> bool:
    cache = model_kwargs.get("past_key_values")
    tensors = {name: value.shape for name, value in model_kwargs.items() if isinstance(value, Tensor)}
    return (
        not model.config.is_encoder_decoder
        and type(cache) is DynamicCache
        and all(type(layer) is GrowingLayer for layer in cache.layers)
        and cache.get_seq_length() == 0
        and tensors.pop("position_ids", None) == input_ids.shape
        and tensors in ({}, {"attention_mask": input_ids.shape})
    )


Prompt = tuple[int, ...]


class _Reader:
    """A model, and what it is called with."""

    def __init__(self, model: Any, generation_config: Any, model_kwargs: dict[str, Any]) -> None:
        self.model, self.generation_config, self.model_kwargs = model, generation_config, model_kwargs

    def read(
        self, prompts: Sequence[Prompt], known: int, cache: Any
    ) -> Iterator[tuple[list[Prompt], int, Any, Tensor]]:
        """Read prompts whose first ``known`` tokens, the same in all, are in a cache of one row.

        Yields:
            Prompts that were read together, how many columns of their cache hold what was known before, the cache,
            which is padded in the columns after those, and the logits ``[prompts, 1, vocabulary]`` after each.
        """
        shared = _shared(prompts)
        if (len(prompts) - 1) * (shared - known) >= _WORTH:
            cache, _ = self._call([prompts[0][:shared]], known, cache)
            known = shared
        groups = defaultdict(list)
        for prompt in prompts:
            # Two tokens on, so that a prompt which others go on from is not taken for one of them.
            groups[prompt[shared : shared + 2]].append(prompt)
        rest = []
        for group in groups.values():
            if len(groups) > 1 and (len(group) - 1) * (_shared(group) - known) >= _WORTH:
                yield from self.read(group, known, cache)
            else:
                rest += group
        for rows in plan(torch.tensor([len(prompt) - known for prompt in rest], dtype=torch.long), _CHUNKING):
            part = [rest[row] for row in rows.tolist()]
            yield part, known, *self._call(part, known, cache)

    def _call(self, prompts: Sequence[Prompt], known: int, cache: Any) -> tuple[Any, Tensor]:
        """Read what is not known of these prompts, and return a cache of their own and the last logits."""
        device = self.model.device
        rest = pad_sequence([torch.tensor(prompt[known:]) for prompt in prompts], batch_first=True, padding_side="left")
        start = torch.tensor(prompts[0][:known], dtype=torch.long).expand(len(prompts), -1)
        padding = rest.shape[1] - torch.tensor([len(prompt) - known for prompt in prompts])
        columns = torch.arange(rest.shape[1]) >= padding[:, None]
        mask = torch.cat([torch.ones_like(start), columns.long()], dim=1).to(device)
        own = growing_cache(self.model)
        if cache is not None:
            for layer, held in zip(own.layers, cache.layers, strict=True):
                layer.update(*(states.expand(len(prompts), -1, -1, -1) for states in (held.keys, held.values)))
        outputs = self.model._prefill(  # noqa: SLF001 - meant for such loops
            torch.cat([start, rest], dim=1).to(device),
            self.generation_config,
            {
                **self.model_kwargs,
                "past_key_values": own,
                "attention_mask": mask,
                "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
            },
        )
        return own, outputs.logits[:, -1:].clone()  # the prompts' logits can be large


def _shared(prompts: Sequence[Prompt]) -> int:
    """Return how many tokens all begin with; the last one of each prompt is its own, since its logits are wanted."""
    low, high = min(prompts), max(prompts)  # in the order of words in a dictionary: what these share, all share
    alike = next((place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return min(alike, min(map(len, prompts)) - 1)


def _put(source: Any, target: Any, shared: int, sources: Tensor, targets: Tensor, shape: Sequence[int]) -> None:
    """Copy rows of a cache into those of the batch's, which has ``shape`` rows and columns."""
    for old, new in zip(source.layers, target.layers, strict=True):
        if not new.is_initialized:
            new.begin(old.keys, old.values, *shape)
        for wide, narrow in ((new.keys, old.keys), (new.values, old.values)):
            wide[targets, :, :shared] = narrow[sources, :, :shared]
            rest = narrow.shape[-2] - shared
            wide[targets, :, wide.shape[-2] - rest :] = narrow[sources, :, shared:]
