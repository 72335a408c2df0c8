"""The stages before the training: the frozen model is opened and read, its autoencoders fitted, the model built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from sentence_transformers import SentenceTransformer

from sentsmith import __version__
from sentsmith.corpus.reading import read_sentences
from sentsmith.encoders.layered import make_layered
from sentsmith.encoders.loading import load, resolve
from sentsmith.errors import SettingsError
from sentsmith.files import alone, sha256
from sentsmith.methods.freeze.autoencoders import RESULT, FitSettings, Reconstruction, fit
from sentsmith.methods.freeze.codes import LayerCodes
from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Standardise
from sentsmith.methods.freeze.maps import LayerMaps
from sentsmith.methods.freeze.settings import FreezeSettings, bottlenecks, kept_layers
from sentsmith.methods.freeze.store import LayerStore, frozen_teacher, open_store, pair_texts
from sentsmith.training.data import find_audit, limited

if TYPE_CHECKING:
    from sentsmith.evaluation.pairs import ScoredPairs
    from sentsmith.methods.freeze.recipe import Recipe
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.text_vectors import TextVectors

# What a FREEZE model that is gone on with brings itself: the setting, and the module's attribute.
_OF_FROZEN = {"readout": "readout", "punctuation": "punctuation"}
_OF_CODES = {
    "start": "start", "depth": "depth", "head": "head", "hidden": "hidden", "combine": "combine",
    "normalise_input": "normalise",
}  # fmt: skip


def open_model(recipe: Recipe) -> SentenceTransformer:
    """Return the frozen model, which encodes a sentence into all its layers; or the whole of a FREEZE model.

    Raises:
        InputError: It cannot be loaded.
        SettingsError: Its layers cannot be found; or it is a FREEZE model, and the settings ask for another one.
    """
    settings, folder = recipe.freeze, resolve(recipe.model)
    if _is_freeze(folder):
        model = load(folder)
        _check_same(settings, model)
        return model
    return make_layered(folder, readout=settings.readout, punctuation=settings.punctuation)


def _is_freeze(folder: Path) -> bool:
    listing = folder / "modules.json"
    return listing.is_file() and "sentsmith.methods.freeze." in listing.read_text(encoding="utf-8")


def _check_same(settings: FreezeSettings, model: SentenceTransformer) -> None:
    """Refuse what is neither the default nor what the model is."""
    codes: Any = model[1]
    kept = kept_layers(settings, codes.layers)
    widths = [bottlenecks(settings, codes.layers)[layer] for layer in kept]
    asked = settings.bottleneck != FreezeSettings.model_fields["bottleneck"].default
    for name, wrong in (
        ("leave_out", bool(settings.leave_out) and list(kept) != codes.kept),
        ("bottleneck", asked and bool(codes.bottlenecks) and widths != codes.bottlenecks),
    ):
        if wrong:
            raise SettingsError(
                f"freeze.{name} is not that of the FREEZE model to go on with; leave it, or begin with the model it is "
                "made of"
            )
    for names, module in ((_OF_FROZEN, model[0]), (_OF_CODES, model[1])):
        for name, attribute in names.items():
            wanted, own = getattr(settings, name), getattr(module, attribute)
            if wanted not in (FreezeSettings.model_fields[name].default, own):
                raise SettingsError(
                    f"freeze.{name} is {wanted!r}, and the FREEZE model to go on with has {own!r}; leave it, or begin "
                    "with the model it was made of"
                )


@dataclass
class Building:
    """The stages of one run; making one says what is wrong with settings and raw sentences, before anything is written.

    Attributes:
        recipe: Its settings.
        rows: The scored pairs.
        opened: As :func:`open_model` returns it.
        progress: Draw bars.
        facts: What the run record keeps of the stages, as far as they are done.
        seconds: What they took.

    Raises:
        InputError: The raw sentences cannot be read.
        SettingsError: The settings do not fit the model.
    """

    recipe: Recipe
    rows: TrainingRows
    opened: SentenceTransformer
    progress: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frozen: Any = self.opened[0]
        self.device = self.opened.device
        new = len(self.opened) == 1
        self.codes: Any = self._new_codes() if new else self.opened[1]
        self.sentences = self._sentences() if new and self.recipe.reads_sentences else None
        self.facts |= {
            "layers": self.frozen.layers,
            "width": self.frozen.width,
            "start": self.codes.start,
            "head": self.codes.head,
            "combine": self.codes.combine,
            "reconstruction": None,
        }

    @cached_property
    def _weights_sha256(self) -> str:
        # Only where something is stored: hashing a large model takes seconds.
        return sha256(resolve(self.recipe.model))

    @property
    def looks_up(self) -> bool:
        """Whether training looks up what the frozen model says, in place of running it."""
        return self.recipe.freeze.look_up and self.frozen.readout != "attention"

    def model(self, work: Path) -> SentenceTransformer:
        """Return the model to train: the frozen one, and the codes, begun as the settings say.

        Args:
            work: The run's work folder.

        Raises:
            InputError: The raw sentences are too few, or the store cannot be written.
        """
        settings = self.recipe.freeze
        self.codes.to(self.device)
        if self.sentences is not None:
            self._fit(self.sentences, work)
        kept = kept_layers(settings, self.frozen.layers)
        if len(self.opened) == 1 and len(kept) < self.frozen.layers:
            whole = self.codes
            self.codes = self._codes(kept, [whole.bottlenecks[layer] for layer in kept] if whole.bottlenecks else ())
            _take_layers(self.codes, whole, kept)
        self.codes.noise = settings.noise
        self.codes.encoders.requires_grad_(settings.train_encoders)
        return SentenceTransformer(modules=[self.frozen, self.codes], device=str(self.device))

    def has_learning_encoders(self) -> bool:
        """Whether anything but the head (and an attention) learns."""
        return any(parameter.requires_grad for parameter in self.codes.encoders.parameters())

    def store(self, work: Path) -> LayerStore:
        """Return what the frozen model says of the sentences of all pairs, cut as in training."""
        return self._store("pairs", pair_texts(self.rows), work)

    def dev_store(self, dev: Iterable[ScoredPairs], work: Path) -> LayerStore:
        """Return the same of the pairs that choose, which are read whole, as the model reads them in use."""
        return self._store("dev", (text for pairs in dev for text in pairs.texts()), work, whole=True)

    def _store(self, name: str, texts: Iterable[str], work: Path, *, whole: bool = False) -> LayerStore:
        teacher = frozen_teacher(
            self.opened,
            self.recipe.model,
            {"model": self._weights_sha256},
            longest=None if whole else self.recipe.training.max_length,
            dtype=self.recipe.freeze.store_dtype,
        )
        store = open_store(teacher, texts, self._folder(work), progress=self.progress)
        found = store.texts
        self.facts.setdefault("store", {})[name] = {
            "sentences": len(found.vectors),
            "bytes": found.vectors.nbytes,
            "dtype": str(found.vectors.dtype),
            "found": found.found,
        }
        self.seconds[f"store_{name}"] = 0.0 if found.found else found.seconds
        return store

    def _folder(self, work: Path) -> Path:
        return work if self.recipe.freeze.store is None else Path(self.recipe.freeze.store)

    def _new_codes(self) -> LayerCodes:
        """Return the codes of all layers, whichever are left out: the same autoencoders serve every choice."""
        settings, count = self.recipe.freeze, self.frozen.layers
        # Whoever finds the autoencoders fitted, by another run, began with the same numbers.
        torch.manual_seed(self.recipe.training.seed)
        kept_layers(settings, count)
        return self._codes(range(count), () if settings.start == "cosines" else bottlenecks(settings, count))

    def _codes(self, kept: Sequence[int], widths: Sequence[int]) -> LayerCodes:
        settings = self.recipe.freeze
        return LayerCodes(
            self.frozen.layers,
            self.frozen.width,
            kept=kept,
            start=settings.start,
            bottlenecks=widths,
            depth=settings.depth,
            normalise=settings.normalise_input,
            head=settings.head,
            hidden=settings.hidden,
            combine=settings.combine,
        )

    def _fit(self, sentences: Sequence[str], work: Path) -> None:
        """Fit to the raw sentences what the settings ask for: the normalisation, the directions, the autoencoders."""
        codes = self.codes
        stored = self._store("sentences", sentences, work).texts
        standardise = codes.standardise if isinstance(codes.standardise, Standardise) else None
        if standardise is not None:
            standardise.measure(stored.vectors)
        if isinstance(codes.encoders, LayerMaps):
            codes.encoders.measure(stored.vectors, standardise)
        elif codes.start == "autoencoder":
            found, again = self._fit_autoencoders(stored, standardise, self._folder(work))
            self.facts["reconstruction"] = {**asdict(found), "bottlenecks": codes.bottlenecks, "found": again}
            self.seconds["autoencoders"] = 0.0 if again else found.seconds

    def _fit_autoencoders(
        self, stored: TextVectors, standardise: Standardise | None, folder: Path
    ) -> tuple[Reconstruction, bool]:
        """Return how well they do, and whether an earlier run had fitted them."""
        codes, settings = self.codes, self.recipe.freeze
        key = {
            "vectors": stored.path.name,
            "bottlenecks": codes.bottlenecks,
            "depth": codes.depth,
            "combine": codes.combine,
            "normalise": codes.normalise,
            "device": self.device.type,
            "version": __version__,
        }
        how = FitSettings(
            noise=settings.noise,
            seed=self.recipe.training.seed,
            **settings.autoencoder.model_dump(exclude={"sentences", "column", "limit"}),
        )
        name = hashlib.sha256(json.dumps([key, asdict(how)], sort_keys=True).encode()).hexdigest()[:16]
        work = folder / f"autoencoders-{name}"
        with alone(work):
            again = (work / RESULT).exists()
            found = fit(codes.encoders, stored.vectors, work, key, how, standardise=standardise, progress=self.progress)
        return found, again

    def _sentences(self) -> list[str]:
        settings = self.recipe.freeze.autoencoder
        if settings.sentences is None:
            return pair_texts(self.rows)
        _, warnings = find_audit(settings.sentences)
        self.rows.warnings += warnings
        return list(limited(read_sentences(settings.sentences, column=settings.column), settings.limit))


def _take_layers(codes: LayerCodes, whole: LayerCodes, kept: Sequence[int]) -> None:
    """Copy what the kept layers have learned."""
    if isinstance(codes.encoders, LayerEncoders):
        _take_stacks(codes.encoders, cast("LayerEncoders", whole.encoders), kept)
    for part in ("standardise",) if isinstance(codes.encoders, LayerEncoders) else ("standardise", "encoders"):
        taken = getattr(whole, part).state_dict()
        for name, mine in getattr(codes, part).state_dict().items():
            # Narrower, where the widest codes are those of layers left out.
            mine.copy_(taken[name][list(kept)][tuple(map(slice, mine.shape))])


@torch.no_grad()
def _take_stacks(encoders: LayerEncoders, whole: LayerEncoders, kept: Sequence[int]) -> None:
    stacks: list[Any] = list(whole.stacks)
    for stack in list[Any](encoders.stacks):
        same = next(other for other in stacks if other.bottleneck == stack.bottleneck)
        places = [same.places.index(kept[place]) for place in stack.places]
        for mine, theirs in zip(stack.parameters(), same.parameters(), strict=True):
            mine.copy_(theirs[places])
