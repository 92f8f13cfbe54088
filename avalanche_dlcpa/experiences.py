"""What an experience of any Avalanche stream tells about itself.

Avalanche's classic and new-style streams name classes and tasks differently, or not at all
(lists, sets, missing attributes); everything else in the package asks here.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

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
    labels = set(getattr(experience, "task_labels", [0]))
    if len(labels) != 1:
        raise ValueError(
            f"Expected one task label in an experience, got {sorted(labels)}: DLCPA trains one "
            "classifier a task, so give each task an experience of its own."
        )
    label = int(labels.pop())
    if label < 0:
        raise ValueError(f"Expected task labels to be at least 0, got {label}.")
    return label


def some_samples(dataset: Any, most: int = 64) -> Tensor:
    """Samples of all over a dataset, as evaluation sees them, (at most about 2 * most, ...).

    Raises:
        ValueError: They are no tensors of one shape.
    """
    plain = dataset.eval()
    samples = [plain[i][0] for i in range(0, len(plain), max(1, len(plain) // most))]
    kinds = {str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in samples}
    if len(kinds) > 1 or not isinstance(samples[0], Tensor):
        raise ValueError(
            "Expected images that are tensors of one shape with the transforms of evaluation, got "
            f"{' and '.join(sorted(kinds)[:3])}: add ToTensor() to them, and Resize(...) where "
            "sizes differ, or pass `views=PaperViews(mean=..., std=...)`."
        )
    return torch.stack(samples)
