"""What plugins and metrics remember, as plain data, so that a checkpoint can hold it.

Avalanche's plugins and metrics have no ``state_dict``. Their attributes are walked instead: plain
values are kept, objects with ``state_dict`` and ``load_state_dict`` speak for themselves, metrics
inside are walked in turn, and what a fresh run has by itself (functions, loggers, threads, parts
of the strategy, and what is measured of this very process) is left alone.
"""

from __future__ import annotations

import collections
import copy
import functools
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from avalanche.core import BasePlugin
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metrics import CPUUsage, ElapsedTime, MaxGPU, MaxRAM
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.utils import ParamData
from torch import Tensor
from torch.nn import Parameter

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
    BaseLogger,
    *(CPUUsage, ElapsedTime, MaxGPU, MaxRAM),
)
_SEQUENCES: Mapping[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
}
_READABLE = (collections.OrderedDict, collections.Counter)  # with weights_only, too
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class NoPlainStateError(ValueError):
    """A plugin or metric remembers something that a checkpoint cannot hold."""


def plain(state: Any, path: str) -> Any:
    """The same state in types that ``torch.load(weights_only=True)`` reads, numbers of NumPy's too.

    Args:
        state: Nested dicts, lists and tuples of tensors, numbers and strings.
        path: What errors call it.

    Raises:
        NoPlainStateError: Something else is in it.
    """
    state = state.item() if isinstance(state, np.generic) else state
    if type(state) in _PLAIN or isinstance(state, torch.Size | torch.dtype | torch.device):
        return state
    if _is_plain_tensor(state):
        return state
    if isinstance(state, Mapping):
        pairs = [(plain(k, f"{path} (a key)"), v) for k, v in state.items()]
        parts = {name: plain(value, f"{path}[{name!r}]") for name, value in pairs}
        made: Any = type(state) if type(state) in _READABLE else dict
        return _with_versions(made(parts), state, path)
    if type(state) in (list, tuple, set):
        return type(state)(plain(part, f"{path}[{i}]") for i, part in enumerate(state))
    raise _no_plain_state(state, path)


def _with_versions(copied: Any, state: Mapping[Any, Any], path: str) -> Any:
    """Have the versions of modules in a copied state, by which some migrate that of old code."""
    if hasattr(state, "_metadata") and isinstance(copied, collections.OrderedDict):
        copied._metadata = plain(state._metadata, f"{path}._metadata")  # type: ignore[attr-defined]
    return copied


def capture(value: Any, path: str, *, parts: Collection[int] = ()) -> Any:
    """Tell a value as plain data.

    Args:
        value: A plugin, or what one holds.
        path: What errors call it, such as ``"ReplayPlugin.storage_policy"``.
        parts: Identities of objects that a fresh run has by itself.

    Returns:
        Plain data for `restore`.

    Raises:
        NoPlainStateError: It, or something inside, is neither plain nor has a ``state_dict``.
    """
    within = functools.partial(capture, parts=parts)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN or isinstance(value, torch.dtype):
        return value
    if id(value) in parts:
        return {"kind": "constant"}
    if _is_plain_tensor(value):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"kind": "array", "items": torch.from_numpy(value.copy())}
    if type(value) in _SEQUENCES:
        items = [within(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return {"kind": _SEQUENCES[type(value)], "items": items}
    if type(value) in _MAPPINGS:
        pairs = [
            [within(key, f"{path} (a key)"), within(item, f"{path}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"kind": "mapping", "items": pairs}
    if isinstance(value, EvaluationPlugin):
        return _evaluation_state(value, path, within)
    if isinstance(value, _CONSTANT):
        return {"kind": "constant"}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"kind": "state_dict", "items": plain(value.state_dict(), f"{path}.state_dict()")}
    if isinstance(value, ParamData):
        data = value.data.detach().clone()
        return {"kind": "parameter", "items": data, "name": value.name, "device": str(value.device)}
    if _is_walked(value):
        attributes = {name: within(item, f"{path}.{name}") for name, item in vars(value).items()}
        return {"kind": "object", "class": _class_name(value), "items": attributes}
    raise _no_plain_state(value, path)


def _is_plain_tensor(value: Any) -> bool:
    """Whether it is no tensor of a class of its own, which no file of plain data can hold."""
    return type(value) in (Tensor, Parameter)


def objects_in(captured: Any, path: str = "") -> Iterator[str]:
    """Where `capture` met objects that speak for themselves, which a fresh run has to hold, too."""
    if isinstance(captured, list | tuple):
        for i, item in enumerate(captured):
            yield from objects_in(item, f"{path}[{i}]")
    if not isinstance(captured, dict):
        return
    kind = captured["kind"]
    if kind == "state_dict":
        yield path
    elif kind == "object":
        for name, item in captured["items"].items():
            yield from objects_in(item, f"{path}.{name}")
    elif kind == "mapping":
        for key, item in captured["items"]:
            yield from objects_in(item, f"{path}[{key!r}]")
    elif kind == "evaluation":
        yield from objects_in(captured["metrics"], path)
    elif kind in _SEQUENCES.values():
        yield from objects_in(captured["items"], path)


def _no_plain_state(value: Any, path: str) -> NoPlainStateError:
    return NoPlainStateError(
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
    if isinstance(saved, Tensor):  # which may be restored a second time: never the saved one itself
        return saved.to(current.device if isinstance(current, Tensor) else saved.device, copy=True)
    if not isinstance(saved, dict):
        return saved
    kind, items = saved["kind"], saved.get("items", ())
    if kind == "constant":
        return current
    if kind == "array":
        return items.numpy().copy()
    if kind == "parameter":
        there = torch.device(saved["device"])
        device = there if there.type == "cpu" or torch.cuda.is_available() else "cpu"
        return ParamData(saved["name"], init_tensor=items.to(device, copy=True), device=device)
    if kind in _SEQUENCES.values():
        if current is None and {"kind": "constant"} in items:
            return None  # whoever made it makes it anew, of the parts of this run
        own = list(current) if type(current) in (list, tuple, collections.deque) else []
        own += [None] * (len(items) - len(own))
        values = [restore(old, item) for old, item in zip(own, items, strict=False)]
        made = next(cls for cls, name in _SEQUENCES.items() if name == kind)
        if type(current) is not made or not isinstance(current, list | set | collections.deque):
            return made(values)
        current.clear()  # the same object, which the script may hold, too
        (current.update if isinstance(current, set) else current.extend)(values)
        return current
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
        current.load_state_dict(copy.deepcopy(items))  # some take out what they have read
        return current
    target = current if _is_walked(current) and _class_name(current) == saved["class"] else None
    target = _empty(saved["class"]) if target is None else target
    for name, item in items.items():
        setattr(target, name, restore(vars(target).get(name), item))
    return target


def plain_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an evaluator's values that are numbers or tensors (no images, no objects)."""
    numbers = {k: v.item() if isinstance(v, np.generic) else v for k, v in results.items()}
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in numbers.items()
        if type(value) in _PLAIN or isinstance(value, Tensor)
    }


def _evaluation_state(
    plugin: EvaluationPlugin, path: str, within: Callable[[Any, str], Any]
) -> dict[str, Any]:
    curves = {
        name: [list(x), [plain_results({"": value}).get("") for value in y]]
        for name, (x, y) in plugin.all_metric_results.items()
    }
    return {
        "kind": "evaluation",
        "active": plugin.active,
        "metrics": [within(m, f"{path}.{type(m).__name__}") for m in plugin.metrics],
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
    """An instance of a metric of Avalanche's own, made by its constructor if it needs nothing."""
    module, _, class_name = name.rpartition(".")
    found = getattr(_avalanche_metrics(module), class_name, None)
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(
            f"Expected the plugins to hold the same objects as in the checkpoint, got none for "
            f"one of {name}."
        )
    try:
        return found()  # with the factories of its dictionaries
    except TypeError:
        return object.__new__(found)


def _avalanche_metrics(module: str) -> types.ModuleType | None:
    return sys.modules.get(module) if module.startswith("avalanche.evaluation.") else None
