"""Step 1, plastic learning: what every self-supervised head is and has (Eq. 6, the term L_ssl)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from avalanche_dlcpa.model_copy import copy_of, follow_modes_
from avalanche_dlcpa.precision import in_full_precision
from avalanche_dlcpa.self_supervised import _solo_learn


class SelfSupervisedHead(nn.Module):
    """Base of the self-supervised heads: a loss on two views, with whatever modules it needs.

    A head of one's own overrides ``forward`` and, where it has layers, ``build``; the other methods
    follow Avalanche's hooks and do nothing by default. See ``examples/custom_head.py``.

    Its parameters are trained by the user's optimizer, beside those of the plastic learner. A head
    that follows the plastic learner with a momentum encoder builds it as ``momentum_encoder`` and
    says so; that is what ``average_source="momentum"`` averages.

    With the strategy's ``precision="bf16"``, ``forward`` runs under torch's autocast. `loss` leaves
    it by itself; a loss of one's own that multiplies matrices should do so, too.

    Attributes:
        loss_name: The loss of solo-learn that `loss` calls, None for a loss of one's own.
        has_momentum_encoder: Whether `build` makes a ``momentum_encoder``.
        waits_for_device: Whether its loss makes the host wait for a GPU: no graph can hold it.

    Raises:
        ImportError: ``loss_name`` is given and solo-learn is missing.
    """

    loss_name: str | None = None
    has_momentum_encoder: bool = False
    waits_for_device: bool = False
    _is_built: bool = False  # for a strategy, which then owns it
    momentum_encoder: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.momentum_encoder = None
        if self.loss_name is not None:
            _solo_learn.load_loss(self.loss_name)  # missing? then say so now, not in training

    def loss(self, *arguments: Any) -> Tensor:
        """The loss of solo-learn that ``loss_name`` names, in float32 also under autocast."""
        assert self.loss_name is not None
        return in_full_precision(_solo_learn.load_loss(self.loss_name), *arguments)

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make the layers, once, before training.

        Args:
            plastic: The plastic learner, (B, C, H, W) -> (B, D); not to become a submodule.
            num_features: D, the length of its feature vectors.
        """

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The self-supervised loss of a mini-batch.

        Args:
            plastic: The plastic learner, (B, C, H, W) -> (B, D).
            view1: First view of the batch, (B, C, H, W).
            view2: Second view, of the same shape.

        Returns:
            The loss, a scalar, and the plastic features (B, D) of the views that also enter the
            cross-entropies of Eq. 6 and Eq. 9: of ``view1``, or of both views in their order.
        """
        raise NotImplementedError

    def freeze_as(self, plastic: nn.Module) -> None:
        """Keep the layers of the momentum encoder in evaluation mode that are so in ``plastic``."""
        if self.momentum_encoder is not None:
            follow_modes_(self.momentum_encoder, plastic)

    def before_training_exp(self) -> None:
        """Start an experience: forget everything that samples left behind (queues)."""

    def after_update(self, plastic: nn.Module) -> None:
        """Follow the optimizer step (momentum copies, queues)."""

    def after_training_exp(self) -> None:
        """End an experience: no sample or feature of it may stay reachable."""


def expect_unbuilt(ssl: SelfSupervisedHead) -> None:
    """Refuse a head that another strategy trains.

    Raises:
        ValueError: It was built for another.
    """
    if ssl._is_built:
        raise ValueError(
            f"Expected a head of one strategy alone, got a {type(ssl).__name__} that another one "
            "has: make a new one for each strategy."
        )


def own_(ssl: SelfSupervisedHead) -> None:
    """Have a head that was built belong to one strategy; see `expect_unbuilt`."""
    ssl._is_built = True


def momentum_copy(module: nn.Module) -> nn.Module:
    """A deep copy of a module that takes no gradient, to be moved by `momentum_update_`.

    Raises:
        ValueError: See `expect_wide`.
    """
    expect_wide(module)
    return copy_of(module).requires_grad_(False)


def expect_wide(module: nn.Module) -> None:
    """Refuse parameters of less than 32 bits, which would round a momentum encoder's steps to none.

    Raises:
        ValueError: There are such parameters.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and torch.finfo(parameter.dtype).bits < 32:
            raise ValueError(
                "Expected parameters of at least 32 bits for a momentum encoder, whose small steps "
                f"would be rounded to none, got {parameter.dtype} for {name}: pass the model in "
                "float32, and precision='bf16' to the strategy."
            )


@torch.no_grad()
def momentum_update_(target: nn.Module, source: nn.Module, *, momentum: float) -> None:
    """Move the parameters of ``target`` towards those of ``source``, in place.

    ``target <- momentum * target + (1 - momentum) * source``. Buffers, such as the running
    statistics of batch norm, are not touched: the target keeps its own (He et al., 2020).
    """
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), 1 - momentum)


def multilayer_perceptron(
    sizes: Iterable[int],
    *,
    bias: bool = True,
    batch_norm: bool = True,
    last_norm: bool = False,
    last_affine: bool = False,
) -> nn.Sequential:
    """Linear layers with (batch norm and) ReLU between them.

    Args:
        sizes: Widths from the input to the output; two or more.
        bias: Whether the linear layers have a bias.
        batch_norm: Whether a batch norm follows each hidden layer.
        last_norm: Whether a batch norm follows the last layer.
        last_affine: Whether that one has scale and shift.
    """
    sizes = list(sizes)
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(sizes[:-1]):
        layers.append(nn.Linear(width_in, width_out, bias=bias))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width_out))
        layers.append(nn.ReLU(inplace=True))
    layers.append(nn.Linear(sizes[-2], sizes[-1], bias=bias))
    if last_norm:
        layers.append(nn.BatchNorm1d(sizes[-1], affine=last_affine))
    return nn.Sequential(*layers)
