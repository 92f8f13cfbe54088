import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from avalanche_dlcpa.averaging import (
    ParameterAverage,
    cumulative_average_,
    exponential_average_,
)


def network(dtype=torch.float32):
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype)


def snapshots(num_experiences, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_experiences):
        yield [
            (torch.randn(p.shape, generator=generator) * 3).to(dtype)
            for p in network().parameters()
        ]


def run(num_experiences, dtype, seed, update="cumulative", steps=2):
    """Several updates an experience, of which the last counts."""
    model = network(dtype)
    stable = copy.deepcopy(model).requires_grad_(False)
    average = ParameterAverage(list(stable.parameters()), update=update)
    for n, snapshot in enumerate(snapshots(num_experiences, dtype, seed)):
        average.begin(n)
        for step in range(steps):
            wrong = [p + (steps - 1 - step) for p in snapshot]
            average.update_(wrong)
        average.end(snapshot)
    return stable, average


@pytest.mark.parametrize("num_experiences", [1, 2, 10, 200])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_stable_learner_is_the_mean_of_the_plastic_ones(num_experiences, seed):
    stable, _ = run(num_experiences, torch.float32, seed)
    all_of_them = list(snapshots(num_experiences, torch.float32, seed))
    oracle = AveragedModel(network())
    model = network()
    for snapshot in all_of_them:
        for parameter, value in zip(model.parameters(), snapshot, strict=True):
            parameter.data.copy_(value)
        oracle.update_parameters(model)
    for k, (ours, torchs) in enumerate(
        zip(stable.parameters(), oracle.module.parameters(), strict=True)
    ):
        exact = torch.stack([s[k].double() for s in all_of_them]).mean(0)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_experiences", [1, 2, 10, 200])
def test_the_mean_of_bfloat16_parameters_is_kept_in_float32(num_experiences):
    stable, average = run(num_experiences, torch.bfloat16, seed=1)
    all_of_them = list(snapshots(num_experiences, torch.bfloat16, seed=1))
    for k, (rounded, kept) in enumerate(zip(stable.parameters(), average._previous, strict=True)):
        exact = torch.stack([s[k].double() for s in all_of_them]).mean(0)
        assert kept.dtype == torch.float32
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-5)
        assert torch.equal(rounded, kept.bfloat16())


def test_during_an_experience_the_mean_includes_the_present_step():
    stable = [torch.tensor([2.0])]
    average = ParameterAverage(stable)
    average.begin(3)
    average.update_([torch.tensor([6.0])])
    assert stable[0].item() == 3.0
    average.update_([torch.tensor([2.0])])  # built on the snapshot, not on the last step
    assert stable[0].item() == 2.0


def test_an_experience_that_was_broken_off_starts_from_the_same_snapshot():
    stable = [torch.tensor([2.0])]
    average = ParameterAverage(stable)
    average.begin(1)
    average.update_([torch.tensor([100.0])])
    average.begin(1)
    average.update_([torch.tensor([4.0])])
    average.end([torch.tensor([4.0])])
    assert stable[0].item() == 3.0


def test_the_snapshot_follows_an_average_that_was_changed_from_outside():
    stable = [torch.tensor([2.0])]
    average = ParameterAverage(stable)
    average.begin(0)
    average.update_([torch.tensor([4.0])])
    average.end([torch.tensor([4.0])])
    stable[0].fill_(10.0)  # a checkpoint was loaded
    average.begin(1)
    average.update_([torch.tensor([0.0])])
    assert stable[0].item() == 5.0


def test_rules_of_the_ablations():
    mean, source = [torch.tensor([1.0])], [torch.tensor([3.0])]
    exponential_average_(mean, source)
    torch.testing.assert_close(mean[0], torch.tensor([0.999 * 1.0 + 0.001 * 3.0]))
    for update, expected in (("ema", 0.999 * 1.0 + 0.001 * 3.0), ("copy", 3.0)):
        stable = [torch.tensor([1.0])]
        average = ParameterAverage(stable, update=update)
        average.begin(4)
        average.update_(source)
        torch.testing.assert_close(stable[0], torch.tensor([expected]))
        average.end(source)
        torch.testing.assert_close(stable[0], torch.tensor([expected]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_exponential_average_goes_on_from_what_was_put_back(dtype):
    stable, source = [torch.ones(3, dtype=dtype)], [torch.full((3,), 2.0, dtype=dtype)]
    average = ParameterAverage(stable, update="ema", ema_decay=0.5)
    average.begin(0)
    average.update_([torch.full((3,), float("nan"), dtype=dtype)])
    stable[0].fill_(1.0)  # as where training diverged
    average.begin(0)
    average.update_(source)
    assert stable[0].tolist() == [1.5] * 3


def test_an_exponential_average_of_bfloat16_parameters_moves():
    stable, source = [torch.ones(1, dtype=torch.bfloat16)], [torch.full((1,), 1.5).bfloat16()]
    average = ParameterAverage(stable, update="ema")
    average.begin(0)
    for _ in range(700):  # each step is below the distance to the next bfloat16
        average.update_(source)
    assert stable[0].item() == pytest.approx(1.5 - 0.5 * 0.999**700, abs=0.004)


class CopiesAtOnce(TorchDispatchMode):
    """The dtypes that each foreach copies to."""

    def __init__(self):
        super().__init__()
        self.targets = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten._foreach_copy_:
            self.targets.append({tensor.dtype for tensor in args[0]})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("update", ["cumulative", "ema"])
def test_parameters_of_two_dtypes_are_not_copied_to_at_once(update):
    """CUDA in torch of before 2026 takes them all for the first one's (its issue 173383)."""
    dtypes = (torch.bfloat16, torch.float32)
    stable, source = ([torch.full((1,), x, dtype=d) for d in dtypes] for x in (1.0, 2.0))
    average = ParameterAverage(stable, update=update, ema_decay=0.5)
    with CopiesAtOnce() as copies:
        average.begin(1)
        average.update_(source)
        average.end(source)
    assert [mean.item() for mean in stable] == [1.5, 1.5]
    assert all(len(dtypes) == 1 for dtypes in copies.targets)


@given(
    t=st.integers(1, 1000),
    previous=st.floats(-100, 100, width=32),
    source=st.floats(-100, 100, width=32),
)
def test_equation_8(t, previous, source):
    mean = [torch.zeros(1)]
    cumulative_average_(mean, [torch.tensor([previous])], [torch.tensor([source])], t)
    expected = (source + (t - 1) * previous) / t
    torch.testing.assert_close(mean[0].item(), expected, rtol=1e-5, atol=1e-4)


def test_bad_arguments():
    with pytest.raises(ValueError, match="Expected `t` to be at least 1, got 0"):
        cumulative_average_([], [], [], 0)
    with pytest.raises(ValueError, match="one of cumulative, ema, copy, got 'mean'"):
        ParameterAverage([], update="mean")
