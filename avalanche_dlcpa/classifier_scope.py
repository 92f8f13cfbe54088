"""Among which classes the samples of a task compete: the softmax of Eq. 6 and Eq. 9."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from avalanche_dlcpa.task_classifiers import MASK_MARGIN, TaskClassifiers, linear, side_by_side

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class ClassifierScope:
    """The classes among which the samples of a training experience compete.

    The cross-entropies of a task range over the classes of that task only. Where a replay plugin
    mixes in samples of earlier tasks, each sample competes within its own task.

    Attributes:
        layers: The layers that hold these classes.
        columns: Their columns in the layers side by side, (K,); None: all, in order.
        task_label: Of the experience.
        labels: Class label of each of the columns, (K,).
        width: One more than the largest of them.
        codes: ``task label * width + class label`` of each, sorted, (K,).
        order: The columns in the order of the codes, (K,).
        groups: Where samples of several tasks come together: the group of the samples of each
            column, (K,); None: all columns compete for all.
        members: Which columns compete for the samples of each group, (G, K), bool; None likewise.
    """

    layers: list[nn.Linear]
    columns: Tensor | None
    task_label: int
    labels: Tensor
    width: int
    codes: Tensor
    order: Tensor
    groups: Tensor | None
    members: Tensor | None

    def logits(self, features: Tensor, *, frozen: bool) -> Tensor:
        """Logits (B, K) of features (B, D).

        Args:
            features: Of the plastic learner (Eq. 6) or of the stable one (Eq. 9).
            frozen: Whether the classifiers only pass the gradient on to the features.
        """
        weight, bias = side_by_side(self.layers)
        if frozen:
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        logits = linear(features, weight, bias)
        return logits if self.columns is None else logits.index_select(1, self.columns)

    def targets(self, labels: Tensor, task_labels: Tensor | None) -> Tensor:
        """Columns (B,) of the class labels (B,) of a mini-batch.

        On a device where one would have to wait for it, a label that is not of the experience gets
        the column -1, with which `loss` is NaN.

        Raises:
            ValueError: Labels that are no whole numbers, or those of classes that are not of the
                experience, or, with samples of earlier tasks, of classes never trained.
        """
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"Expected class labels to be whole numbers, got {labels.dtype}.")
        labels = labels.long()  # as an index, bytes would be a mask
        tasks = torch.zeros_like(labels) if task_labels is None else task_labels
        is_known = (labels >= 0) & (labels < self.width)
        wanted = torch.where(is_known, tasks * self.width + labels, -1)
        places = torch.searchsorted(self.codes, wanted).clamp(max=len(self.codes) - 1)
        targets = torch.where(self.codes[places] == wanted, self.order[places], -1)
        if self.groups is None and labels.device.type != "cpu":
            return targets
        if (targets < 0).any():
            strange = labels[targets < 0].unique().tolist()
            raise ValueError(
                f"Expected replayed samples of classes trained before, got class labels {strange}: "
                "start with an empty buffer."
                if self.groups is not None
                else f"Expected labels of the classes of the experience, got {strange}: `targets` "
                "of its dataset must tell the labels that it delivers."
            )
        return targets

    def loss(self, criterion: Criterion, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion on logits (B, K) and target columns (B,), each sample within its group."""
        if self.groups is None:
            if targets.device.type == "cpu":  # where `targets` has raised
                return criterion(logits, targets)
            return nan_where_strange(criterion(logits, targets.clamp(min=0)), targets)
        assert self.members is not None
        group_of = self.groups[targets]
        total = logits.new_zeros(())
        for group in group_of.unique():
            rows, columns = group_of == group, self.members[group].nonzero().flatten()
            own = torch.searchsorted(columns, targets[rows])
            total = total + rows.sum() * criterion(logits[rows][:, columns], own)
        return total / len(targets)

    def by_label(self, logits: Tensor, targets: Tensor, num_outputs: int) -> Tensor:
        """Logits (B, K) ordered by class label, (B, W), as `TaskClassifiers.answer` orders them."""
        lowest = logits.detach().amin(dim=1, keepdim=True) - MASK_MARGIN
        if self.groups is not None:
            assert self.members is not None
            logits = torch.where(self.members[self.groups[targets]], logits, lowest)
        rows = lowest.expand(-1, num_outputs)
        return rows.scatter_reduce(1, self.labels.expand_as(logits), logits, "amax")


def nan_where_strange(loss: Tensor, targets: Tensor) -> Tensor:
    """A loss, or NaN where one of the target columns is -1; nobody waits for the device.

    An index of -1 would break off all that runs on a GPU, with no way back.

    Example:
        >>> nan_where_strange(torch.tensor(2.0), torch.tensor([0, 1]))
        tensor(2.)
        >>> nan_where_strange(torch.tensor(2.0), torch.tensor([0, -1]))
        tensor(nan)
    """
    return torch.where((targets < 0).any(), math.nan, loss)


def scope_of(
    classifiers: TaskClassifiers, task_label: int, classes: list[int], *, mixed: bool = False
) -> ClassifierScope:
    """The scope of an experience.

    Args:
        classifiers: All classifiers; those of the experience have been added.
        task_label: Of the experience.
        classes: Of the experience.
        mixed: Whether samples of earlier tasks come along.
    """
    device = classifiers.linears[0].weight.device
    current = {(task_label, label) for label in classes}
    layers, keys, numbers = [], [], []
    column = 0
    for layer in classifiers.linears:
        own = slice(column, column := column + layer.out_features)
        own_keys = classifiers.keys[own]
        if mixed or current.intersection(own_keys):
            layers.append(layer)
            keys += own_keys
            numbers += classifiers.numbers[own]
    kept = range(len(keys)) if mixed else [i for i, key in enumerate(keys) if key in current]
    columns = None if len(kept) == len(keys) else torch.tensor(kept, device=device)
    keys, numbers = [keys[i] for i in kept], [numbers[i] for i in kept]
    groups, members = _groups_of(numbers, [key in current for key in keys])
    labels = [label for _, label in keys]
    width = max(labels) + 1
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return ClassifierScope(
        layers=layers,
        columns=columns,
        task_label=task_label,
        labels=torch.tensor(labels, device=device),
        width=width,
        codes=torch.tensor([keys[i][0] * width + keys[i][1] for i in order], device=device),
        order=torch.tensor(order, device=device),
        groups=torch.tensor(groups, device=device) if mixed else None,
        members=torch.tensor(members, device=device) if mixed else None,
    )


def _groups_of(numbers: list[int], is_current: list[bool]) -> tuple[list[int], list[list[bool]]]:
    """Samples of the present experience compete among its classes, others among those they had.

    A class that has come back is one of both.

    Args:
        numbers: Of the classifier of each column.
        is_current: Whether its class is in the present experience.

    Returns:
        Group of the samples of each column, and for each group whether each column is a member.

    Example:
        >>> _groups_of([0, 0, 1], [False, True, True])  # the second class has come back
        ([1, 0, 0], [[False, True, True], [True, True, False]])
    """
    earlier = sorted(set(numbers))
    groups = [
        0 if now else 1 + earlier.index(number)
        for number, now in zip(numbers, is_current, strict=True)
    ]
    members = [is_current, *([number == one for number in numbers] for one in earlier)]
    used = sorted({0, *groups})
    return [used.index(group) for group in groups], [members[group] for group in used]
