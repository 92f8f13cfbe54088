"""The self-supervised loss among hyperparameters: DLCPA's own, and what a baseline is given."""

from __future__ import annotations

import inspect
from typing import Any

from avalanche_dlcpa import SelfSupervisedLossPlugin
from avalanche_dlcpa.self_supervised import HEADS, SelfSupervisedHead
from benchmarks.settings import Setting


def _names_of_head(kind: type[SelfSupervisedHead]) -> dict[str, str]:
    """What a head's options are called among hyperparameters, where momentum is the optimizer's."""
    names = inspect.signature(kind).parameters
    return {"encoder_momentum" if name == "momentum" else name: name for name in names}


def take_head(kind: type[SelfSupervisedHead], options: dict[str, Any]) -> SelfSupervisedHead:
    """Make a head, and take its options out of the hyperparameters."""
    names = _names_of_head(kind).items()
    return kind(**{own: options.pop(name) for name, own in names if name in options})


def options_of_loss(ssl: str, options: dict[str, Any]) -> dict[str, Any]:
    """What of DLCPA's hyperparameters is of its self-supervised loss, as baselines are given it.

    Example:
        >>> options_of_loss("mocov2", {"lr": 0.1, "supervised_weight": 4.0, "queue_size": 1024})
        {'queue_size': 1024, 'ssl_weight': 0.25}
    """
    found = {name: options[name] for name in _names_of_head(HEADS[ssl]) if name in options}
    if options.get("supervised_weight"):
        found["ssl_weight"] = 1 / options["supervised_weight"]
    return found


def take_loss(options: dict[str, Any], setting: Setting) -> list[SelfSupervisedLossPlugin]:
    """Make the plugin of a baseline's self-supervised loss, if it is given one.

    Args:
        options: Hyperparameters, from which ``ssl`` and all of the loss are taken out.
        setting: Makes the views.
    """
    ssl = options.pop("ssl", None)
    if ssl is None:
        return []
    weight = {"weight": options.pop("ssl_weight")} if "ssl_weight" in options else {}
    head = take_head(HEADS[ssl], options)
    return [SelfSupervisedLossPlugin(head, views=setting.make_views(), **weight)]
