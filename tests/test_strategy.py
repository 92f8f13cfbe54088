"""One step at a time: what DLCPAStrategy does is what the paper's Algorithm 1 and Table 4 say."""

import copy

import pytest
import torch
from helpers import (
    Probe,
    SmallCNN,
    assert_same_state,
    batch_of,
    copies,
    optimized,
    seed_everything,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.nn.functional import batch_norm, cross_entropy, linear

from avalanche_dlcpa import DualLearner
from avalanche_dlcpa.self_supervised import BYOL, MoCoV2, SelfSupervisedHead

LR, CLASSIFIER_LR, WEIGHT = 0.05, 0.2, 3.0


def one_step_stream(tasks=((0, 1), (2, 3)), **kwargs):
    """Each experience is a single mini-batch."""
    return tensors_stream(tasks, per_class=4, size=8, **kwargs)


def one_step_strategy(model=None, **kwargs):
    model = SmallCNN(batch_norm=False) if model is None else model
    defaults = {"lr": LR, "classifier_lr": CLASSIFIER_LR, "supervised_weight": WEIGHT}
    return strategy_of(model, **defaults | kwargs)


class ByHand:
    """The three steps in plain PyTorch, for experiences of a single mini-batch and no L_ssl."""

    def __init__(self, model):
        self.weight, self.bias = copies(model.fc.parameters())
        self.plastic = copy.deepcopy(model)
        self.plastic.fc = nn.Identity()
        self.stable = copy.deepcopy(self.plastic)
        self.t = 0

    def experience(
        self, images, labels, *, stable_update, decay, classifier_features, temporary=None
    ):
        self.t += 1
        rows = sorted(set(labels.tolist()))
        targets = labels - rows[0]
        weight, bias = self.weight[rows], self.bias[rows]
        guide = (weight, bias) if temporary is None else temporary
        loss = WEIGHT * cross_entropy(linear(self.plastic(images), *guide), targets)
        gradients = torch.autograd.grad(loss, list(self.plastic.parameters()))
        with torch.no_grad():
            for p, q, gradient in zip(
                self.plastic.parameters(), self.stable.parameters(), gradients, strict=True
            ):
                p -= LR * gradient
                if stable_update == "cumulative":
                    q.copy_((p + (self.t - 1) * q) / self.t)
                else:
                    q.copy_(decay * q + (1 - decay) * p if stable_update == "ema" else p)
            features = {"stable": self.stable, "plastic": self.plastic}[classifier_features](images)
        weight.requires_grad_(), bias.requires_grad_()
        loss = cross_entropy(linear(features, weight, bias), targets)
        gradients = torch.autograd.grad(loss, [weight, bias])
        self.weight[rows] = weight.detach() - CLASSIFIER_LR * gradients[0]
        self.bias[rows] = bias.detach() - CLASSIFIER_LR * gradients[1]
        return loss


def others_in_optimizer(strategy):
    """What the user's optimizer trains beside the plastic learner."""
    plastic = {id(p) for p in strategy.model.plastic.parameters()}
    return [p for p in optimized(strategy.optimizer) if id(p) not in plastic]


ABLATIONS = {
    "the paper, with (a) no self-supervised loss": {},
    "(b) a temporary classifier": {"plastic_classifier": "temporary"},
    "(c) EMA": {"stable_update": "ema"},
    "(c) with another decay": {"stable_update": "ema", "ema_decay": 0.5},
    "(d) copy": {"stable_update": "copy"},
    "(e) classifier on plastic features": {"classifier_features": "plastic"},
}


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_two_experiences_of_one_step_equal_the_computation_by_hand(ablation):
    options = ABLATIONS[ablation]
    model = SmallCNN(batch_norm=False)
    by_hand = ByHand(model)
    probe = Probe(before_training_iteration=lambda s: copies(others_in_optimizer(s)))
    strategy = one_step_strategy(model, plugins=[probe], **options)
    for experience in one_step_stream().train_stream:
        strategy.train(experience)
        temporary = probe.seen["before_training_iteration"][-1]
        assert len(temporary) == (2 if "plastic_classifier" in options else 0)
        assert others_in_optimizer(strategy) == []
        by_hand.experience(
            *batch_of(experience),
            stable_update=options.get("stable_update", "cumulative"),
            decay=options.get("ema_decay", 0.999),
            classifier_features=options.get("classifier_features", "stable"),
            temporary=temporary or None,
        )
        for ours, expected in [
            (strategy.model.plastic, by_hand.plastic),
            (strategy.model.stable, by_hand.stable),
        ]:
            torch.testing.assert_close(state_of(ours), state_of(expected), rtol=1e-4, atol=1e-5)
    layers = strategy.model.classifiers.layers
    assert [layer.out_features for layer in layers] == [2, 2]
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    torch.testing.assert_close(weight.detach(), by_hand.weight[:4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias.detach(), by_hand.bias[:4], rtol=1e-4, atol=1e-5)


class MeanSquare(SelfSupervisedHead):
    """A loss known in closed form, to check Eq. 6 with; both views enter the cross-entropy."""

    def forward(self, plastic, view1, view2):
        features1, features2 = plastic(view1), plastic(view2)
        return features1.square().mean() + features2.square().mean(), (features1, features2)


@pytest.mark.parametrize("weight", [0.0, 0.5, 10.0])
def test_the_loss_is_eq_6_over_both_views(weight):
    def loss_by_hand(strategy):
        views = [strategy.mb_x, strategy.mb_x.flip(-1)]
        features = torch.cat([strategy.model.plastic(view) for view in views])
        [layer] = strategy.model.classifiers.layers
        labels = strategy.mb_y.repeat(2)
        supervised = cross_entropy(linear(features, layer.weight, layer.bias), labels)
        ours = features[:8].square().mean() + features[8:].square().mean()
        return ours + weight * supervised - strategy.loss

    probe = Probe(before_backward=loss_by_hand)
    strategy = one_step_strategy(
        ssl=MeanSquare(),
        supervised_weight=weight,
        views=lambda x: (x, x.flip(-1)),
        plugins=[probe],
    )
    strategy.train(one_step_stream().train_stream[0])
    [difference] = probe.seen["before_backward"]
    assert abs(difference.item()) < 1e-5


def test_without_any_weight_and_head_the_plastic_learner_stays():
    strategy = one_step_strategy(supervised_weight=0.0)
    before = state_of(strategy.model.plastic)
    strategy.train(one_step_stream().train_stream[0])
    assert_same_state(state_of(strategy.model.plastic), before)


# The average --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stable_learner_is_the_mean_of_the_plastic_snapshots(dtype):
    tasks = [(0, 1), (2, 3), (4, 5), (1, 2), (3, 4)]
    strategy = strategy_of(
        SmallCNN().to(dtype), lr=0.02, views=lambda x: (x.to(dtype),), train_epochs=2
    )
    snapshots = []
    for experience in tensors_stream(tasks, size=8, per_class=16).train_stream:
        strategy.train(experience)
        snapshots.append(copies(strategy.model.plastic.parameters()))
    assert strategy.model.num_averaged == len(tasks)
    for *past, stable in zip(*snapshots, strategy.model.stable.parameters(), strict=True):
        mean = torch.stack([p.double() for p in past]).mean(dim=0)
        # in bfloat16 no worse than rounding the exact mean once
        tolerance = 1e-5 if dtype == torch.float32 else 0.005
        torch.testing.assert_close(stable.double(), mean, rtol=tolerance, atol=tolerance / 100)
    assert not torch.equal(snapshots[0][0], snapshots[-1][0])


@pytest.mark.parametrize("make_head", [lambda: MoCoV2(queue_size=64), BYOL])
def test_the_average_of_the_momentum_encoder(make_head):
    head = make_head()
    head.momentum = 0.9
    strategy = strategy_of(SmallCNN(), ssl=head, average_source="momentum", lr=0.02)
    snapshots = []
    for experience in tensors_stream(size=8, per_class=16).train_stream:
        strategy.train(experience)
        snapshots.append(copies(head.momentum_encoder.parameters()))
    for *past, stable in zip(*snapshots, strategy.model.stable.parameters(), strict=True):
        torch.testing.assert_close(stable, torch.stack(past).mean(dim=0))
    plastic = next(strategy.model.plastic.parameters())
    assert not torch.allclose(snapshots[-1][0], plastic)


# Batch norm of the stable learner -----------------------------------------------------------------


def stable_after_one_step(**kwargs):
    strategy = one_step_strategy(SmallCNN(), **kwargs)
    experience = one_step_stream().train_stream[0]
    strategy.train(experience)
    images, _ = batch_of(experience)
    strategy.model.eval()
    return strategy, images, strategy.model.stable.conv(images)


def test_running_statistics_are_those_of_the_stable_forward_pass():
    strategy, _, convolved = stable_after_one_step()
    norm = strategy.model.stable.norm
    torch.testing.assert_close(norm.running_mean, 0.1 * convolved.mean(dim=(0, 2, 3)))
    variance = convolved.transpose(0, 1).flatten(1).var(dim=1)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * variance)


def test_recalibrated_statistics_are_those_of_the_experience():
    strategy, _, convolved = stable_after_one_step(bn_statistics="recalibrated")
    torch.testing.assert_close(
        strategy.model.stable.norm.running_mean, convolved.mean(dim=(0, 2, 3))
    )


def test_batch_statistics_are_those_of_the_test_batch():
    strategy, images, convolved = stable_after_one_step(bn_statistics="batch")
    norm = strategy.model.stable.norm
    normalized = batch_norm(convolved, None, None, norm.weight, norm.bias, training=True)
    features = nn.functional.adaptive_avg_pool2d(normalized.relu(), 2).flatten(1)
    torch.testing.assert_close(strategy.model.features(images), features)
    assert not torch.allclose(strategy.model(images)[:2], strategy.model(images[:2]))


def test_a_last_mini_batch_of_one_image_has_no_statistics():
    stream = tensors_stream(size=8, per_class=5)
    assert len(stream.test_stream[0].dataset) == 4
    strategy = strategy_of(SmallCNN(), bn_statistics="batch", eval_mb_size=3)
    strategy.train(stream.train_stream[0])
    with pytest.raises(ValueError, match=r"got 4 images in mini-batches of 3, the last of 1"):
        strategy.eval(stream.test_stream[:1])
    strategy.eval_mb_size = 4
    strategy.eval(stream.test_stream[:1])


def test_statistics_are_recalibrated_in_the_precision_of_evaluation():
    seen = set()
    strategy, *_ = stable_after_one_step(bn_statistics="recalibrated", precision="bf16")
    strategy.model.stable.conv.register_forward_hook(lambda m, i, output: seen.add(output.dtype))
    strategy.train(tensors_stream(size=8, per_class=5).train_stream[1])
    assert seen == {torch.bfloat16}


# Repeating a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ssl", [None, "mocov2", "byol", "simclr"])
def test_the_same_seed_gives_the_same_bits(ssl):
    def run(seed):
        seed_everything(seed)
        head = MoCoV2(queue_size=64) if ssl == "mocov2" else ssl
        strategy = strategy_of(SmallCNN(), ssl=head)
        strategy.train(tensors_stream(size=8, per_class=16).train_stream[:2])
        return state_of(strategy.model, strategy.ssl)

    assert_same_state(run(1), run(1))
    assert not torch.equal(run(1)["0.stable.conv.weight"], run(2)["0.stable.conv.weight"])


@pytest.mark.parametrize("batch_norm", [True, False])
def test_plugins_see_the_loader_when_an_experience_ends(batch_norm):
    probe = Probe(after_training_exp=lambda strategy: len(strategy.dataloader))
    strategy = strategy_of(SmallCNN(batch_norm=batch_norm), plugins=[probe])
    strategy.train(tensors_stream(per_class=8).train_stream)
    assert probe.seen["after_training_exp"] == [1, 1, 1]


def test_classifiers_of_a_state_lie_where_the_model_lies():
    strategy = strategy_of(SmallCNN())
    strategy.train(tensors_stream(per_class=8).train_stream)
    model = DualLearner(SmallCNN()).to("meta")
    model.load_state_dict(strategy.model.state_dict())
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert len(model.classifiers.keys) == 6
