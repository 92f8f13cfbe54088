"""Taking a user's classifier apart: the feature extractor, and its head, the last linear layer."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
import torch.nn.functional as F
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from torch import Tensor, nn

from avalanche_dlcpa.random_states import preserved_random_states

HEAD_NAMES = ("fc", "linear", "classifier", "head", "heads", "last_linear", "output", "logits")

Head = nn.Linear | IncrementalClassifier | MultiHeadClassifier
_AVALANCHE_HEADS = (IncrementalClassifier, MultiHeadClassifier)


@dataclasses.dataclass(frozen=True)
class HeadStart:
    """Where the classifiers start: the rows that the given head already has.

    Attributes:
        weights: For each task label, or None for every task, a weight (K, D) whose row k belongs to
            class k.
        biases: The same for the biases (K,), None where the head has none.
    """

    weights: dict[int | None, Tensor]
    biases: dict[int | None, Tensor | None]

    @property
    def in_features(self) -> int:
        """D, the length of a feature vector."""
        return next(iter(self.weights.values())).shape[1]

    @property
    def has_bias(self) -> bool:
        """Whether the classifiers have a bias."""
        return next(iter(self.biases.values())) is not None

    @torch.no_grad()
    def linear(self, task_label: int, classes: list[int]) -> nn.Linear:
        """A linear layer for the given classes of a task.

        Rows that the given head had are taken over, the others are torch's own initialisation.
        """
        key = task_label if task_label in self.weights else None
        weight, bias = self.weights.get(key), self.biases.get(key)
        like = next(iter(self.weights.values()))
        layer = nn.Linear(self.in_features, len(classes), bias=self.has_bias, dtype=like.dtype)
        for row, label in enumerate(classes):
            if weight is not None and label < len(weight):
                layer.weight[row] = weight[label]
                if bias is not None:
                    layer.bias[row] = bias[label]
        return layer


class _FeatureTap(nn.Module):
    """Stands where the head stood and hands the features on; a task label may come with them."""

    def forward(self, features: Tensor, task_labels: object = None) -> Tensor:
        return features

    def __getattr__(self, name: str) -> Any:
        """Say what is missing, as an AttributeError, so that hasattr goes on working."""
        if name.startswith("_"):
            return super().__getattr__(name)
        raise AttributeError(
            "Expected `model` to call its head as a layer, such as self.fc(features), got one that "
            f"looks up its '{name}', which is not there in a feature extractor: call the head, on "
            "F.normalize(features) for example, or name another `head`."
        )


class _WithoutTaskLabels(nn.Module):
    """A multi-task model whose heads are gone, called without task labels."""

    def __init__(self, network: MultiTaskModule):
        super().__init__()
        network._auto_adapt = False  # it has no head left that could grow
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, 0)


class _LinearForAnyTask(nn.Linear):
    """A linear layer where a multi-task model calls its head with task labels."""

    def forward(self, features: Tensor, task_labels: object = None) -> Tensor:
        return super().forward(features)


def linear_of(head: nn.Module) -> nn.Linear:
    """The linear layer that a head is, or that an `IncrementalClassifier` holds."""
    return cast(nn.Linear, head.classifier if isinstance(head, IncrementalClassifier) else head)


def detach_head(model: nn.Module, name: str | None = None) -> tuple[nn.Module, HeadStart]:
    """Take the head out of a classifier, in place.

    Args:
        model: Any classifier.
        name: Name of its last linear layer; None: see `find_head`.

    Returns:
        The feature extractor, (B, ...) -> (B, D), whose parameters are the very ones of the model,
        and the start of the classifiers.

    Raises:
        ValueError: See `find_head`.
    """
    name = find_head(model, name)
    head = model.get_submodule(name)
    start = _head_start(head)
    parent_name, _, child_name = name.rpartition(".")
    model.get_submodule(parent_name).register_module(child_name, _FeatureTap())
    if isinstance(model, MultiTaskModule):
        return _WithoutTaskLabels(model), start
    return model, start


def attach_head(features: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    """Put a linear layer where the head stood in a feature extractor of `detach_head`, in place.

    Args:
        features: Maps (B, ...) to (B, D), and to logits (B, K) after this.
        weight: Of the layer, (K, D), copied.
        bias: Of the layer, (K,), copied; None for a layer without.
    """
    layer = nn.utils.skip_init(
        _LinearForAnyTask if isinstance(features, _WithoutTaskLabels) else nn.Linear,
        weight.shape[1],
        weight.shape[0],
        bias=bias is not None,
        dtype=weight.dtype,
        device=weight.device,
    )
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    parent_name, _, child_name = name_of_head(features).rpartition(".")
    model_of(features).get_submodule(parent_name).register_module(child_name, layer)


def tap_of(features: nn.Module) -> nn.Module:
    """What stands where the head stood, in what `detach_head` made of a model."""
    return model_of(features).get_submodule(name_of_head(features))


def model_of(features: nn.Module) -> nn.Module:
    """The user's model in what `detach_head` made of it."""
    return features.network if isinstance(features, _WithoutTaskLabels) else features


def name_of_head(features: nn.Module) -> str:
    """Name that the head had in the user's model, in what `detach_head` made of it."""
    taps = [n for n, part in model_of(features).named_modules() if isinstance(part, _FeatureTap)]
    return taps[0]


def find_head(model: nn.Module, name: str | None = None) -> str:
    """Name of the last linear layer of a classifier.

    In this order: the given name; the only `IncrementalClassifier` or `MultiHeadClassifier`; the
    last ``nn.Linear`` in the only child with a name of `HEAD_NAMES`, unless a later one takes as
    many features as that gives; the last ``nn.Linear`` of all.

    Raises:
        ValueError: There is none, there are several, or the given name is no linear layer.

    Example:
        >>> find_head(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        '3'
    """
    if any(isinstance(module, _FeatureTap) for module in model.modules()):
        raise ValueError(
            "Expected a `model` with its head, got one that has been taken apart already: pass a "
            "fresh one, or the DualLearner that it became part of."
        )
    if name is not None:
        return _named_head(model, name)
    growing = _outermost(model, _AVALANCHE_HEADS)
    if growing:
        return _only(growing)
    named = [n for n, child in model.named_children() if n in HEAD_NAMES and _linears(child)]
    if named:
        child_name = _only(named)
        last = _linears(model.get_submodule(child_name))[-1]
        head = f"{child_name}.{last}" if last else child_name
        return _only([head, *_fed_by(model, head)])
    linears = _linears(model)
    if not linears or linears == [""]:
        raise ValueError(
            f"Expected `model` to end in a linear layer, got {type(model).__name__} with none "
            "below it: add an nn.Linear after its features."
        )
    return _only(_twins_of_last(model, linears))


def expect_plain(model: nn.Module, name: str) -> None:
    """Refuse a head that is no plain linear layer, such as a cosine or a weight-normed one.

    Whoever computes with its weights alone, or puts plain classifiers in its place, would learn
    something else.

    Args:
        model: Any classifier.
        name: Name of its head, see `find_head`.

    Raises:
        ValueError: A linear layer in it answers otherwise than by its weight and bias, or computes
            its weight from other parameters.
    """
    for layer in model.get_submodule(name).modules():
        if not isinstance(layer, nn.Linear):
            continue
        own = dict(layer.named_parameters(recurse=False))
        if "weight" not in own:  # torch's weight norm, spectral norm or pruning
            raise ValueError(
                f"Expected the head '{name}' to be a plain linear layer, got a weight computed "
                "from other parameters, as weight norm and pruning do, which would be left out: "
                "take that off the head first, or name another `head`."
            )
        if not _is_plain(layer):
            raise ValueError(
                f"Expected the head '{name}' to be a plain linear layer, got "
                f"{type(layer).__name__} with a forward of its own, which would be left out: end "
                "in an nn.Linear, on F.normalize(features) for example, or name another `head`."
            )


def _is_plain(layer: nn.Linear) -> bool:
    if type(layer).forward is nn.Linear.forward:
        return True
    weight = layer.weight
    x = torch.linspace(-1, 2, layer.in_features, dtype=weight.dtype, device=weight.device)[None]
    with preserved_random_states(weight.device), torch.no_grad():
        try:
            answer = layer(x)
        except TypeError:  # it wants more than features, such as labels for a margin
            return False
        return isinstance(answer, Tensor) and torch.equal(answer, F.linear(x, weight, layer.bias))


def _named_head(model: nn.Module, name: str) -> str:
    modules = dict(model.named_modules())
    if not isinstance(modules.get(name), Head):
        known = [n for n, m in modules.items() if n and isinstance(m, Head)]
        raise ValueError(f"Expected `head` to name a linear layer of {known}, got '{name}'.")
    return name


def _only(candidates: list[str]) -> str:
    if len(candidates) > 1:
        raise ValueError(
            f"Expected one last linear layer in `model`, got the candidates {candidates}: "
            f"name it, such as head='{candidates[-1]}'."
        )
    return candidates[0]


def _outermost(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[str]:
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and isinstance(module, kinds) and not inside:
            found.append(name)
    return found


def _linears(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def _fed_by(model: nn.Module, head: str) -> list[str]:
    """The last linear layer, where one after a named head takes as many features as it gives."""
    every = model.named_modules(remove_duplicate=False)  # the head may have a second name
    linears = [name for name, module in every if isinstance(module, nn.Linear)]
    later = [model.get_submodule(name) for name in linears[linears.index(head) + 1 :]]
    own = model.get_submodule(head)
    takes_its = [layer for layer in later if layer.in_features == own.out_features]
    # A layer that gives what the head takes may as well come before it.
    is_hidden = any(layer.out_features != own.in_features for layer in takes_its)
    return linears[-1:] if is_hidden else []


def _twins_of_last(model: nn.Module, linears: list[str]) -> list[str]:
    """The last linear layer, and those of its shape beside it where no order tells the last."""
    parent_name = linears[-1].rpartition(".")[0]
    if isinstance(model.get_submodule(parent_name), nn.Sequential):
        return linears[-1:]
    last = model.get_submodule(linears[-1])
    return [
        name
        for name in linears
        if name.rpartition(".")[0] == parent_name
        and model.get_submodule(name).weight.shape == last.weight.shape
    ]


def _head_start(head: nn.Module) -> HeadStart:
    layers: dict[int | None, nn.Linear]
    if isinstance(head, MultiHeadClassifier):
        layers = {int(task): linear_of(part) for task, part in head.classifiers.items()}
    else:
        layers = {None: linear_of(head)}
    return HeadStart(
        weights={task: layer.weight.detach().clone() for task, layer in layers.items()},
        biases={
            task: None if layer.bias is None else layer.bias.detach().clone()
            for task, layer in layers.items()
        },
    )
