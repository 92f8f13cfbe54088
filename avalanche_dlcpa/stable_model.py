"""Taking the stable learner away: the user's own network, with all classifiers as its last layer.

Source: the paper's Eq. 5; classifiers side by side are one linear layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from avalanche_dlcpa.divergence import all_finite
from avalanche_dlcpa.files import first_line
from avalanche_dlcpa.model_head import attach_head, model_of, name_of_head
from avalanche_dlcpa.random_states import preserved_random_states
from avalanche_dlcpa.stable_file import StableInfo, Tensors
from avalanche_dlcpa.task_classifiers import TaskClassifiers, side_by_side

if TYPE_CHECKING:
    from avalanche_dlcpa.dual_learner import DualLearner

ClassNames = Sequence[str] | Mapping[tuple[int, int], str]
Normalization = tuple[Sequence[float], Sequence[float]]

WRONG_INPUT = (RuntimeError, ValueError, IndexError, AssertionError)  # what networks answer it with
PROBE_TOLERANCE = 1e-3  # of the largest logit; processors and libraries differ by far less
NARROW_PROBE_TOLERANCE = 2e-2  # the same for parameters of less than 32 bits


def plain_model(dual: DualLearner) -> nn.Module:
    """The network (B, ...) -> (B, K) that stable learner and classifiers are together, a copy."""
    answering = _answering(dual)
    order, dtype = _order(answering), dual.classifiers.linears[0].weight.dtype
    weight, bias = side_by_side(answering.linears)
    model = copy.deepcopy(dual.stable)
    attach_head(model, weight[order].to(dtype), None if bias is None else bias[order].to(dtype))
    return model.requires_grad_(False).eval()


def tensors_of(model: nn.Module) -> Tensors:
    """The state of a model on the CPU, each tensor with memory of its own.

    Raises:
        ValueError: It holds anything but tensors.
    """
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"Expected the model's state_dict to hold tensors alone, got '{name}' of type "
                f"{type(value).__name__}: safetensors has no place for a module's extra state."
            )
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def describe(
    dual: DualLearner,
    model: nn.Module,
    *,
    class_names: ClassNames | None,
    image_shape: Sequence[int] | None,
    normalization: Normalization | None,
) -> StableInfo:
    """What the file says of a `plain_model`; see `DualLearner.export`."""
    answering, trained = _answering(dual), dual.classifiers
    keys = [answering.keys[column] for column in _order(answering)]
    number_of = dict(zip(trained.keys, trained.numbers, strict=True))
    # a Gaussian classifier knows nothing of an experience that was broken off
    numbers = sorted({number_of[key] for key in keys})
    shape = None if image_shape is None else tuple(int(size) for size in image_shape)
    return StableInfo(
        labels=tuple(label for _, label in keys),
        names=_names(keys, class_names),
        task_labels=tuple(task for task, _ in keys),
        classifiers=tuple(numbers.index(number_of[key]) for key in keys),
        kind="linear" if answering is trained else "gaussian",
        num_averaged=int(dual.num_averaged),
        architecture=type(model_of(dual.stable)).__name__,
        head=name_of_head(dual.stable),
        image_shape=shape,
        normalization=None if normalization is None else _constants(normalization),
        probe=None if shape is None else _probed(model, shape),
    )


def _answering(dual: DualLearner) -> TaskClassifiers:
    """What answers in evaluation mode."""
    return dual.classifiers if dual.gaussian is None else dual.gaussian


def _order(classifiers: TaskClassifiers) -> list[int]:
    """Columns in the order of class labels, and of task labels where these restart."""
    keys = classifiers.keys
    return sorted(range(len(keys)), key=lambda column: keys[column][::-1])


def _names(keys: list[tuple[int, int]], class_names: ClassNames | None) -> tuple[str, ...]:
    if class_names is None:
        return tuple(str(label) for _, label in keys)
    if not isinstance(class_names, Mapping):
        if len({label for _, label in keys}) < len(keys):
            raise ValueError(
                "Expected `class_names` to be a dict by (task label, class label), since class "
                f"labels restart in each task, got a {type(class_names).__name__}."
            )
        num_names = len(class_names)
        class_names = {key: class_names[key[1]] for key in keys if key[1] < num_names}
    missing = [key for key in keys if key not in class_names]
    if missing:
        task, label = missing[0]
        raise ValueError(
            "Expected `class_names` to have a name for each class that was learned, got none for "
            f"class label {label} of task label {task}."
        )
    return tuple(str(class_names[key]) for key in keys)


def _constants(normalization: Normalization) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, deviation = (tuple(float(value) for value in part) for part in normalization)
    if len(mean) != len(deviation):
        raise ValueError(
            "Expected `normalization` to be a mean and a deviation for each channel, got "
            f"{len(mean)} means and {len(deviation)} deviations."
        )
    return mean, deviation


@torch.no_grad()
def probe(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Logits (K,) of the same input in every process, always computed on the CPU."""
    model = copy.deepcopy(model).cpu()  # GPUs round in ways of their own, such as TF32
    x = torch.arange(math.prod(shape), dtype=torch.float64).sin().reshape(1, *shape)
    return model(x.to(next(model.parameters()).dtype))[0].double()


def _probed(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, ...]:
    """The answer that whoever loads the file compares with."""
    try:
        with preserved_random_states(torch.device("cpu")):
            answer, again = probe(model, shape), probe(model, shape)
    except WRONG_INPUT as error:
        raise ValueError(
            f"Expected `image_shape` to be the shape of one input, got {shape}, which the model "
            f"does not take ({first_line(error)})."
        ) from error
    if not all_finite([answer]):
        raise ValueError(
            "Expected `image_shape` with a model that answers a fixed input in [-1, 1] with finite "
            "logits, got NaN or infinity: leave `image_shape` out, or have the model take it."
        )
    if not is_same_answer(again, answer, model):
        raise ValueError(
            "Expected `image_shape` with a model that answers the same input twice in the same "
            "way, got one that draws in evaluation mode: leave `image_shape` out, or have it draw "
            "in training alone."
        )
    return tuple(answer.tolist())


def is_same_answer(found: Tensor, expected: Tensor, model: nn.Module) -> bool:
    """Whether two answers (K,) of `probe` are the same, but for what processors round."""
    is_narrow = torch.finfo(next(model.parameters()).dtype).bits < 32
    tolerance = NARROW_PROBE_TOLERANCE if is_narrow else PROBE_TOLERANCE
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())
