"""MoCo's loss over blocks of the queue, against that of solo-learn."""

import pytest
import torch
import torch.nn.functional as F
from helpers import seed_everything
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from avalanche_dlcpa.self_supervised import MoCoV2, _solo_learn
from avalanche_dlcpa.self_supervised import info_nce as module
from avalanche_dlcpa.self_supervised.info_nce import info_nce


def case(*, num=6, width=5, length=40, dtype=torch.float64, unit=True, seed=0):
    seed_everything(seed)
    queries, keys, queue = (
        torch.randn(num, width),
        torch.randn(num, width),
        torch.randn(width, length),
    )
    if unit:
        queries, keys, queue = F.normalize(queries), F.normalize(keys), F.normalize(queue, dim=0)
    return queries.to(dtype).requires_grad_(), keys.to(dtype), queue.to(dtype)


def value_and_gradient(function, queries, keys, queue, temperature):
    loss = function(queries, keys, queue, temperature)
    (gradient,) = torch.autograd.grad(3 * loss, queries)
    return loss.detach(), gradient


@settings(deadline=None)
@given(
    num=st.integers(1, 9),
    width=st.integers(1, 9),
    length=st.integers(1, 50),
    block=st.integers(1, 60),
    temperature=st.floats(0.01, 10),
    unit=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_it_is_solo_learns_loss_with_its_gradient(
    num, width, length, block, temperature, unit, seed
):
    arguments = case(num=num, width=width, length=length, unit=unit, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        found = value_and_gradient(info_nce, *arguments, temperature)
    expected = value_and_gradient(_solo_learn.load_loss("moco"), *arguments, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_in_float32_over_several_blocks_of_a_long_queue():
    queries, keys, queue = case(num=32, width=64, length=40_000, dtype=torch.float32)
    assert queue.shape[1] > 2 * module.BLOCK
    found = value_and_gradient(info_nce, queries, keys, queue, 0.07)
    wide = (queries.detach().double().requires_grad_(), keys.double(), queue.double())
    expected = value_and_gradient(_solo_learn.load_loss("moco"), *wide, 0.07)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=1e-5, atol=1e-7)


def test_no_logits_overflow_or_vanish():
    arguments = case(dtype=torch.float32)
    for temperature in (1e-4, 1e4):
        found = value_and_gradient(info_nce, *arguments, temperature)
        expected = value_and_gradient(_solo_learn.load_loss("moco"), *arguments, temperature)
        assert all(value.isfinite().all() for value in found)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("argument", range(3))
def test_what_is_not_a_number_shows(argument):
    arguments = case()
    with torch.no_grad():
        arguments[argument][0, 0] = torch.nan
    assert info_nce(*arguments, 0.07).isnan()


def test_nothing_of_the_size_of_all_logits_is_kept():
    queries, keys, queue = case(length=400)
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        info_nce(queries, keys, queue, 0.07)
    assert sizes == [queries.numel()]


def test_the_head_takes_it_on_a_cpu_and_autocast_does_not_reach_it(monkeypatch):
    plastic, head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48)), MoCoV2(queue_size=30)
    head.build(plastic, 48)
    head.before_training_exp()
    images = torch.rand(2, 8, 3, 4, 4)
    exact, _ = head(plastic, *images)
    monkeypatch.setattr(_solo_learn, "load_loss", None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = head(plastic, *images)
    assert torch.equal(loss, exact)
