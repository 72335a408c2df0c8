"""A language model on this machine: any decoder-only or encoder-decoder model of transformers, with guided decoding."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.errors import InputError, SettingsError
from sentsmith.files import sha256
from sentsmith.llm import loading
from sentsmith.llm.backend import Answer, Decoding, Prompt
from sentsmith.llm.tokenising import NotTextError, PromptTokenizer

if TYPE_CHECKING:
    from sentsmith.llm.decoding import Pair, Written

_UNBOUNDED = 1 << 30


class LocalBackend:
    """A model of transformers as a :class:`~sentsmith.llm.backend.Backend`.

    Prompts are decoded in blocks, and a block in batches of similar length. A block is handed over as a whole: a run
    that is killed loses the one under way, and goes on at its start, where the same prompts meet the same neighbours
    and get the same bits. What stands beside a prompt changes its answer by float rounding at most: two tokens of
    exactly equal score may fall either way.

    A prompt without ``against``, or under a second weight of 0, is steered by nothing: the logits are the model's own
    then, whatever the first weight.

    Args:
        name: A folder or hub name.
        device: ``"cpu"``, ``"cuda"``, …; the fastest present by default.
        batch: Rows of a batch at most; a steered prompt takes two.
        batch_tokens: Tokens of a batch at most, answers and padding included: what its cache must hold.
        block: Prompts that are read, decoded and handed over together; twice ``batch`` by default, which is enough to
            sort by length, and little enough to lose.
        dtype: Of the weights (``"float32"``, ``"bfloat16"``, …); by default float32 on a processor, and on anything
            faster what the checkpoint has.

    Raises:
        InputError: No such model, one that does not write, or weights missing or not in safetensors.
        MissingExtraError: Its tokenizer needs sentencepiece.
        SentsmithError: The name needs a hub that cannot be reached.
        SettingsError: A number that is too small, or an unknown dtype.
    """

    guides = True
    local = True
    concurrency = 1

    def __init__(
        self,
        name: str | Path,
        *,
        device: str | None = None,
        batch: int = 128,
        batch_tokens: int = 65536,
        block: int | None = None,
        dtype: str | None = None,
    ) -> None:
        block = 2 * batch if block is None else block
        for what, value in (("batch", batch), ("batch_tokens", batch_tokens), ("block", block)):
            if value < 1:
                raise SettingsError(f"{what} {value}: must be at least 1")
        folder = loading.model_folder(name, advice="give the folder of a language model")
        device = device or loading.fastest()
        self.tokenizer, model = _load(folder, device, dtype)
        self.batch, self.batch_tokens, self.block = batch, batch_tokens, block
        label = folder.resolve().name if Path(name).is_dir() else str(name)
        self.name = f"local:{label}@{sha256(folder)[:16]}"
        encodes = bool(model.config.is_encoder_decoder)
        self.read = PromptTokenizer(self.tokenizer, encodes=encodes, path=folder)
        self.decoder = _decoder(model, self.tokenizer, folder)
        # A model with relative positions names no number of them; what it was trained on is the tokenizer's to say.
        positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        self.context: int = positions or min(self.tokenizer.model_max_length, _UNBOUNDED)
        self.longest: int = (positions or _UNBOUNDED) - 1 if encodes else self.context

    def answers(self, prompts: Iterable[tuple[str, Prompt]], decoding: Decoding) -> Iterator[list[tuple[str, Answer]]]:
        """Answer prompts block by block; see :class:`~sentsmith.llm.backend.Backend`.

        Yields:
            A block's (key, answer), in the order of its prompts. A prompt that the model cannot read (too long for its
            context, or no text) has the reason as its answer's ``failure``.
        """
        stream = iter(prompts)
        while block := list(itertools.islice(stream, self.block)):
            yield list(zip((key for key, _ in block), self._block([p for _, p in block], decoding), strict=True))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has as a prompt; none where the model cannot read it, and does not."""
        return [self._count(text) for text in texts]

    def _count(self, text: str) -> int:
        try:
            return len(self.read(text))
        except NotTextError:
            return 0

    def _block(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[Answer]:
        found: dict[int, Answer] = {}
        pairs: dict[int, Pair] = {}
        for place, prompt in enumerate(prompts):
            try:
                pairs[place] = self._pair(prompt, decoding)
            except NotTextError as reason:
                found[place] = Answer(
                    "", finished=False, prompt_tokens=0, answer_tokens=0, seconds=0.0, failure=str(reason)
                )
        for batch in self._batches(pairs):
            start = time.perf_counter()
            written = self.decoder.decode([pairs[place] for place in batch], decoding)
            share = (time.perf_counter() - start) / len(batch)
            for place, one in zip(batch, written, strict=True):
                found[place] = self._answer(pairs[place], one, share)
        return [found[place] for place in range(len(prompts))]

    def _pair(self, prompt: Prompt, decoding: Decoding) -> Pair:
        from sentsmith.llm.decoding import Pair
        from sentsmith.llm.guidance import draws

        first = self.read(prompt.text)
        guided = prompt.against is not None and decoding.second_weight != 0
        second = self.read(prompt.against) if guided and prompt.against is not None else None
        length = max(len(first), len(second or ()))
        room = self.longest if self.decoder.encodes else self.context - length
        if length > self.context or room < 1:
            raise NotTextError(
                f"the prompt has {length} tokens, which leaves no room for an answer: the model reads {self.context}"
            )
        if not first or (guided and not second):
            raise NotTextError("the prompt is empty")
        limit = min(decoding.max_new_tokens, room)
        uniform = draws(prompt, decoding.seed, limit) if decoding.temperature > 0 else None
        return Pair(first, second, limit, uniform)

    def _batches(self, pairs: dict[int, Pair]) -> Iterator[list[int]]:
        """Yield places of pairs, steered ones and others apart, longest first, as many as fit."""
        for rows in (2, 1):
            order = sorted(
                (p for p in pairs if (pairs[p].second is None) == (rows == 1)), key=lambda p: -_width(pairs[p])
            )
            while order:
                width = _width(pairs[order[0]]) + max(pairs[place].limit for place in order)
                count = max(1, min(self.batch // rows, self.batch_tokens // (rows * width)))
                yield order[:count]
                order = order[count:]

    def _answer(self, pair: Pair, written: Written, seconds: float) -> Answer:
        tokens = written.tokens[:-1] if written.finished else written.tokens
        return Answer(
            text="" if written.broken else self.tokenizer.decode(tokens, skip_special_tokens=True),
            finished=written.finished,
            prompt_tokens=len(pair.first) + len(pair.second or ()),
            answer_tokens=len(written.tokens),
            seconds=seconds,
            failure=f"the model's output is not a number after {len(written.tokens)} tokens; try dtype float32"
            if written.broken
            else None,
        )


def _width(pair: Pair) -> int:
    return max(len(pair.first), len(pair.second or ()))


def _load(folder: Path, device: str, dtype: str | None) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = getattr(torch, dtype, None) if dtype else torch.float32 if device.startswith("cpu") else "auto"
    if not isinstance(kind, torch.dtype) and kind != "auto":
        raise SettingsError(f"dtype {dtype!r}: must be one of torch's, such as float32, bfloat16, float16")
    config = loading.load_config(folder)
    # Encoders have the field, since they can be turned into decoders; models that are decoders lack it.
    if not config.is_encoder_decoder and getattr(config, "is_decoder", None) is False:
        raise InputError(
            f"is a model of kind {config.model_type!r}, which does not write; give a decoder or an encoder-decoder, "
            "such as LLaMA, Qwen or Flan-T5",
            path=folder,
        )
    tokenizer = loading.load_tokenizer(folder)
    chosen = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = loading.load_weights(folder, chosen, device=device, dtype=kind, kind="a language model", trained_to="write")
    return tokenizer, model


def _decoder(model: Any, tokenizer: Any, folder: Path) -> Any:
    from sentsmith.llm.decoding import Decoder

    own = model.generation_config.eos_token_id
    ends = () if own is not None else (tokenizer.eos_token_id,)
    if ends == (None,):
        raise InputError("names no token that ends an answer; no answer would come to its end", path=folder)
    pad = tokenizer.pad_token_id
    return Decoder(model, pad=0 if pad is None else pad, ends=ends)
