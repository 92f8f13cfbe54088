"""Bringing an exported stable learner back: to predict with it, or to go on learning from it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.files import first_line
from avalanche_dlcpa.gaussian_plugin import GaussianClassifierPlugin
from avalanche_dlcpa.model_copy import copy_of
from avalanche_dlcpa.model_head import attach_head, detach_head, model_of
from avalanche_dlcpa.stable_file import StableInfo, Tensors, read_stable
from avalanche_dlcpa.stable_model import WRONG_INPUT, is_same_answer, probe


def load_stable(path: str | os.PathLike[str], model: nn.Module) -> tuple[nn.Module, StableInfo]:
    """Load a file of `DualLearner.export` into a copy of a network.

    Modules with a `_version` take the tensors for those of their present version.

    Args:
        path: The file. Loading runs no code from it.
        model: Built as the one that was trained, with any weights and any number of classes; it
            stays as it is.

    Returns:
        The network in evaluation mode, (B, ...) -> logits (B, K), and what its columns are: class
        labels, names and tasks. Task-IL is ``logits[:, info.columns(task)]``.

    Raises:
        ValueError: A damaged file, one of another kind or format, or another network: names or
            shapes differ, or it answers otherwise with the same weights.
        OSError: There is no such file, or it cannot be read.

    Example::

        network, info = load_stable("model.safetensors", resnet18(num_classes=10))
        names = [info.names[column] for column in network(images).argmax(dim=1)]
    """
    tensors, info = read_stable(path)
    try:
        loaded, start = detach_head(copy_of(model), info.head)
    except ValueError as error:
        raise ValueError(
            f"Expected `model` to be a {info.architecture} with the last linear layer "
            f"'{info.head}', as in '{path}', got a {type(model).__name__}. {first_line(error)}"
            f"{_wrapping(info.head)}"
        ) from error
    like, num_classes = next(iter(start.weights.values())), len(info.labels)
    has_bias = start.has_bias or info.kind == "gaussian"  # which always has one
    bias = like.new_empty(num_classes) if has_bias else None
    attach_head(loaded, like.new_empty(num_classes, start.in_features), bias)
    whose = f"'{path}' was exported from ({info.architecture})"
    _expect_same(loaded, tensors, whose)
    _load_(loaded, tensors)
    loaded.eval()
    if info.image_shape is not None:
        _expect_same_answer(loaded, info, whose)
    return loaded, info


def _wrapping(head: str) -> str:
    """What the name of a head tells of what the network was wrapped in."""
    known = {"_orig_mod.": "torch.compile", "module.": "torch.nn.DataParallel"}
    found = [wrapper for prefix, wrapper in known.items() if head.startswith(prefix)]
    return "".join(f" It was trained in {w}: pass {w}(model)." for w in found)


def expect_trained(info: StableInfo, arguments: dict[str, Any]) -> None:
    """Refuse to go on learning with a Gaussian classifier, whose statistics are in no file."""
    plugins = arguments.get("plugins") or ()
    if info.kind == "gaussian":
        raise ValueError(
            "Expected a file with the trained classifiers to go on from, got a Gaussian one: set "
            "`strategy.model.gaussian = None` before the export."
        )
    if arguments.get("classifier") == "gaussian" or any(
        isinstance(plugin, GaussianClassifierPlugin) for plugin in plugins
    ):
        raise ValueError(
            "Expected trained classifiers in a strategy that goes on from a file, got a Gaussian "
            "one, which would not know the old classes: their statistics are not in the file. "
            "`resume` keeps them."
        )


def load_features_(model: nn.Module, loaded: nn.Module, head: str) -> None:
    """Give a network the weights of a loaded one, all but those of its head, in place."""
    state = model_of(loaded).state_dict()
    body = {name: tensor for name, tensor in state.items() if not name.startswith(f"{head}.")}
    _load_(model, body)  # `load_stable` has compared all names


def _load_(model: nn.Module, tensors: Tensors) -> None:
    """Load tensors of names that a model has, as those of its present code.

    Its own state tells the versions of its modules, without which some take any state for an old
    one, and migrate it or give up.
    """
    state = model.state_dict()
    state.update(tensors)
    model.load_state_dict(state)


def load_classifiers_(dual: DualLearner, loaded: nn.Module, info: StableInfo) -> None:
    """Give a dual learner the classifiers of a loaded network, and its number of experiences."""
    layer = model_of(loaded).get_submodule(info.head)
    state, keys = {}, []
    for number in sorted(set(info.classifiers)):
        columns = [c for c, its_number in enumerate(info.classifiers) if its_number == number]
        keys += [(info.task_labels[column], info.labels[column]) for column in columns]
        for name, parameter in layer.named_parameters():
            state[f"layers.{number}.{name}"] = parameter.detach()[columns]
    dual.classifiers.load_state_dict({**state, "keys": torch.tensor(keys)})
    dual.num_averaged.fill_(info.num_averaged)


def _expect_same(model: nn.Module, tensors: Tensors, whose: str) -> None:
    """Refuse a network whose tensors have other names, shapes or types."""
    own, saved = (
        {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in state.items()}
        for state in (model.state_dict(), tensors)
    )
    different = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
    if different:
        name = different[0]
        raise ValueError(
            f"Expected `model` to be built as the one that {whose}, got one whose '{name}' is "
            f"{own.get(name, 'absent')}, where the file has {saved.get(name, 'none')} "
            f"({len(different)} tensors differ): build it with the same arguments."
        )


def _expect_same_answer(model: nn.Module, info: StableInfo, whose: str) -> None:
    """Refuse a network that with the same weights computes something else."""
    assert info.image_shape is not None
    try:
        found = probe(model, info.image_shape)
    except WRONG_INPUT as error:
        raise ValueError(
            f"Expected `model` to be built as the one that {whose}, got one that takes no input of "
            f"shape {info.image_shape} ({first_line(error)})."
        ) from error
    expected = torch.tensor(info.probe, dtype=torch.float64)
    if not is_same_answer(found, expected, model):
        raise ValueError(
            f"Expected `model` to be built as the one that {whose}, got one with the same tensors "
            "that answers otherwise: build it with the same arguments and version of its code."
        )
