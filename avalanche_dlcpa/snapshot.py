"""What plugins and metrics remember, as plain data, so that a checkpoint can hold it.

Avalanche's plugins and metrics have no ``state_dict``. Their attributes are walked instead: plain
values are kept, objects with ``state_dict`` and ``load_state_dict`` speak for themselves, metrics
inside are walked in turn, and what never changes (functions, loggers, threads) is left alone.
"""

from __future__ import annotations

import collections
import functools
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from avalanche.core import BasePlugin
from avalanche.evaluation import PluginMetric
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor

_PLAIN = (bool, int, float, str, bytes, type(None))
_CONSTANT = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    threading.Thread,
    torch.device,
    torch.dtype,
    BaseLogger,
)
_SEQUENCES: Mapping[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class NoPlainStateError(ValueError):
    """A plugin or metric remembers something that a checkpoint cannot hold."""


def capture(value: Any, path: str) -> Any:
    """Tell a value as plain data.

    Args:
        value: A plugin, or what one holds.
        path: What errors call it, such as ``"ReplayPlugin.storage_policy"``.

    Returns:
        Plain data for `restore`.

    Raises:
        NoPlainStateError: It, or something inside, is neither plain nor has a ``state_dict``.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"kind": "array", "items": torch.from_numpy(value.copy())}
    if type(value) in _SEQUENCES:
        items = [capture(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return {"kind": _SEQUENCES[type(value)], "items": items}
    if type(value) in _MAPPINGS:
        pairs = [
            [capture(key, f"{path} (a key)"), capture(item, f"{path}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"kind": "mapping", "items": pairs}
    if isinstance(value, EvaluationPlugin):
        return _evaluation_state(value, path)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"kind": "state_dict", "items": value.state_dict()}
    if isinstance(value, _CONSTANT):
        return {"kind": "constant"}
    if _is_walked(value):
        return {"kind": "object", "class": _class_name(value), "items": _attributes(value, path)}
    raise NoPlainStateError(
        f"Expected plugins and metrics whose state a checkpoint can hold, got {path} of type "
        f"{type(value).__name__}: give the plugin `state_dict` and `load_state_dict`, or go "
        "without checkpoints."
    )


def restore(current: Any, saved: Any) -> Any:
    """Bring a value to what `capture` told of it.

    Args:
        current: The value of a fresh run, which objects are changed in place.
        saved: What `capture` returned.

    Returns:
        The value as it was.

    Raises:
        ValueError: The fresh run holds another kind of object there.
    """
    if not isinstance(saved, dict):
        return saved
    kind, items = saved["kind"], saved.get("items", ())
    if kind == "constant":
        return current
    if kind == "array":
        return items.numpy()
    if kind in _SEQUENCES.values():
        own = list(current) if type(current) in (list, tuple, collections.deque) else []
        own += [None] * (len(items) - len(own))
        values = [restore(old, item) for old, item in zip(own, items, strict=False)]
        made = next(cls for cls, name in _SEQUENCES.items() if name == kind)
        if kind == "deque":
            return collections.deque(values, maxlen=getattr(current, "maxlen", None))
        return made(values)
    if kind == "mapping":
        return _restored_mapping(current, items)
    if kind == "evaluation":
        _restore_evaluation(current, saved)
        return current
    if kind == "state_dict":
        if not hasattr(current, "load_state_dict"):
            raise ValueError(
                "Expected the plugins to hold the same objects as in the checkpoint, got "
                f"{type(current).__name__} for one with a state_dict."
            )
        current.load_state_dict(items)
        return current
    target = current if _is_walked(current) and _class_name(current) == saved["class"] else None
    target = _empty(saved["class"]) if target is None else target
    for name, item in items.items():
        setattr(target, name, restore(getattr(target, name, None), item))
    return target


def plain_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an evaluator's values that are numbers or tensors (no images, no objects)."""
    numbers = {k: v.item() if isinstance(v, np.generic) else v for k, v in results.items()}
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in numbers.items()
        if type(value) in _PLAIN or isinstance(value, Tensor)
    }


def _attributes(value: Any, path: str) -> dict[str, Any]:
    return {name: capture(item, f"{path}.{name}") for name, item in vars(value).items()}


def _evaluation_state(plugin: EvaluationPlugin, path: str) -> dict[str, Any]:
    curves = {
        name: [list(x), [plain_results({"": value}).get("") for value in y]]
        for name, (x, y) in plugin.all_metric_results.items()
    }
    return {
        "kind": "evaluation",
        "active": plugin.active,
        "metrics": [capture(m, f"{path}.{type(m).__name__}") for m in plugin.metrics],
        "last": plain_results(plugin.last_metric_results),
        "curves": curves,
    }


def _restore_evaluation(plugin: EvaluationPlugin, saved: dict[str, Any]) -> None:
    if len(plugin.metrics) != len(saved["metrics"]):
        raise ValueError(
            f"Expected {len(saved['metrics'])} metrics as in the checkpoint, "
            f"got {len(plugin.metrics)}: build the evaluator as before."
        )
    plugin.active = saved["active"]
    for metric, state in zip(plugin.metrics, saved["metrics"], strict=True):
        restore(metric, state)
    plugin.last_metric_results = dict(saved["last"])
    plugin.all_metric_results.clear()
    for name, (x, y) in saved["curves"].items():
        plugin.all_metric_results[name] = (list(x), list(y))


def _restored_mapping(current: Any, items: list[list[Any]]) -> Any:
    mapping = current if type(current) in _MAPPINGS else {}
    old = dict(mapping)
    make = getattr(mapping, "default_factory", None) or (lambda: None)
    mapping.clear()
    for key, item in items:
        name = restore(None, key)
        mapping[name] = restore(old[name] if name in old else make(), item)
    return mapping


def _is_walked(value: Any) -> bool:
    module = type(value).__module__
    is_known = isinstance(value, BasePlugin | PluginMetric)
    return is_known or module.startswith("avalanche.evaluation.")


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _empty(name: str) -> Any:
    """An instance of one of Avalanche's own metrics, made without running its constructor."""
    module, _, class_name = name.rpartition(".")
    found = getattr(_avalanche_metrics(module), class_name, None)
    if not isinstance(found, type):
        raise ValueError(
            f"Expected the plugins to hold the same objects as in the checkpoint, got none for "
            f"one of {name}."
        )
    return object.__new__(found)


def _avalanche_metrics(module: str) -> types.ModuleType | None:
    return sys.modules.get(module) if module.startswith("avalanche.evaluation.") else None
