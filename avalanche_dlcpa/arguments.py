"""Checks of what users pass: each names the value and the way out.

A value that does not fit raises a ValueError, and what is no such thing at all a TypeError.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avalanche_dlcpa.precision import PRECISIONS

if TYPE_CHECKING:
    from avalanche_dlcpa.self_supervised import SelfSupervisedHead


def plain_options(value: Any) -> list[Any]:
    """Class of an object, and its public attributes that are numbers, words or tuples of these.

    Example:
        >>> from torch.nn import ReLU
        >>> plain_options(ReLU(inplace=True))
        ['ReLU', {'training': True, 'inplace': True}]
    """
    options = {
        name: option
        for name, option in map(_without_numpy, getattr(value, "__dict__", {}).items())
        if not name.startswith("_") and is_plain(option)
    }
    return [getattr(value, "__qualname__", type(value).__qualname__), options]


def _without_numpy(attribute: tuple[str, Any]) -> tuple[str, Any]:
    name, option = attribute
    return name, option.item() if isinstance(option, np.generic) else option


def is_plain(option: Any) -> bool:
    """Whether something is a number, a word or a tuple of these."""
    parts = option if type(option) is tuple else (option,)
    return all(type(part) in (bool, int, float, str) for part in parts)


def expect_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is none of the choices."""
    if value not in choices:
        raise ValueError(f"Expected `{name}` to be one of {', '.join(choices)}, got '{value}'.")


def expect_weight(name: str, weight: Any) -> None:
    """Refuse a weight of a loss that is negative, not finite or no number."""
    if not isinstance(weight, numbers.Real) or not 0 <= float(weight) < math.inf:
        raise ValueError(f"Expected `{name}` to be a finite number of at least 0, got {weight}.")


def expect_rate(name: str, lr: Any) -> None:
    """Refuse a learning rate, or a temperature, that is not finite and above 0."""
    if not isinstance(lr, numbers.Real) or not 0 < float(lr) < math.inf:
        raise ValueError(f"Expected {name} to be finite and above 0, got {lr}.")


def expect_momentum(momentum: Any) -> None:
    """Refuse a momentum with which a momentum encoder would run away from what it follows."""
    if not isinstance(momentum, numbers.Real) or not 0 <= float(momentum) <= 1:
        raise ValueError(f"Expected `momentum` to be at least 0 and at most 1, got {momentum!r}.")


def expect_decay(ema_decay: Any) -> None:
    """Refuse a decay with which an exponential average would stand still, or run away."""
    if not isinstance(ema_decay, numbers.Real) or not 0 <= float(ema_decay) < 1:
        raise ValueError(f"Expected `ema_decay` to be at least 0 and below 1, got {ema_decay!r}.")


def expect_prior(prior: Any, name: str) -> None:
    """Refuse a prior with which a covariance of few features could not be inverted."""
    if not isinstance(prior, numbers.Real) or not float(prior) > 0:
        raise ValueError(f"Expected `{name}` to be above 0, got {prior}.")


def expect_bytes(image_cache_bytes: Any) -> None:
    """Refuse a bound of memory that is negative or no number."""
    if not isinstance(image_cache_bytes, numbers.Real) or not float(image_cache_bytes) >= 0:
        raise ValueError(
            f"Expected `image_cache_bytes` to be a number of at least 0, got {image_cache_bytes!r}:"
            " 0 for Avalanche's own loader."
        )


def expect_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer."""
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
        raise TypeError(
            f"Expected `optimizer` to be one of torch.optim, got {type(optimizer).__name__}: pass "
            "SGD(model.parameters(), lr=0.005)."
        )


def expect_epochs(train_epochs: Any) -> None:
    """Refuse to count a task in the average that was never trained."""
    if not isinstance(train_epochs, numbers.Integral) or int(train_epochs) < 1:
        raise ValueError(f"Expected `train_epochs` to be at least 1, got {train_epochs!r}.")


def expect_values(model: nn.Module) -> None:
    """Refuse parameters that have no values yet."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            where, how = "a lazy layer", "call it on a mini-batch"
        elif parameter.is_meta:
            where, how = "the meta device", "build it on a real one"
        else:
            continue
        raise ValueError(
            f"Expected parameters with values, got '{name}' of {where}: {how} first, then make "
            "the optimizer."
        )


def expect_averageable(model: nn.Module) -> None:
    """Refuse parameters whose mean is none of their kind."""
    for name, parameter in model.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise ValueError(
                "Expected parameters that can be averaged, got "
                f"'{name}' of {parameter.dtype}: register it as a buffer."
            )


def expect_evaluator(evaluator: Any) -> None:
    """Refuse metrics that are in no plugin, before an experience has been trained without them."""
    if not (evaluator is None or hasattr(evaluator, "get_last_metrics") or callable(evaluator)):
        raise TypeError(
            f"Expected `evaluator` to be an EvaluationPlugin, got {type(evaluator).__name__}: pass "
            "EvaluationPlugin(*metrics)."
        )


def expect_criterion(criterion: Any) -> None:
    """Refuse a criterion that answers no scalar, or weighs classes by their columns."""
    if not callable(criterion) or isinstance(criterion, type):
        got = repr(criterion) if criterion is None else getattr(criterion, "__name__", criterion)
        raise TypeError(
            f"Expected `criterion` to be a function of logits and labels, got {got}: pass "
            "torch.nn.CrossEntropyLoss()."
        )
    if getattr(criterion, "ignore_index", -1) >= 0:
        raise ValueError(
            f"Expected a criterion that ignores no class, got ignore_index={criterion.ignore_index}"
            ": in training it would be a column of each experience, not a label. Leave "
            "`ignore_index` out, and the samples out of the stream."
        )
    if getattr(criterion, "reduction", "mean") == "none":
        raise ValueError("Expected a criterion that answers a scalar, got reduction='none'.")
    weight = getattr(criterion, "weight", None)
    if isinstance(weight, Tensor) and weight.numel() > 1:  # else it is no weight of classes
        raise ValueError(
            f"Expected a criterion without a weight for each class, got one of {len(weight)}: in "
            "training it sees the logits of an experience's classes alone, at evaluation those of "
            "all. Leave `weight` out."
        )


def expect_batch_size(size: int, ssl: SelfSupervisedHead | None, needs_two: bool) -> None:
    """Refuse a mini-batch too small for a contrastive loss or batch norm, or above the queue."""
    if not isinstance(size, numbers.Integral) or size < 1:
        raise ValueError(
            f"Expected `train_mb_size` to be a whole number of at least 1, got {size!r}."
        )
    if needs_two and size < 2:
        raise ValueError(
            "Expected `train_mb_size` to be at least 2 with a self-supervised loss or batch norm, "
            f"got {size}."
        )
    expect_queue(ssl, size)


def expect_eval_batch_size(size: Any) -> None:
    """Refuse mini-batches of no sample at evaluation."""
    if size is not None and (not isinstance(size, numbers.Integral) or int(size) < 1):
        raise ValueError(
            f"Expected `eval_mb_size` to be at least 1, got {size!r}: None for that of training."
        )


def expect_precision(precision: str, model: nn.Module) -> None:
    """Refuse a precision that there is not, or that torch would pass over without a word."""
    expect_choice("precision", precision, PRECISIONS)
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    if precision != "float32" and is_double:
        raise ValueError(
            f"Expected a model in float32 for precision='{precision}', got parameters in float64, "
            "which torch's autocast leaves as they are: call model.float()."
        )


def expect_queue(ssl: SelfSupervisedHead | None, batch_size: int) -> None:
    """Refuse a queue that a mini-batch would overflow."""
    queue_size = getattr(ssl, "queue_size", batch_size)
    if queue_size < batch_size:
        raise ValueError(
            f"Expected the head's `queue_size` to be at least the mini-batch size {batch_size}, "
            f"got {queue_size}: pass a head with a longer queue, or take smaller mini-batches, to "
            "which a replay plugin adds its samples."
        )


def expect_average_source(average_source: str, ssl: SelfSupervisedHead | None) -> None:
    """Refuse to average a momentum encoder that the head does not have."""
    expect_choice("average_source", average_source, ("plastic", "momentum"))
    if average_source == "momentum" and not (ssl is not None and ssl.has_momentum_encoder):
        raise ValueError(
            "Expected a head with a momentum encoder for average_source='momentum', such as "
            f"ssl='mocov2' or 'byol', got {type(ssl).__name__}: use average_source='plastic'."
        )
