"""Autoencoders of all layers of a frozen model, trained side by side (FREEZE, METHODS §4).

One batch trains all layers in the same matrix products; no layer's numbers depend on another's, so that the result is
what as many separate runs would give, each with its own early stop. A fit that was killed goes on where it was.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sentsmith.errors import InputError, SentsmithError
from sentsmith.files import atomic_path, make_folder, write_json
from sentsmith.methods.freeze.decoders import Autoencoders
from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Standardise, layer_moments
from sentsmith.methods.freeze.summed import SummedCodes

logger = logging.getLogger(__name__)

RESULT, WEIGHTS, CHECKPOINT = "reconstruction.json", "autoencoders.safetensors", "checkpoint.safetensors"
# Added to the seed for the decoders, whose numbers must not be those that the encoders were drawn from.
_DECODERS = 0x5EED
# Writing the state of large autoencoders takes a second or two: not after every epoch.
_SAVE_SECONDS = 30.0


@dataclass(frozen=True)
class FitSettings:
    """How autoencoders are trained; AdamW, without a schedule.

    Attributes:
        epochs: At most.
        batch_size: At most; the batches of an epoch are of one size, or one less.
        learning_rate: AdamW's.
        held_out: Share of the rows that is kept out of training, and judges it.
        patience: A layer is finished when so many epochs have not made its held-out loss better.
        noise: Deviation of the Gaussian noise on what the encoders see, in units of the layer's ``rms``.
        seed: Of the held-out rows, the batches, the noise and the decoders. The encoders come with their own numbers.
    """

    epochs: int = 50
    batch_size: int = 256
    learning_rate: float = 1e-3
    held_out: float = 0.05
    patience: int = 5
    noise: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Reconstruction:
    """How well autoencoders give back what they saw, on held-out rows.

    Attributes:
        loss: Mean squared error of each layer, ``[L]``, of the best weights, in the latents' own units.
        explained: ``1 − loss / error of always answering the training rows' mean``, ``[L]``.
        history: The losses after each epoch, ``[epochs][L]``; a layer that is finished repeats its best.
        epochs: Which epoch was best for each layer, ``[L]``, counted from 1.
        seconds: Of training, all its parts together if it was interrupted.
    """

    loss: list[float]
    explained: list[float]
    history: list[list[float]]
    epochs: list[int]
    seconds: float


def held_out_rows(count: int, settings: FitSettings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and those that are held out, sorted, drawn by the seed.

    Raises:
        InputError: There are too few of them.
    """
    held = max(1, round(count * settings.held_out))
    if count - held < 2:
        raise InputError(f"{count} sentences are too few to train on with {held} of them held out; bring more")
    order = np.random.default_rng([settings.seed, 0]).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def epoch_batches(rows: NDArray[np.int64], settings: FitSettings, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of an epoch (counted from 1): all rows in random order, the rows of each batch sorted.

    They depend on nothing but the seed and the epoch, so that a fit which goes on sees what it would have seen.
    """
    order = np.random.default_rng([settings.seed, epoch]).permutation(rows)
    for batch in np.array_split(order, -(-len(order) // settings.batch_size)):
        yield np.sort(batch)


def fit(
    coder: LayerEncoders | SummedCodes,
    vectors: NDArray[Any],
    work: Path,
    key: Mapping[str, Any],
    settings: FitSettings = FitSettings(),
    *,
    standardise: Standardise | None = None,
    progress: bool = False,
) -> Reconstruction:
    """Train the coder, in place and on its device, as the first half of autoencoders; it ends with its best weights.

    A fit that ``work`` holds already, with the same key, settings and shapes, is found and not made again, and one that
    was killed goes on. Independent layers stop, and are judged, one by one; summed codes by the sum of all layers'
    losses, each divided by its ``rms²``.

    Args:
        coder: Draw its numbers by a seed that belongs to ``key``.
        vectors: ``[n, L·d]``, float16 or float32; a memory map may be larger than memory, rows are read by the batch.
        work: The folder of ``reconstruction.json`` and ``autoencoders.safetensors``; made if it is not there.
        key: What the vectors and the coder depend on; as JSON holds it.
        settings: How to train.
        standardise: Measured already; comes before the coder and is not changed.
        progress: Draw a bar.

    Raises:
        InputError: Too few rows, values that are not finite, rows of another width, or a damaged file in ``work``.
        SentsmithError: The loss is not finite.
    """
    return _Fit(coder, vectors, work, key, settings, standardise).run(progress=progress)


@dataclass
class _State:
    """What is known of a fit beside its weights."""

    epoch: int = 0
    seconds: float = 0.0
    best: list[float] = field(default_factory=list)  # by layer, in units of rms²
    epochs: list[int] = field(default_factory=list)  # by layer, which was best
    history: list[list[float]] = field(default_factory=list)

    def finished(self, patience: int) -> list[bool]:
        return [self.epoch - best >= patience for best in self.epochs]


class _Fit:
    def __init__(
        self,
        coder: LayerEncoders | SummedCodes,
        vectors: NDArray[Any],
        work: Path,
        key: Mapping[str, Any],
        settings: FitSettings,
        standardise: Standardise | None,
    ) -> None:
        encoders = coder.encoders if isinstance(coder, SummedCodes) else coder
        self.layers, self.width = encoders.layers, encoders.width
        if vectors.ndim != 2 or vectors.shape[1] != self.layers * self.width:
            raise InputError(f"vectors of {self.layers} layers of {self.width} are needed, not {list(vectors.shape)}")
        self.coder, self.vectors, self.work, self.settings = coder, vectors, work, settings
        self.standardise = standardise
        shape = {"kind": type(coder).__name__, "width": self.width, "bottlenecks": encoders.bottlenecks}
        shape |= {"depth": encoders.depth, "dimension": getattr(coder, "dimension", None), "rows": len(vectors)}
        shape |= {"standardised": standardise is not None}
        # As JSON gives it back: tuples are lists there.
        self.key = json.loads(json.dumps({**key, "fit": asdict(settings), "autoencoders": shape}))

    def run(self, *, progress: bool) -> Reconstruction:
        """Find the fit, or make it."""
        found = self._found()
        if found is not None:
            logger.info("%s holds these autoencoders already", self.work)
            return found
        make_folder(self.work)
        self._begin()
        self._recall()
        self._train(progress=progress)
        return self._finish()

    def _found(self) -> Reconstruction | None:
        path = self.work / RESULT
        if not path.exists():
            return None
        note = json.loads(path.read_text(encoding="utf-8"))
        if note.pop("key") != self.key:
            return None
        weights, _ = _read(self.work / WEIGHTS)
        own = {name.removeprefix("coder."): value for name, value in weights.items() if name.startswith("coder.")}
        self.coder.load_state_dict(own)
        return Reconstruction(**note)

    def _begin(self) -> None:
        settings = self.settings
        self.rows, self.held = held_out_rows(len(self.vectors), settings)
        mean, variance = self._moments(self.rows)
        held_mean, held_variance = self._moments(self.held)
        # What always answering the training rows' mean costs.
        self.baseline = (held_variance + (held_mean - mean) ** 2).mean(axis=1)
        generator = torch.Generator().manual_seed(settings.seed + _DECODERS)
        self.model = Autoencoders(self.coder, mean, variance, standardise=self.standardise, generator=generator)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, fused=True)
        self.block = np.empty((settings.batch_size, self.vectors.shape[1]), self.vectors.dtype)
        self.state = _State(best=[float("inf")] * self.layers, epochs=[0] * self.layers)
        self.best = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def _moments(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, variance = layer_moments(self.vectors, self.layers, rows)
        if self.standardise is None:
            return mean, variance
        centre, scale = (x.double().cpu().numpy() for x in (self.standardise.mean, self.standardise.deviation))
        return (mean - centre) / scale, variance / scale**2

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        # Into memory that is kept; "clip", as numpy would read into fresh memory first to be able to raise.
        block = np.take(self.vectors, rows, axis=0, out=self.block[: len(rows)], mode="clip")
        return torch.from_numpy(block).to(self.model.mean).view(-1, self.layers, self.width)

    def _train(self, *, progress: bool) -> None:
        from tqdm import tqdm

        settings, state, saved = self.settings, self.state, time.monotonic()
        bar = tqdm(
            desc="autoencoders",
            total=settings.epochs,
            initial=state.epoch,
            unit=" epochs",
            file=sys.stderr,
            disable=not progress,
        )
        with bar:
            while state.epoch < settings.epochs and not all(state.finished(settings.patience)):
                begun = time.perf_counter()
                self._epoch(state.epoch + 1)
                self._judge()
                state.seconds += time.perf_counter() - begun
                bar.update()
                if time.monotonic() - saved >= _SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()

    def _epoch(self, epoch: int) -> None:
        noise, seed = self.settings.noise, int(np.random.default_rng([self.settings.seed, epoch, 1]).integers(1 << 62))
        generator = torch.Generator(self.model.mean.device).manual_seed(seed)
        for rows in epoch_batches(self.rows, self.settings, epoch):
            self.optimiser.zero_grad()
            self.model(self._read(rows), noise=noise, generator=generator).sum().backward()
            self.optimiser.step()

    @torch.no_grad()
    def _judge(self) -> None:
        """Measure the held-out rows, and keep the weights of each layer that is better than it ever was."""
        total = np.zeros(self.layers)
        size = self.settings.batch_size
        for start in range(0, len(self.held), size):
            rows = self.held[start : start + size]
            total += len(rows) * self.model(self._read(rows)).double().cpu().numpy()
        errors = total / len(self.held)
        if not np.isfinite(errors).all():
            raise SentsmithError("the reconstruction loss is not finite; try a lower learning rate")
        self._note(errors)

    def _note(self, errors: NDArray[np.float64]) -> None:
        """Note the held-out errors of an epoch ``[L]``, in units of ``rms²``, and keep the weights that are better."""
        state = self.state
        over = np.array(state.finished(self.settings.patience))
        # Layers that share a vector stop together: all have the same score.
        scores = np.full(self.layers, errors.sum()) if isinstance(self.coder, SummedCodes) else errors
        state.epoch += 1
        better = ~over & (scores < np.array(state.best))
        state.best = np.where(better, scores, state.best).tolist()
        state.epochs = np.where(better, state.epoch, state.epochs).tolist()
        losses = errors * self.model.rms.double().cpu().numpy() ** 2
        state.history.append(losses.tolist())
        state.history[-1] = np.where(over, self._best_losses(), losses).tolist()
        chosen = torch.from_numpy(better).to(self.model.rms.device)
        places = self.model.places()
        for name, parameter in self.model.named_parameters():
            layers = places[name]
            if layers is not None:
                self.best[name][chosen[layers]] = parameter.detach()[chosen[layers]]
            elif better.all():
                self.best[name].copy_(parameter)

    def _best_losses(self) -> list[float]:
        state = self.state
        return [state.history[epoch - 1][layer] for layer, epoch in enumerate(state.epochs)]

    def _save(self) -> None:
        tensors = {f"weights.{name}": value.detach() for name, value in self.model.named_parameters()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for number, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value for name, value in moments.items()}
        _write(self.work / CHECKPOINT, tensors, {"key": self.key, "state": asdict(self.state)})

    def _recall(self) -> None:
        """Go on where a killed fit was, if one was here."""
        path = self.work / CHECKPOINT
        if not path.exists():
            return
        tensors, note = _read(path)
        if note["key"] != self.key:
            return
        self.state = _State(**note["state"])
        device = self.model.mean.device
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"weights.{name}"])
                self.best[name] = tensors[f"best.{name}"].to(device)
        whole = self.optimiser.state_dict()
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, number, moment = name.split(".")
                whole["state"].setdefault(int(number), {})[moment] = value
        self.optimiser.load_state_dict(whole)
        logger.info("going on after epoch %d of the autoencoders in %s", self.state.epoch, self.work)

    def _finish(self) -> Reconstruction:
        state = self.state
        self.model.load_state_dict(self.best, strict=False)
        loss = self._best_losses()
        # A constant layer has nothing to explain.
        share = [1 - own / all_ if all_ > 0 else 0.0 for own, all_ in zip(loss, self.baseline.tolist(), strict=True)]
        found = Reconstruction(loss, share, state.history, state.epochs, round(state.seconds, 2))
        (self.work / RESULT).unlink(missing_ok=True)  # of another key: it must not stand beside these weights
        _write(self.work / WEIGHTS, dict(self.model.state_dict()), {"key": self.key})
        write_json(self.work / RESULT, {"key": self.key, **asdict(found)})
        (self.work / CHECKPOINT).unlink(missing_ok=True)
        logger.info("autoencoders: %.3f to %.3f of the layers' variance explained", min(share), max(share))
        return found


def _write(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Write tensors with a note beside them, as one file: they cannot be of different epochs."""
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(whole, temporary, {"note": json.dumps(note)})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            note = json.loads((file.metadata() or {})["note"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError("holds no autoencoders; delete it, and they are trained again", path=path) from error
    return tensors, note
