"""What a checkpoint holds of `DLCPAStrategy`, and what a run and its checkpoint have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from avalanche.training.templates.base_sgd import PeriodicEval
from torch import Tensor, nn

from avalanche_dlcpa.arguments import plain_options
from avalanche_dlcpa.buffers import fit_buffers_
from avalanche_dlcpa.gaussian_plugin import GaussianClassifierPlugin
from avalanche_dlcpa.layer_states import is_kept, layer_states, set_layer_states_
from avalanche_dlcpa.model_head import HeadStart
from avalanche_dlcpa.optimizer import load_optimizer_
from avalanche_dlcpa.snapshot import NoPlainStateError, capture, restore
from avalanche_dlcpa.stable_file import checksum_of_tensors

# What a plugin may change, and an iteration looks at.
_OPTIONS = ("supervised_weight", "classifier_features", "precision")

if TYPE_CHECKING:
    from avalanche_dlcpa.strategy import DLCPAStrategy


def learned_state(strategy: DLCPAStrategy) -> dict[str, Any]:
    """Everything that training changes, as tensors, numbers and strings in nested dicts."""
    now = strategy._now
    temporary = None if now is None or now.temporary is None else now.temporary.state_dict()
    return {
        "model": strategy.model.state_dict(),
        "num_outputs": strategy.model.classifiers.num_outputs,
        "head_start": dataclasses.asdict(strategy.model.classifiers.start),
        "ssl": _state_of(strategy.ssl),
        "average": strategy._average.state_dict(),
        "optimizer": strategy.optimizer.state_dict(),
        "schedule": strategy._schedule.state_dict(),
        "alignment": strategy._alignment.state_dict(),
        "temporary": temporary,
        "views": _state_of(strategy.views),
        "criterion": _state_of(strategy._criterion),
        "options": {name: getattr(strategy, name) for name in _OPTIONS},
        "layers": {name: layer_states(module) for name, module in _modules(strategy).items()},
        "attributes": {
            name: _attributes_of(owner, name, own_tensors(strategy))
            for name, owner in _users_parts(strategy).items()
        },
        "has_warned_of_one": strategy._at_least_two.warned,
        "gaussian": [plugin.state_dict() for plugin in _gaussian_plugins(strategy)],
    }


def load_learned_state_(strategy: DLCPAStrategy, state: dict[str, Any]) -> None:
    """Make a strategy go on from what `learned_state` told; see `DLCPAStrategy.load_state_dict`."""
    now = strategy._now
    strategy.model.to(strategy.device)  # where the average goes on, and Avalanche's loop puts it
    learners = ("plastic.", "stable.")
    fit_buffers_(strategy.model, state["model"], strategy.device, within=learners)
    strategy.model.load_state_dict(state["model"])
    strategy.model.classifiers.widen(state["num_outputs"])
    strategy.model.classifiers.start = HeadStart(**state["head_start"])
    if strategy.ssl is not None:
        strategy.ssl.to(strategy.device)
        fit_buffers_(strategy.ssl, state["ssl"], strategy.device)
        strategy.ssl.load_state_dict(state["ssl"])
    strategy._average.load_state_dict(state["average"])
    strategy.model.is_learning = state["average"]["begun"]
    strategy._schedule.load_state_dict(state["schedule"])
    strategy._alignment.load_state_dict(state["alignment"])
    if now is not None and now.temporary is not None:
        now.temporary.load_state_dict(state["temporary"])
    owners: list[tuple[Any, str]] = [
        (strategy.views, "views"),
        (strategy._criterion, "criterion"),
    ]
    for owner, name in owners:
        own = state[name]
        if own is not None:
            owner.load_state_dict(own)
    for option in _OPTIONS:
        setattr(strategy, option, state["options"][option])
    for name, module in _modules(strategy).items():
        set_layer_states_(module, state["layers"][name])
    for name, owner in _users_parts(strategy).items():
        for attribute, saved in state["attributes"][name].items():
            if is_kept(attribute):
                setattr(owner, attribute, restore(vars(owner).get(attribute), saved))
    strategy._at_least_two.warned = state["has_warned_of_one"]
    for plugin, known in zip(_gaussian_plugins(strategy), state["gaussian"], strict=True):
        plugin.load_state_dict(known)
    if now is not None or not state["average"]["begun"]:
        load_optimizer_(strategy.optimizer, state["optimizer"])
    if now is not None:
        now.last_good.keep()
        strategy._begin_graph()  # an older one reads where the average and the optimizer were


def own_tensors(strategy: DLCPAStrategy) -> frozenset[int]:
    """Identities of all parameters and buffers that are trained or computed with.

    Whoever holds one of them, such as a plugin that clips gradients, holds that of a fresh run
    after a resume, and no copy.
    """
    modules: list[nn.Module] = [strategy.model, *_modules(strategy).values()]
    tensors = itertools.chain.from_iterable((*m.parameters(), *m.buffers()) for m in modules)
    return frozenset(map(id, tensors))


def fingerprint_of(strategy: DLCPAStrategy) -> dict[str, Any]:
    """What a run and its checkpoint must have in common, as plain data by name."""
    modules = {"plastic": strategy.model.plastic, "head": strategy.ssl or nn.Module()}
    shapes = {
        f"{part}.{name}": [*tensor.shape, str(tensor.dtype)]
        for part, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    layers = {
        f"{part}.{name} (layer)": plain_options(layer)
        for part, module in modules.items()
        for name, layer in module.named_modules()
    }
    groups = [
        {name: str(value) for name, value in group.items() if name != "params"}
        for group in strategy.optimizer.param_groups
    ]
    return {
        **shapes,
        **layers,
        "from_stable": strategy._from_stable,
        "num_features": strategy.model.num_features,
        "optimizer": [type(strategy.optimizer).__name__, groups],
        "ssl": plain_options(strategy.ssl),
        "views": plain_options(strategy.views),
        "criterion": [
            *plain_options(strategy._criterion),
            _checksum_of_criterion(strategy._criterion),
        ],
        "supervised_weight": float(strategy.supervised_weight),
        "precision": strategy.precision,
        "image_cache_bytes": float(strategy.image_cache_bytes),
        "cuda_graph": strategy.cuda_graph,
        "classifier_lr": float(strategy._alignment.lr),
        "scheduler": strategy._schedule.make_scheduler is not None,
        "classifier_scheduler": strategy._alignment.schedule.make_scheduler is not None,
        "average_source": strategy._average_source,
        "bn_statistics": strategy.model.bn_statistics,
        "stable_update": strategy._average.update,
        "ema_decay": strategy._average.ema_decay,
        "plastic_classifier": strategy.plastic_classifier,
        "classifier_features": strategy.classifier_features,
        "eval_every": strategy.eval_every,
        "peval_mode": [p.peval_mode for p in strategy.plugins if isinstance(p, PeriodicEval)],
        "train_mb_size": strategy.train_mb_size,
        "train_epochs": strategy.train_epochs,
        "eval_mb_size": strategy.eval_mb_size,
        "plugins": [_options_of(plugin) for plugin in strategy.plugins],
        "metrics": [_options_of(metric) for metric in strategy.evaluator.metrics],
    }


def _gaussian_plugins(strategy: DLCPAStrategy) -> list[GaussianClassifierPlugin]:
    return [p for p in strategy.plugins if isinstance(p, GaussianClassifierPlugin)]


def _options_of(plugin: Any) -> list[Any]:
    """Class and options of a plugin or metric; of a user's own, which may hold times, its class."""
    is_own = type(plugin).__module__.startswith(("avalanche.", "avalanche_dlcpa."))
    return plain_options(plugin) if is_own else [type(plugin).__qualname__]


def _checksum_of_criterion(criterion: Any) -> str:
    """Of its tensors, such as weights of classes."""
    state = _state_of(criterion) or {}
    return checksum_of_tensors({k: v.cpu() for k, v in state.items() if isinstance(v, Tensor)})


def _users_parts(strategy: DLCPAStrategy) -> dict[str, Any]:
    """What may be of the user's own making, and may count or remember."""
    return {"ssl": strategy.ssl, "views": strategy.views, "criterion": strategy._criterion}


def _modules(strategy: DLCPAStrategy) -> dict[str, nn.Module]:
    """All that is computed with in training, but for what the package itself makes."""
    learners = {"plastic": strategy.model.plastic, "stable": strategy.model.stable}
    parts = learners | _users_parts(strategy)
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}


def _attributes_of(owner: Any, path: str, parts: frozenset[int]) -> dict[str, Any]:
    """Those beside ``state_dict`` that a checkpoint can hold, such as a counter or a tensor."""
    found = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if is_kept(name):
            with contextlib.suppress(NoPlainStateError):
                found[name] = capture(value, f"{path}.{name}", parts=parts)
    return found


def _state_of(value: Any) -> dict[str, Any] | None:
    return value.state_dict() if hasattr(value, "state_dict") else None
