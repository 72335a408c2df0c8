"""The values that a search tries: which settings, from where to where, and which to try next."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sentsmith import settings as settings_io
from sentsmith.errors import SettingsError, require
from sentsmith.training.settings import Choices, Range, Recipe

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

R = TypeVar("R", bound=Recipe)
Space = Mapping[str, Range | Choices]
Values = dict[str, Any]

_FIXED = ("method", "model", "training.seed", "tune")
# A bound may be whole by chance (1.0); what lies here between two bounds is not.
_BETWEEN = 0.6180339887
# So often values are drawn again that were tried before; few settings may have been tried in all their values.
_ATTEMPTS = 20


def with_values(recipe: R, values: Mapping[str, Any]) -> R:
    """Return the recipe with these values (dotted setting → value), and without its section ``tune``.

    Raises:
        SettingsError: A value is wrong, or does not go with another setting.
    """
    plain = recipe.model_dump(mode="json", exclude={"tune"})
    for key, value in values.items():
        *parents, last = key.split(".")
        place = plain
        for parent in parents:
            place = place[parent]
        place[last] = value
    return settings_io.resolve(type(recipe), plain)


def own_values(recipe: Recipe, keys: Mapping[str, Any]) -> Values:
    """Return the recipe's own values of these settings, as JSON has them."""
    plain = recipe.model_dump(mode="json")
    return {key: _value(plain, key) for key in keys}


def _value(plain: Mapping[str, Any], key: str) -> Any:
    value: Any = plain
    for part in key.split("."):
        value = value[part]
    return value


def checked(recipe: Recipe) -> dict[str, Range | tuple[Any, ...]]:
    """Return what the recipe's section ``tune`` spans, each choice written as the settings write it.

    Raises:
        SettingsError: There is no section, nothing to choose by, a setting that does not exist or has to stay as it
            is, or a value that the recipe refuses.
    """
    if not recipe.tune:
        raise SettingsError(
            "tune is empty, so there is nothing to search; give settings and their values, for example --set "
            "'tune={training.learning_rate: {low: 1e-5, high: 1e-3, log: true}}'"
        )
    if not recipe.data.dev and not recipe.data.held_out:
        raise SettingsError(
            "nothing scores the trials: name files in data.dev, or hold out some of the training rows (data.held_out)"
        )
    known = sorted(set(settings_io.keys_of(type(recipe))) - {"tune"})
    # The order in which they are written must not change what is drawn.
    return {key: _checked(recipe, key, values, known) for key, values in sorted(recipe.tune.items())}


def _checked(
    recipe: Recipe, key: str, values: Range | tuple[Any, ...], known: Sequence[str]
) -> Range | tuple[Any, ...]:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"settings: {', '.join(known)}"
        raise SettingsError(f"tune: setting {key!r} is unknown; {hint}")
    if key in _FIXED or key.startswith("data."):
        raise SettingsError(f"tune: {key!r} has to be the same in all trials, or their scores cannot be compared")
    if key.endswith("temperature") and not recipe.data.dev:
        raise SettingsError(
            f"tune: {key!r} is the temperature of the score on held-out rows too; name files in data.dev"
        )
    tried = [own_values(_tried(recipe, key, value), {key: ()})[key] for value in _samples(values)]
    return values if isinstance(values, Range) else tuple(tried)


def _samples(values: Range | tuple[Any, ...]) -> Iterator[Any]:
    if not isinstance(values, Range):
        yield from values
        return
    yield from (values.low, values.high)
    if not values.whole and values.step is None:
        yield values.low + (values.high - values.low) * _BETWEEN
    elif values.step is not None:
        yield values.low + values.step


def _tried(recipe: R, key: str, value: Any) -> R:
    try:
        return with_values(recipe, {key: value})
    except SettingsError as error:
        raise SettingsError(f"tune: the recipe refuses {key} = {value!r}: {error}") from error


def suggest(space: Space, scored: Sequence[tuple[Values, float | None]], seed: int) -> Values:
    """Return the values to try next.

    Tree-structured Parzen estimators of Optuna (Bergstra et al. 2011), after ten trials at random. The same arguments
    give the same values, so a search that was broken off goes on as if it was not. Values that were tried are given
    again where no others are found soon.

    Args:
        space: As :func:`checked` returns it.
        scored: The trials so far, in their order: values and score (higher is better), None of one that failed.
        seed: Of the whole search.

    Raises:
        MissingExtraError: Optuna is not installed.
    """
    optuna = require("optuna", extra="tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(values) for key, values in space.items()}
    told = []
    for values, score in scored:
        inside = _inside(space, values, distributions)
        if inside is not None:
            state = optuna.trial.TrialState.FAIL if score is None else optuna.trial.TrialState.COMPLETE
            told.append(optuna.trial.create_trial(state=state, value=score, params=inside, distributions=distributions))
    tried = [values for values, _ in scored]
    for attempt in range(_ATTEMPTS):
        # A seed of its own each time: the sampler's random numbers cannot be kept from one process to the next.
        sampler = optuna.samplers.TPESampler(seed=seed + len(scored) + 100_003 * attempt)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(told)
        drawn = study.ask(fixed_distributions=distributions).params
        found = {key: _chosen(space[key], value) for key, value in drawn.items()}
        if found not in tried:
            break
    return found


def _chosen(values: Range | tuple[Any, ...], found: Any) -> Any:
    return found if isinstance(values, Range) else values[found]


def _inside(space: Space, values: Values, distributions: Mapping[str, BaseDistribution]) -> Values | None:
    """Return values as Optuna has them; None where one lies outside the space, as the recipe's own may."""
    import optuna

    result: Values = {}
    for key, value in values.items():
        choices = space[key]
        try:
            result[key] = value if isinstance(choices, Range) else choices.index(value)
            optuna.trial.create_trial(value=0.0, params={key: result[key]}, distributions={key: distributions[key]})
        except ValueError:
            return None
    return result


def _distribution(values: Range | tuple[Any, ...]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, Range):
        # By their places: a choice may be a list, which Optuna does not know.
        return CategoricalDistribution(range(len(values)))
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(float(values.low), float(values.high), log=values.log, step=values.step)
