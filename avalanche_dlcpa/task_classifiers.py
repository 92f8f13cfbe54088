"""The classifiers Gamma_1 .. Gamma_T: one linear layer a task, side by side (Eq. 4-5)."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.model_head import HeadStart

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
        return linear(features, *side_by_side(self.linears))

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


def linear(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits (B, K) of features (B, D), which an autocast pass may leave narrower than weights."""
    return F.linear(features.to(weight.dtype), weight, bias)


def _with_none_of_these(answer: Tensor, lowest: Tensor, allowed: Tensor) -> Tensor:
    """Add a largest column, beyond all labels, where no class may answer."""
    nothing = ~allowed.any(dim=1, keepdim=True)
    if not nothing.any():
        return answer
    return torch.cat([answer, torch.where(nothing, lowest + MASK_MARGIN, lowest)], dim=1)
