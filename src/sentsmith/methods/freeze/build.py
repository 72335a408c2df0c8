"""The stages before the training: the frozen model is opened and read, its autoencoders fitted, the model built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from sentence_transformers import SentenceTransformer

from sentsmith.corpus.reading import read_sentences
from sentsmith.encoders.layered import make_layered
from sentsmith.encoders.loading import load, resolve
from sentsmith.errors import SettingsError
from sentsmith.files import sha256
from sentsmith.methods.freeze.autoencoders import FitSettings, Reconstruction, fit
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
    """The stages of one run.

    Attributes:
        recipe: Its settings.
        rows: The scored pairs.
        opened: As :func:`open_model` returns it.
        work: The run's work folder.
        progress: Draw bars.
        facts: What the run record keeps of the stages, as far as they are done.
        seconds: What they took.
    """

    recipe: Recipe
    rows: TrainingRows
    opened: SentenceTransformer
    work: Path
    progress: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frozen: Any = self.opened[0]
        settings = self.recipe.freeze
        self.folder = self.work if settings.store is None else Path(settings.store)
        self.teacher = frozen_teacher(
            self.opened,
            self.recipe.model,
            {"model": sha256(resolve(self.recipe.model))},
            longest=self.recipe.training.max_length,
            dtype=settings.store_dtype,
        )
        self.facts |= {
            "layers": self.frozen.layers,
            "width": self.frozen.width,
            "start": settings.start,
            "head": settings.head,
            "combine": settings.combine,
            "reconstruction": None,
        }

    def model(self) -> SentenceTransformer:
        """Return the model to train: the frozen one, and the codes, begun as the settings say.

        Raises:
            InputError: The raw sentences cannot be read, or are too few.
            SettingsError: The settings do not fit the model.
        """
        if len(self.opened) > 1:
            codes: Any = self.opened[1]
        else:
            codes = self._new_codes()
        settings = self.recipe.freeze
        codes.noise = settings.noise
        codes.encoders.requires_grad_(settings.train_encoders)
        return SentenceTransformer(modules=[self.frozen, codes], device=str(self.opened.device))

    def store(self, dev: Iterable[ScoredPairs]) -> LayerStore:
        """Return the frozen model's vectors of all sentences of the pairs, and of the dev pairs."""
        texts = [*pair_texts(self.rows), *(text for pairs in dev for text in pairs.texts())]
        return self._store("pairs", texts)

    def _store(self, name: str, texts: Iterable[str]) -> LayerStore:
        store = open_store(self.teacher, texts, self.folder, progress=self.progress)
        found = store.texts
        self.facts.setdefault("store", {})[name] = {
            "sentences": len(found.vectors),
            "bytes": found.vectors.nbytes,
            "dtype": str(found.vectors.dtype),
            "found": found.found,
        }
        self.seconds[f"store_{name}"] = 0.0 if found.found else found.seconds
        return store

    def _new_codes(self) -> LayerCodes:
        settings, count = self.recipe.freeze, self.frozen.layers
        # Whoever finds the autoencoders fitted, by another run, began with the same numbers.
        torch.manual_seed(self.recipe.training.seed)
        kept = kept_layers(settings, count)
        widths = () if settings.start == "cosines" else bottlenecks(settings, count)
        # All layers are fitted, whichever are left out: the same autoencoders serve every choice.
        whole = self._codes(range(count), widths)
        if self.recipe.reads_sentences:
            self._fit(whole)
        if len(kept) == count:
            return whole
        codes = self._codes(kept, [widths[layer] for layer in kept] if widths else ())
        _take_layers(codes, whole, kept)
        return codes

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

    def _fit(self, codes: LayerCodes) -> None:
        """Fit to the raw sentences what the settings ask for: the normalisation, the directions, the autoencoders."""
        stored = self._store("sentences", self._sentences()).texts
        vectors = stored.vectors
        standardise = codes.standardise if isinstance(codes.standardise, Standardise) else None
        if standardise is not None:
            standardise.measure(vectors)
        if isinstance(codes.encoders, LayerMaps):
            codes.encoders.measure(vectors, standardise)
        elif self.recipe.freeze.start == "autoencoder":
            found = self._fit_autoencoders(codes, stored, standardise)
            self.facts["reconstruction"] = {**asdict(found), "bottlenecks": codes.bottlenecks}
            self.seconds["autoencoders"] = found.seconds

    def _fit_autoencoders(
        self, codes: LayerCodes, stored: TextVectors, standardise: Standardise | None
    ) -> Reconstruction:
        settings, seed = self.recipe.freeze, self.recipe.training.seed
        key = {
            **self.teacher.key,
            "vectors": stored.path.name,
            "bottlenecks": codes.bottlenecks,
            "depth": settings.depth,
            "combine": settings.combine,
            "normalise": settings.normalise_input,
            "device": self.opened.device.type,
        }
        how = FitSettings(
            noise=settings.noise,
            seed=seed,
            **settings.autoencoder.model_dump(exclude={"sentences", "column", "limit"}),
        )
        name = hashlib.sha256(json.dumps([key, asdict(how)], sort_keys=True).encode()).hexdigest()[:16]
        coder: Any = codes.encoders
        return fit(coder, stored.vectors, self.folder / f"autoencoders-{name}", key, how, standardise=standardise)

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
