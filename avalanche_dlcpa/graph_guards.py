"""When an iteration is no CUDA graph: who acts amid it, and what a replay would miss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation import PluginMetric
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from avalanche_dlcpa.arguments import is_plain, plain_options
from avalanche_dlcpa.layer_states import OF_ANY_MODULE
from avalanche_dlcpa.self_supervised import HEADS, SelfSupervisedHead

# Hooks and methods that Avalanche calls from the start of a forward pass on.
HOOKS_AMID = (
    "after_forward",
    "before_backward",
    "after_backward",
    "before_update",
    "after_update",
)
METHODS_AMID = (
    *("training_epoch", "forward", "criterion", "backward", "optimizer_step"),
    *(f"_{hook}" for hook in HOOKS_AMID),
    "_after_training_iteration",
)

_MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LAYER_OPTIONS = ("p", "momentum", "eps")  # numbers of dropout and batch norm that may be changed


def reason_against(strategy: Any, base: type, *, mixed: bool) -> str | None:
    """Who acts amid an iteration, where a graph has done nothing yet or is done with everything.

    Args:
        strategy: A `DLCPAStrategy`, about to train an epoch.
        base: The class whose methods it is expected to have.
        mixed: Whether mini-batches hold samples of several tasks, which compete task by task.

    Returns:
        Words for `avalanche_dlcpa.cuda_graph.report`; None: nobody.
    """
    if mixed:
        return "a plugin mixes in samples of other experiences"
    return (
        _about_head(strategy.ssl)
        or _about_plugins(strategy.plugins)
        or _about_optimizer(strategy.optimizer)
        or _about_methods(strategy, base)
        or _about_module_hooks(_parts(strategy))
    )


def _about_head(ssl: SelfSupervisedHead | None) -> str | None:
    if ssl is not None and type(ssl) not in HEADS.values():
        return f"{type(ssl).__name__} may count or draw on the host, unseen by a graph"
    if ssl is not None and ssl.waits_for_device:
        return f"the loss of {type(ssl).__name__} waits for the device"
    return None


def _about_plugins(plugins: Iterable[Any]) -> str | None:
    for plugin in plugins:
        actors: list[tuple[Any, type]] = [(plugin, SupervisedPlugin)]
        if isinstance(plugin, EvaluationPlugin):  # which calls all of these in its hooks
            actors = [(metric, PluginMetric) for metric in plugin.metrics]
            actors += [(listener, SupervisedPlugin) for listener in plugin.loggers]
        for actor, of_actor in actors:
            for hook in HOOKS_AMID:
                if _differs(actor, of_actor, hook):
                    return f"{type(actor).__name__} acts in `{hook}`"
    return None


def _about_optimizer(optimizer: Optimizer) -> str | None:
    if type(optimizer) is not SGD and not all(g.get("capturable") for g in optimizer.param_groups):
        return f"{type(optimizer).__name__} may count on the host: pass capturable=True if it can"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"a hook acts in each step of {type(optimizer).__name__}"
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return "a hook acts in each step of all optimizers"
    return None


def _about_methods(strategy: Any, base: type) -> str | None:
    for method in METHODS_AMID:
        if _differs(strategy, base, method):
            return f"{type(strategy).__name__} has a `{method}` of its own"
    return None


def _about_module_hooks(parts: Iterable[nn.Module]) -> str | None:
    if any(getattr(nn.modules.module, f"_global{hooks}") for hooks in _MODULE_HOOKS):
        return "a hook acts in each pass through all modules"
    for part in parts:
        for name, module in part.named_modules():
            if any(getattr(module, hooks) for hooks in _MODULE_HOOKS):
                return f"a hook acts in each pass through '{name}'"
        for name, parameter in part.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"a hook acts on each gradient of '{name}'"
    return None


def _parts(strategy: Any) -> list[nn.Module]:
    parts = (strategy.model, strategy.ssl, strategy._criterion)
    return [part for part in parts if isinstance(part, nn.Module)]


def _objects(strategy: Any) -> list[Any]:
    """All layers, and a criterion that is none."""
    layers: list[Any] = [layer for part in _parts(strategy) for layer in part.modules()]
    criterion = strategy._criterion
    return layers if isinstance(criterion, nn.Module) else [*layers, criterion]


def _differs(instance: Any, base: type, method: str) -> bool:
    expected = getattr(base, method)
    own = getattr(instance, method, expected)  # of its class, or set on the instance alone
    return getattr(own, "__func__", own) is not expected


def what_stays(strategy: Any, *optimizers: Optimizer) -> Callable[[], list[Any]]:
    """What a graph of an iteration holds fixed, as a function to be asked in each iteration.

    Args:
        strategy: A `DLCPAStrategy`.
        optimizers: Others that make a step.
    """
    parts = _parts(strategy)
    modules = [module for part in parts for module in part.modules()]
    parameters = [parameter for part in parts for parameter in part.parameters()]
    options = [(m, name) for m in modules for name in _LAYER_OPTIONS if hasattr(m, name)]
    of_users = [
        one for one in _objects(strategy) if not type(one).__module__.startswith("torch.nn.")
    ]

    def fixed() -> list[Any]:
        groups = [group for o in (strategy.optimizer, *optimizers) for group in o.param_groups]
        return [
            strategy.supervised_weight,
            strategy.precision,
            strategy.classifier_features,
            strategy.model.classifiers.num_outputs,
            *map(plain_options, (strategy.ssl, strategy.views, strategy._criterion)),
            *(_number(v) for group in groups for name, v in group.items() if name != "params"),
            *(len(group["params"]) for group in groups),
            *(parameter.requires_grad for parameter in parameters),
            *(module.training for module in modules),
            *(getattr(module, name) for module, name in options),
            *(_place(tensor) for tensor in (*parameters, *_states(strategy))),
            # looked up anew, as some put another tensor in the place of a buffer
            *(_place(buffer) for m in modules for buffer in m._buffers.values()),
            *map(_kept_by, of_users),
        ]

    return fixed


def on_host(strategy: Any) -> Callable[[], list[Any]]:
    """What an iteration may change on the host, where no replay would, as a function to be asked.

    States of random generators, the global ones and those that model, head and criterion hold,
    their plain attributes, and how often their tensors on the host were written to.

    Args:
        strategy: A `DLCPAStrategy`.
    """
    objects = _objects(strategy)

    def state() -> list[Any]:
        found = [random.getstate(), *(np.asarray(part).tobytes() for part in np.random.get_state())]
        if strategy.device.type != "cpu":  # whose own generator it is
            found.append(torch.get_rng_state().numpy().tobytes())
        held = [vars(one) for one in objects if hasattr(one, "__dict__")]
        values = [value for attributes in held for value in attributes.values()]
        found += [value.get_state().numpy().tobytes() for value in values if _is_of_host(value)]
        if strategy.device.type != "cpu":
            found.append([value._version for value in values if _counts_writes_on_host(value)])
        plain = [
            {name: value for name, value in attributes.items() if is_plain(value)}
            for attributes in held
        ]
        return [*found, *plain]

    return state


def _is_of_host(value: Any) -> bool:
    """Whether it is a generator of torch's whose numbers no graph would draw."""
    return isinstance(value, torch.Generator) and value.device.type == "cpu"


def _counts_writes_on_host(value: Any) -> bool:
    is_on_host = isinstance(value, Tensor) and value.device.type == "cpu"
    return is_on_host and not value.is_inference()


def _kept_by(owner: Any) -> dict[str, Any]:
    """Numbers and words that an object of a user's class keeps, and where its tensors lie."""
    return {
        name: _place(value) if isinstance(value, Tensor) else value
        for name, value in getattr(owner, "__dict__", {}).items()
        if name not in OF_ANY_MODULE and (isinstance(value, Tensor) or is_plain(value))
    }


def _place(tensor: Tensor | None) -> int | None:
    """Where a tensor lies; one that is sparse, in several pieces, is known by itself."""
    if tensor is None:
        return None
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)


def _states(strategy: Any) -> list[Tensor]:
    values = (value for state in strategy.optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor)]


def _number(value: Any) -> Any:
    """What tells that an option of an optimizer has changed, also in place, as schedulers do.

    A tensor on the CPU goes into a graph as a number, one on the device as the place it lies at.
    """
    if not isinstance(value, Tensor):
        return value
    return value.tolist() if value.device.type == "cpu" else value.data_ptr()
