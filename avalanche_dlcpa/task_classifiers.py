"""The classifiers Gamma_1 .. Gamma_T: one linear layer a task, side by side (Eq. 4-5)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.model_head import HeadStart

Criterion = Callable[[Tensor, Tensor], Tensor]

MASK_MARGIN = 1000.0  # how far below its row's lowest logit a class lies that may not answer


class TaskClassifiers(nn.Module):
    """Linear classifiers, one for the new classes of each task, on the same features.

    A class is known by its task label and its class label, so that labels may restart at 0 in each
    task. A class that comes back in a later experience keeps its row, which is trained further.

    Args:
        start: The rows that the user's head already had.

    Attributes:
        start: The rows that the user's head already had, where classifiers of new classes start.
        layers: All classifiers, in the order of learning; one layer may hold several, see `add`.
        keys: The (task label, class label) of each column of all layers side by side.
        numbers: Of the classifier that each column belongs to, t - 1 of Gamma_t.
        num_outputs: W, one more than the largest class label met.
    """

    _like: Tensor

    def __init__(self, start: HeadStart):
        super().__init__()
        self.layers = nn.ModuleList()
        self.keys: list[tuple[int, int]] = []
        self.numbers: list[int] = []
        self.num_outputs = 0
        self.start = start
        like = next(iter(start.weights.values())).new_empty(0)
        self.register_buffer("_like", like, persistent=False)  # goes where the module goes
        self._columns: tuple[Tensor, Tensor] | None = None

    @property
    def in_features(self) -> int:
        """D, the length of a feature vector."""
        return self.start.in_features

    @property
    def linears(self) -> list[nn.Linear]:
        """The layers, as a list."""
        return [cast(nn.Linear, layer) for layer in self.layers]

    def widen(self, num_outputs: int) -> None:
        """Make answers at least so wide; changes nothing but the width of `answer`."""
        self.num_outputs = max(self.num_outputs, num_outputs)

    def rows(self, number: int) -> tuple[Tensor, Tensor | None]:
        """Weight (k, D) and bias (k,), or None, of one classifier by its number, as copies."""
        columns = [column for column, own in enumerate(self.numbers) if own == number]
        weight, bias = side_by_side(self.linears)
        return weight.detach()[columns], None if bias is None else bias.detach()[columns]

    def add(self, task_label: int, classes: list[int], *, pack: bool = False) -> None:
        """Add a classifier for those of the classes that have none yet.

        Args:
            task_label: Of the classes.
            classes: Their labels.
            pack: Whether earlier classifiers go into one layer then, so that walks over the modules
                of a model do not take longer with every task.
        """
        known = set(self.keys)
        new = [label for label in classes if (task_label, label) not in known]
        if new:
            layer = self.start.linear(task_label, new).to(self._like)
            if pack:
                self._pack()
            self.layers.append(layer)
            self.keys += [(task_label, label) for label in new]
            self.numbers += [max(self.numbers, default=-1) + 1] * len(new)
            self._columns = None
        self.widen(max(classes) + 1)

    @torch.no_grad()
    def _pack(self) -> None:
        if len(self.layers) > 1:
            weight, bias = side_by_side(self.linears)
            packed = _empty_layer(weight, has_bias=bias is not None)
            packed.weight.copy_(weight)
            if bias is not None:
                packed.bias.copy_(bias)
            self.layers = nn.ModuleList([packed])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put keys (K, 2) and numbers (K,) beside the layers."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}keys"] = torch.tensor(self.keys, dtype=torch.long).reshape(-1, 2)
        destination[f"{prefix}numbers"] = torch.tensor(self.numbers, dtype=torch.long)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make the layers that the state holds; torch loads them after this."""
        keys, numbers = (state_dict.pop(f"{prefix}{name}", None) for name in ("keys", "numbers"))
        if keys is not None:
            self._remake_layers(state_dict, f"{prefix}layers.")
            self.keys = [(task, label) for task, label in keys.tolist()]
            widths = [layer.out_features for layer in self.linears]
            each = [number for number, width in enumerate(widths) for _ in range(width)]
            self.numbers = each if numbers is None else numbers.tolist()
            self.widen(max((label + 1 for _, label in self.keys), default=0))
            self._columns = None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _remake_layers(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Have as many layers, of the widths, as a state; those that fit stay the same objects."""
        weights: list[Tensor] = []
        while f"{prefix}{len(weights)}.weight" in state_dict:
            weights.append(state_dict[f"{prefix}{len(weights)}.weight"])
        del self.layers[len(weights) :]
        for index, weight in enumerate(weights):
            if index < len(self.layers) and self.linears[index].weight.shape == weight.shape:
                continue
            layer = _empty_layer(weight.to(self._like), has_bias=self.start.has_bias)
            if index < len(self.layers):
                self.layers[index] = layer
            else:
                self.layers.append(layer)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of all classifiers side by side, (B, D) -> (B, K), columns as in `keys`."""
        if not self.layers:
            return features.new_zeros(len(features), 0)
        return _linear(features, *side_by_side(self.linears))

    def answer(self, logits: Tensor, task_labels: Tensor | int | None = None) -> Tensor:
        """Order logits (B, K) by class label, (B, W); see `DualLearner.forward`.

        Raises:
            ValueError: No task labels, although a class label belongs to several tasks.
        """
        tasks, labels = self._column_index(logits.device)
        if task_labels is None:
            self._check_unique_labels()
            allowed = torch.ones_like(logits, dtype=torch.bool)
        else:
            given = torch.as_tensor(task_labels, device=logits.device).expand(len(logits))
            allowed = tasks == given.unsqueeze(1)
        if logits.shape[1] == 0:
            lowest = logits.new_full((len(logits), 1), -MASK_MARGIN)
        else:
            lowest = logits.detach().amin(dim=1, keepdim=True) - MASK_MARGIN
        answer = lowest.expand(-1, self.num_outputs)
        answer = answer.scatter_reduce(
            1, labels.expand_as(logits), torch.where(allowed, logits, lowest), "amax"
        )
        return answer if self.training else _with_none_of_these(answer, lowest, allowed)

    def _check_unique_labels(self) -> None:
        labels = [label for _, label in self.keys]
        if len(set(labels)) < len(labels):
            raise ValueError(
                "Expected `task_labels`, since class labels restart in each task of this stream, "
                "got None: call model(x, task_labels)."
            )

    def _column_index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Task label and class label of each column, (K,) each, kept on the device."""
        if self._columns is None or self._columns[0].device != device:
            tasks, labels = zip(*self.keys, strict=True) if self.keys else ((), ())
            self._columns = (
                torch.tensor(tasks, dtype=torch.long, device=device),
                torch.tensor(labels, dtype=torch.long, device=device),
            )
        return self._columns


def frozen_classifiers(state_dict: dict[str, Tensor], prefix: str = "") -> TaskClassifiers:
    """Classifiers that were computed instead of trained, in one layer.

    Args:
        state_dict: Holds ``layers.0.weight`` (K, D) and ``layers.0.bias`` (K,), in the dtype and on
            the device of the answers, and ``keys``, the (task label, class label) of each row,
            (K, 2), int64.
        prefix: Of these names.
    """
    names = ("layers.0.weight", "layers.0.bias", "keys")  # numbers are of what is trained
    state = {name: state_dict[prefix + name] for name in names}
    weight, bias = (state[name][:0].clone() for name in names[:2])
    classifiers = TaskClassifiers(HeadStart({None: weight}, {None: bias}))
    classifiers.load_state_dict(state)
    return classifiers.requires_grad_(False)


def side_by_side(layers: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight (K, D) and bias (K,), or None, of linear layers as one."""
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias
    weight = torch.cat([layer.weight for layer in layers])
    has_bias = layers[0].bias is not None
    return weight, torch.cat([layer.bias for layer in layers]) if has_bias else None


def _empty_layer(like: Tensor, *, has_bias: bool) -> nn.Linear:
    """A layer without values whose weight has the shape, dtype and device of another."""
    kind = {"dtype": like.dtype, "device": like.device}
    return nn.utils.skip_init(nn.Linear, like.shape[1], len(like), bias=has_bias, **kind)


def _linear(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # features of an autocast pass are narrower than the classifiers
    return F.linear(features.to(weight.dtype), weight, bias)


def _with_none_of_these(answer: Tensor, lowest: Tensor, allowed: Tensor) -> Tensor:
    """Add a largest column, beyond all labels, where no class may answer."""
    nothing = ~allowed.any(dim=1, keepdim=True)
    if not nothing.any():
        return answer
    return torch.cat([answer, torch.where(nothing, lowest + MASK_MARGIN, lowest)], dim=1)


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
        groups: Where samples of several tasks come together: the group of each column, (K,), and
            columns compete within their group; None: all with all.
    """

    layers: list[nn.Linear]
    columns: Tensor | None
    task_label: int
    labels: Tensor
    width: int
    codes: Tensor
    order: Tensor
    groups: Tensor | None

    def logits(self, features: Tensor, *, frozen: bool) -> Tensor:
        """Logits (B, K) of features (B, D).

        Args:
            features: Of the plastic learner (Eq. 6) or of the stable one (Eq. 9).
            frozen: Whether the classifiers only pass the gradient on to the features.
        """
        weight, bias = side_by_side(self.layers)
        if frozen:
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        logits = _linear(features, weight, bias)
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
        group_of = self.groups[targets]
        total = logits.new_zeros(())
        for group in group_of.unique():
            rows, columns = group_of == group, (self.groups == group).nonzero().flatten()
            own = torch.searchsorted(columns, targets[rows])
            total = total + rows.sum() * criterion(logits[rows][:, columns], own)
        return total / len(targets)

    def by_label(self, logits: Tensor, targets: Tensor, num_outputs: int) -> Tensor:
        """Logits (B, K) ordered by class label, (B, W), as `TaskClassifiers.answer` orders them."""
        lowest = logits.detach().amin(dim=1, keepdim=True) - MASK_MARGIN
        if self.groups is not None:
            allowed = self.groups[targets].unsqueeze(1) == self.groups
            logits = torch.where(allowed, logits, lowest)
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
    layers, keys, groups = [], [], []
    column = 0
    for layer in classifiers.linears:
        own = slice(column, column := column + layer.out_features)
        own_keys, numbers = classifiers.keys[own], classifiers.numbers[own]
        if mixed or current.intersection(own_keys):
            layers.append(layer)
            keys += own_keys
            groups += [
                -1 if key in current else number
                for key, number in zip(own_keys, numbers, strict=True)
            ]
    kept = range(len(keys)) if mixed else [i for i, key in enumerate(keys) if key in current]
    columns = None if len(kept) == len(keys) else torch.tensor(kept, device=device)
    keys, groups = [keys[i] for i in kept], [groups[i] for i in kept]
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
    )
