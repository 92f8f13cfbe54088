"""Passes in bfloat16: everything that is kept or summed up stays in float32."""

import pytest
import torch
from helpers import (
    Probe,
    SmallCNN,
    batch_of,
    copies,
    nc_stream,
    seed_everything,
    small_head,
    strategy_of,
)
from torch import nn

from avalanche_dlcpa.precision import autocast
from avalanche_dlcpa.self_supervised import HEADS


def dtypes_of(*modules):
    return {t.dtype for m in modules if m is not None for t in m.state_dict().values()}


def record_dtypes(module, seen):
    """Keep the dtypes that the convolutions of a network put out."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda m, inputs, output: seen.add(output.dtype))


def trained(precision, ssl="mocov2", *, plugins=(), experiences=2, **kwargs):
    seed_everything()
    strategy = strategy_of(
        SmallCNN(),
        ssl=small_head(ssl),
        precision=precision,
        plugins=list(plugins),
        lr=0.02,
        momentum=0.9,
        **kwargs,
    )
    stream = nc_stream(per_class=16)
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return strategy, stream


@pytest.mark.parametrize("ssl", [None, *HEADS])
def test_every_head_trains_in_bf16_and_keeps_float32(ssl):
    seen = Probe(
        after_forward=lambda s: (s.mb_output.dtype, getattr(s._now.ssl_loss, "dtype", None)),
        before_backward=lambda s: (s.loss.dtype, bool(s.loss.isfinite())),
        after_backward=lambda s: {p.grad.dtype for p in s.model.plastic.parameters()},
    )
    strategy, _ = trained("bf16", ssl, plugins=[seen])
    ssl_dtype = None if ssl is None else torch.float32
    assert set(seen.seen["after_forward"]) == {(torch.float32, ssl_dtype)}
    assert set(seen.seen["before_backward"]) == {(torch.float32, True)}
    assert all(dtypes == {torch.float32} for dtypes in seen.seen["after_backward"])
    kept = dtypes_of(strategy.model, strategy.ssl)
    assert kept == {torch.float32, torch.long}  # counters are whole numbers
    assert {p.dtype for p in strategy.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "expected"), [("bf16", torch.bfloat16), ("float32", torch.float32)]
)
def test_the_passes_run_in_the_precision_asked_for(precision, expected):
    passes = {"plastic": set(), "stable": set(), "momentum": set(), "evaluation": set()}
    seed_everything()
    strategy = strategy_of(SmallCNN(), ssl=small_head("byol"), precision=precision)
    record_dtypes(strategy.model.plastic, passes["plastic"])
    record_dtypes(strategy.model.stable, passes["stable"])
    record_dtypes(strategy.ssl.momentum_encoder, passes["momentum"])
    stream = nc_stream(per_class=8)
    strategy.train(stream.train_stream[0])
    record_dtypes(strategy.model.stable, passes["evaluation"])
    strategy.eval(stream.test_stream[0])
    assert passes == {name: {expected} for name in passes}


@pytest.mark.parametrize("name", ["loss", "queue", "classifier"])
def test_what_is_not_a_pass_through_a_network_is_exact(name):
    """Under autocast the same as without, bit for bit."""
    first, second = torch.randn(2, 8, 64).unbind()
    head = small_head("mocov2")
    network = _Same()
    head.build(network, 64)
    head.before_training_exp()
    strategy, _ = trained("float32", experiences=1)
    functions = {
        "loss": lambda: head.loss(first, second, head.queue, 0.07),
        "queue": lambda: head(network, first, second)[0],
        "classifier": lambda: strategy.model.train()(torch.ones(4, 3, 16, 16)),
    }
    strategy.model.plastic = _Constant()
    expected = functions[name]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(functions[name](), expected)


class _Same(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x


class _Constant(nn.Module):
    def forward(self, x):
        return torch.linspace(-1, 1, 64).expand(len(x), 64)


def test_the_running_mean_is_exact():
    plastic = Probe(after_training_exp=lambda s: copies(s.model.plastic.parameters()))
    strategy, _ = trained("bf16", plugins=[plastic], experiences=3)
    after = plastic.seen["after_training_exp"]
    for stable, *parts in zip(strategy.model.stable.parameters(), *after, strict=True):
        torch.testing.assert_close(stable, torch.stack(parts).mean(dim=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("ssl", [None, "mocov2", "simclr", "byol"])
def test_short_runs_stay_close_to_float32(ssl):
    """bfloat16 has 8 bits: parameters differ by some percent of what training moved them."""
    results = {}
    for precision in ("float32", "bf16"):
        strategy, _ = trained(precision, ssl, views=lambda x: (x, x.flip(3)))
        results[precision] = (
            nn.utils.parameters_to_vector(strategy.model.plastic.parameters()).detach(),
            nn.utils.parameters_to_vector(strategy.model.stable.parameters()).detach(),
            torch.cat([layer.weight.detach() for layer in strategy.model.classifiers.linears]),
        )
    seed_everything()
    start = nn.utils.parameters_to_vector(
        strategy_of(SmallCNN(), ssl=small_head(ssl)).model.plastic.parameters()
    )
    for index in range(2):
        ours, exact = results["bf16"][index], results["float32"][index]
        assert 0 < (ours - exact).norm() < 0.1 * (exact - start).norm()
    ours, exact = results["bf16"][2], results["float32"][2]
    assert 0 < (ours - exact).norm() < 0.1 * exact.norm()


def test_bf16_learns():
    strategy, stream = trained("bf16", train_epochs=8, experiences=1)
    images, labels = batch_of(stream.test_stream[0])
    assert (strategy.model.eval()(images).argmax(dim=1) == labels).float().mean() > 0.8


def test_float32_leaves_an_autocast_of_the_users_alone():
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast("float32", torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu")


def test_a_model_of_bf16_parameters_still_trains():
    seed_everything()
    for ssl in ("simsiam", "nnclr", "simclr"):
        strategy = strategy_of(
            SmallCNN().to(torch.bfloat16),
            ssl=small_head(ssl),
            views=lambda x: (x.bfloat16(), x.bfloat16().flip(3)),
        )
        strategy.train(nc_stream(per_class=8).train_stream[0])
        assert {p.dtype for p in strategy.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("precision", ["fp16", "bfloat16", None])
def test_unknown_names_are_refused(precision):
    with pytest.raises(ValueError, match="Expected `precision` to be one of float32, bf16"):
        strategy_of(SmallCNN(), precision=precision)
