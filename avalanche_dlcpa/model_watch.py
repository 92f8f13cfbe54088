"""Whether a user's model suits those who take its features from its head: looked at in a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from avalanche.models import MultiTaskModule
from torch import Tensor, nn

from avalanche_dlcpa.compiled import is_compiled
from avalanche_dlcpa.model_copy import copy_of
from avalanche_dlcpa.random_states import preserved_random_states


def watch_next_pass_(
    model: nn.Module,
    head: nn.Module,
    owner: Any,
    *,
    answers_alone: bool = True,
    at_evaluation: bool = False,
) -> None:
    """At its next pass, look whether a model suits those who take its features from its head.

    It is then watched no longer. Where the answer is the very tensor that the head gave, or a part
    of it, no device is waited for. A compiled model, whose hooks are silent, passes.

    Args:
        model: Its forward pass raises a `ValueError` where it does something after its head, such
            as a softmax, does not call its head, or writes into its input.
        head: A module in it; what `detach_head` left in its place will do, see `tap_of`.
        owner: Who asks; ``owner.model_suits`` becomes True where nothing was raised.
        answers_alone: Whether a model with further outputs is refused, too; else it passes.
        at_evaluation: Whether to look, in a pass of a copy, at evaluation mode as well.
    """
    given: list[int] = []
    seen: list[tuple[Tensor, int]] = []

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        given[:] = [x._version for x in inputs if isinstance(x, Tensor)]
        seen.clear()

    def at_head(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append((output, output._version))

    def after(_module: nn.Module, inputs: tuple[Any, ...], answer: Any) -> None:
        for handle in handles:
            handle.remove()
        outputs = list(seen)
        seen.clear()
        is_alone = isinstance(answer, Tensor)
        when = "" if model.training else " in evaluation mode"
        if not outputs and not is_compiled(model):
            raise ValueError(
                "Expected `model` to call its head as a layer, such as self.fc(features), got one "
                f"that does not{when}, through which no features can be seen: call the head, on "
                "F.normalize(features) for example, or name another `head`."
            )
        if not is_alone and answers_alone:
            raise ValueError(
                f"Expected `model` to answer with what its head gives alone, got{when} "
                f"{type(answer).__name__}: return the logits, and leave further outputs out."
            )
        if is_alone and outputs and not any(_is_same(answer, *output) for output in outputs):
            raise ValueError(
                "Expected `model` to answer with what its head gives, got one that does something "
                f"after it{when}, such as a softmax or a scale, through which the features would "
                "go instead: leave that to the criterion, do it before, or name another `head`."
            )
        if given != [x._version for x in inputs if isinstance(x, Tensor)]:
            raise ValueError(
                "Expected `model` to leave its input as it is, got one that writes into it, and "
                "several networks look at the same images: x = x - mean instead of x.sub_(mean)."
            )
        if at_evaluation:
            _look_at_evaluation(model, head, inputs)
        owner.model_suits = True

    handles = [
        model.register_forward_pre_hook(before),
        head.register_forward_hook(at_head),
        model.register_forward_hook(after),
    ]


def _look_at_evaluation(model: nn.Module, head: nn.Module, inputs: tuple[Any, ...]) -> None:
    """The same of a copy in evaluation mode, where others than in training may come last."""
    name = next(name for name, module in model.named_modules() if module is head)
    twin = copy_of(model).eval()
    watch_next_pass_(twin, twin.get_submodule(name), SimpleNamespace())
    with preserved_random_states(inputs[0].device), torch.no_grad():
        twin(*inputs)


def watch_answer_(model: nn.Module, head: str, owner: Any, **options: bool) -> None:
    """The same by the name of the head.

    A multi-task model of Avalanche's, which puts the answers of several tasks together, is not
    looked at.
    """
    if not isinstance(model, MultiTaskModule):
        watch_next_pass_(model, model.get_submodule(head), owner, **options)


def _is_same(answer: Tensor, output: Tensor, version: int) -> bool:
    """Whether a tensor is what another one was, or rows of it, maybe in another precision."""
    if output._version != version or answer.shape[-1:] != output.shape[-1:]:
        return False
    if answer.untyped_storage()._cdata == output.untyped_storage()._cdata:
        return True
    return answer.shape == output.shape and torch.equal(answer, output.to(answer.dtype))
