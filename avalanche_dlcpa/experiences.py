"""What an experience of any Avalanche stream tells about itself.

Avalanche's classic and new-style streams name classes and tasks differently, or not at all
(lists, sets, missing attributes); everything else in the package asks here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from avalanche_dlcpa.random_states import preserved_random_states

_TASK_LABELS = "targets_task_labels"  # of a dataset, whose samples then end with one
NUM_LOOKED_AT = 64  # samples from which the range of pixels is guessed
MOST_LABEL = 999_999  # answers have a column for each label up to the largest


def classes_of(experience: Any) -> list[int]:
    """The class labels of an experience, sorted.

    Raises:
        ValueError: The experience holds no samples, or does not tell its classes, or its labels are
            no whole numbers from 0 to 999,999.
    """
    if len(experience.dataset) == 0:
        raise ValueError(
            f"Expected experience {experience.current_experience} to hold samples, got none: "
            "leave empty experiences out of the stream."
        )
    classes = getattr(experience, "classes_in_this_experience", None)
    if classes is None:
        targets = getattr(experience.dataset, "targets", None)
        if targets is None:
            raise ValueError(
                "Expected the experience to have `classes_in_this_experience` or a dataset with "
                "`targets`, got neither: build the stream with as_classification_dataset(...)."
            )
        classes = getattr(targets, "uniques", None) or set(targets)
    return sorted({_checked_label(label) for label in classes})


def _checked_label(label: Any) -> int:
    try:
        number = operator.index(label)
    except TypeError:
        number = -1
    if not 0 <= number <= MOST_LABEL:
        raise ValueError(
            f"Expected class labels to be whole numbers from 0 to {MOST_LABEL}, got {label!r}: "
            "number the classes from 0 on."
        )
    return number


def task_label_of(experience: Any) -> int:
    """The task label of an experience, 0 where the stream has none.

    Raises:
        ValueError: Several task labels in one experience, or a negative one.
    """
    labels = task_labels_of(experience)
    if len(labels) != 1:
        raise ValueError(
            f"Expected one task label in an experience, got {labels}: DLCPA trains one "
            "classifier a task, so give each task an experience of its own."
        )
    if labels[0] < 0:
        raise ValueError(f"Expected task labels to be at least 0, got {labels[0]}.")
    return labels[0]


def task_labels_of(experience: Any) -> list[int]:
    """All task labels of an experience, sorted; [0] where neither it nor its dataset has any."""
    labels = getattr(experience, "task_labels", None)
    if labels is None:
        labels = getattr(experience.dataset, _TASK_LABELS, [0])
    return sorted({int(label) for label in getattr(labels, "uniques", labels)})


def task_labels_in(mini_batch: Sequence[Tensor], dataset: Any) -> Tensor | None:
    """The last part of a mini-batch, (B,), where a dataset has task labels; None where it has none.

    What else samples may hold beside image and class label, such as an index, is no task label.
    """
    return mini_batch[-1] if len(mini_batch) > 2 and hasattr(dataset, _TASK_LABELS) else None


def expect_images_of_evaluation(experience: Any, device: torch.device) -> None:
    """Read one sample as evaluation sees it, before training, whose end will read them all.

    Draws nothing.

    Args:
        experience: About to be trained on.
        device: Where the strategy trains.

    Raises:
        ValueError: It makes no mini-batch, such as a PIL image.
    """
    plain = experience.dataset.eval()
    if len(plain) == 0:  # which others refuse
        return
    with preserved_random_states(device):
        sample = plain[0]
    try:
        plain.collate_fn([sample])
    except TypeError as error:
        raise ValueError(
            "Expected training images that make a mini-batch with the transforms of evaluation, "
            "with which they are read once more at the end of an experience, got "
            f"{type(sample[0]).__name__}: give the training set transforms of evaluation, too, "
            "such as nc_benchmark(..., eval_transform=ToTensor())."
        ) from error


def some_samples(dataset: Any) -> Tensor:
    """Samples of all over a dataset, as evaluation sees them, (at most 2 * NUM_LOOKED_AT, ...).

    Raises:
        ValueError: They are no tensors of one shape.
    """
    plain = dataset.eval()
    samples = [plain[i][0] for i in range(0, len(plain), max(1, len(plain) // NUM_LOOKED_AT))]
    kinds = {str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in samples}
    if len(kinds) > 1 or not isinstance(samples[0], Tensor):
        raise ValueError(
            "Expected images that are tensors of one shape with the transforms of evaluation, got "
            f"{' and '.join(sorted(kinds)[:3])}: add ToTensor() to them, and Resize(...) where "
            "sizes differ, or pass `views=PaperViews(mean=..., std=...)`."
        )
    return torch.stack(samples)
