"""The hyperparameters of every method in every setting, and where they come from.

Three sources: what `benchmarks.tune` chose from `GRIDS` on the validation split
(``results/hyperparameters.json``, with provenance), what was published (`PUBLISHED`), and for
settings that are ``tuned_on`` another one, that one's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.grids import GRIDS
from benchmarks.settings import SETTINGS

CHOSEN = Path(__file__).parent / "results" / "hyperparameters.json"

Values = dict[str, Any]


class HyperparameterError(ValueError):
    """A hyperparameter that a method does not have, or a value that does not suit it."""


class NoValuesError(ValueError):
    """Nothing was chosen or published for a method in a setting."""


# The paper's Table "Hyperparameters"; classifier_lr and last_epochs as in the authors' runs,
# memory_strength as in Avalanche. What is not here was published nowhere.
_CIFAR100_DLCPA = {"lr": 0.005, "classifier_lr": 0.2, "supervised_weight": 10.0}
_TINY_DLCPA = {**_CIFAR100_DLCPA, "lr": 0.02, "classifier_lr": 0.05, "last_epochs": 10}
_HEADS = ("mocov2", "byol", "simclr")
_DLCPA = tuple(f"dlcpa-{name}" for name in ("a", "b", "c", "d", "e", *_HEADS))
_DER = {"lr": 0.03, "alpha": 0.1}
PUBLISHED: dict[str, dict[str, Values]] = {
    "cifar100-10": {
        **dict.fromkeys(_DLCPA, _CIFAR100_DLCPA),
        "gem": {"lr": 0.03, "memory_strength": 0.5},
        "der": _DER,
        "der++": {**_DER, "beta": 0.5},
    },
    "tiny-10": {
        **dict.fromkeys(_DLCPA, _TINY_DLCPA),
        "gem": {"lr": 0.05, "memory_strength": 0.5},
        "der": _DER,
        "der++": {**_DER, "beta": 0.5},
    },
}

# Of the same table, where it differs from that of the setting.
BATCH_SIZES: dict[str, dict[str, int]] = {"tiny-10": {"gem": 64, **dict.fromkeys(_DLCPA, 512)}}


# Of all methods, the numbers that have no upper end; others say themselves what suits them.
_FROM_0 = (
    *("strength", "memory_strength", "alpha", "beta", "ssl_weight", "supervised_weight"),
    *("temperature", "queue_size", "last_epochs", "finetune_epochs", "margin"),
)
_ABOVE_0 = ("lr", "classifier_lr", "finetune_lr")
_SHARES = ("momentum", "encoder_momentum", "ema_decay", "post_prune_share")


def expect_number(name: str, value: Any) -> None:
    """Refuse a value that is none for a hyperparameter that is a number; others pass.

    Raises:
        HyperparameterError: No number, or one out of range.

    Example:
        >>> expect_number("lr", 0.1)
    """
    ends = {"from 0 on": _FROM_0, "above 0": _ABOVE_0, "from 0 to 1": _SHARES}
    wanted = next((words for words, names in ends.items() if name in names), None)
    if wanted is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    most = 1 if name in _SHARES else math.inf
    if not (is_number and math.isfinite(value) and 0 <= value <= most) or (
        name in _ABOVE_0 and value == 0
    ):
        raise HyperparameterError(f"Expected {name} to be a number {wanted}, got {value!r}.")


def has_values(method: str, setting: str) -> bool:
    """Whether hyperparameters were chosen or published.

    Raises:
        ValueError: The file of the chosen ones was cut short or altered: nobody knows.
    """
    try:
        hyperparameters_of(method, setting)
    except NoValuesError:
        return False
    return True


def hyperparameters_of(method: str, setting: str) -> Values:
    """What a method runs with in a setting.

    Raises:
        NoValuesError: Nothing was chosen or published.
        ValueError: The file of the chosen ones was cut short or altered.
    """
    source = SETTINGS[setting].tuned_on or setting
    chosen = chosen_values().get(source, {}).get(method)
    if chosen is not None:
        return dict(chosen["hyperparameters"])
    if method in PUBLISHED.get(source, {}):
        return dict(PUBLISHED[source][method])
    way = "name them with --set, lr among them"
    if method in GRIDS.get(source, {}):
        way = f"run `python -m benchmarks.tune --setting {source} --methods {method}` first"
    raise NoValuesError(
        f"Expected hyperparameters of {method} in {source}, got none, published or chosen: {way}."
    )


def batch_size_of(method: str, setting: str) -> int:
    """Of the training of a method in a setting."""
    plan = SETTINGS[setting]
    return BATCH_SIZES.get(plan.tuned_on or setting, {}).get(method, plan.batch_size)


def chosen_values(path: Path | None = None) -> dict[str, dict[str, Values]]:
    """What was chosen, with its provenance: setting -> method -> entry.

    Args:
        path: The file; None: `CHOSEN`.

    Raises:
        ValueError: A file that was cut short or altered.
    """
    path = CHOSEN if path is None else path
    if not path.exists():
        return {}
    try:
        chosen = json.loads(path.read_text(encoding="utf-8"))
        for of_setting in chosen.values():
            for entry in of_setting.values():
                dict(entry["hyperparameters"])
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected {path.name} to hold all values chosen, got a file cut short or altered "
            f"({type(error).__name__}: {error}): take it from the repository again, or delete it "
            "and tune."
        ) from error
    return chosen
