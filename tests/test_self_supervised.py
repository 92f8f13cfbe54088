import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from avalanche_dlcpa.self_supervised import (
    HEADS,
    MoCoV2,
    SelfSupervisedHead,
    _solo_learn,
    make_head,
    momentum_copy,
    momentum_update_,
    multilayer_perceptron,
)
from avalanche_dlcpa.self_supervised.queue import enqueue_, random_unit_columns_

B, D = 12, 16


def plastic_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, D), nn.BatchNorm1d(D), nn.ReLU())


def built(name, **arguments):
    plastic = plastic_network()
    head = HEADS[name](**arguments)
    head.build(plastic, D)
    head.before_training_exp()
    return plastic, head


def views():
    return torch.rand(B, 3, 8, 8), torch.rand(B, 3, 8, 8)


def cosine(a, b):
    return (F.normalize(a, dim=1) * F.normalize(b, dim=1)).sum(dim=1)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_trains_the_plastic_learner_and_its_own_layers(name):
    arguments = {"queue_size": 64} if name in ("mocov2", "nnclr") else {}
    plastic, head = built(name, **arguments)
    loss, features = head(plastic, *views())
    loss.backward()

    assert loss.ndim == 0
    assert torch.isfinite(loss)
    assert len(features) == (1 if name == "mocov2" else 2)
    assert all(f.shape == (B, D) and f.requires_grad for f in features)
    trained = [p for p in [*plastic.parameters(), *head.parameters()] if p.requires_grad]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)
    frozen = [p for p in head.parameters() if not p.requires_grad]
    assert all(p.grad is None for p in frozen)


@pytest.mark.parametrize("name", ["simclr", "vicreg", "barlow", "simsiam", "byol"])
def test_losses_of_two_equal_parts_do_not_depend_on_the_order_of_the_views(name):
    plastic, head = built(name)
    head.eval(), plastic.eval()  # batch norm would see the views in another order
    view1, view2 = views()
    torch.testing.assert_close(head(plastic, view1, view2)[0], head(plastic, view2, view1)[0])


def test_simclr_is_the_nt_xent_loss():
    plastic, head = built("simclr")
    view1, view2 = views()
    loss, _ = head(plastic, view1, view2)
    z = torch.cat([head.projector(plastic(view1)), head.projector(plastic(view2))])
    similarity = cosine(
        z.unsqueeze(1).flatten(0, 1).repeat_interleave(2 * B, 0), z.repeat(2 * B, 1)
    )
    similarity = similarity.view(2 * B, 2 * B) / 0.5
    similarity.fill_diagonal_(-torch.inf)
    partner = (torch.arange(2 * B) + B) % (2 * B)
    torch.testing.assert_close(loss, F.cross_entropy(similarity, partner))


def test_byol_is_the_distance_to_the_momentum_projection_of_the_other_view():
    plastic, head = built("byol")
    view1, view2 = views()
    loss, _ = head(plastic, view1, view2)

    def predicted(view):
        return head.predictor(head.projector(plastic(view)))

    def target(view):
        return head.momentum_projector(head.momentum_encoder(view))

    expected = 4 - 2 * (
        cosine(predicted(view1), target(view2)) + cosine(predicted(view2), target(view1))
    )
    torch.testing.assert_close(loss, expected.mean(), rtol=1e-4, atol=1e-5)


def test_byol_moves_encoder_and_projector_after_the_update():
    plastic, head = built("byol", momentum=0.75)
    pairs = [(plastic, head.momentum_encoder), (head.projector, head.momentum_projector)]
    with torch.no_grad():  # what an optimizer step does
        for online, _ in pairs:
            for parameter in online.parameters():
                parameter.add_(torch.rand_like(parameter))
    before = [copy.deepcopy(momentum) for _, momentum in pairs]
    head.after_update(plastic)
    for (online, momentum), old in zip(pairs, before, strict=True):
        three = zip(momentum.parameters(), old.parameters(), online.parameters(), strict=True)
        for moved, start, end in three:
            torch.testing.assert_close(moved, 0.75 * start + 0.25 * end, check_stride=False)


def test_simsiam_stops_the_gradient_at_the_projection():
    plastic, head = built("simsiam")
    view1, view2 = views()
    loss, (features1, features2) = head(plastic, view1, view2)
    projection1, projection2 = head.projector(features1), head.projector(features2)
    expected = -0.5 * (
        cosine(head.predictor(projection1), projection2)
        + cosine(head.predictor(projection2), projection1)
    )
    torch.testing.assert_close(loss, expected.mean(), rtol=1e-4, atol=1e-5)


def test_barlow_twins_is_the_distance_of_the_cross_correlation_from_the_identity():
    plastic, head = built("barlow")
    view1, view2 = views()
    loss, _ = head(plastic, view1, view2)
    z1, z2 = (head.projector(plastic(view)) for view in (view1, view2))
    z1, z2 = ((z - z.mean(0)) / torch.sqrt(z.var(0, unbiased=False) + 1e-5) for z in (z1, z2))
    correlation = z1.T @ z2 / B
    on = (torch.diagonal(correlation) - 1).pow(2).sum()
    off = correlation.pow(2).sum() - torch.diagonal(correlation).pow(2).sum()
    torch.testing.assert_close(loss, 0.025 * (on + 5e-3 * off), rtol=1e-4, atol=1e-4)


def test_vicreg_weighs_invariance_variance_and_covariance():
    plastic, head = built("vicreg", hidden_features=32, out_features=24)
    view1, view2 = views()
    loss, _ = head(plastic, view1, view2)
    z1, z2 = (head.projector(plastic(view)) for view in (view1, view2))
    variance = sum(F.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean() for z in (z1, z2))
    covariance = 0
    for z in (z1, z2):
        matrix = torch.cov(z.T)
        covariance += (matrix.pow(2).sum() - torch.diagonal(matrix).pow(2).sum()) / 24
    expected = 25 * F.mse_loss(z1, z2) + 25 * variance + covariance
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


def test_mocov2_moves_the_encoder_first_and_enqueues_after_the_update():
    plastic, head = built("mocov2", queue_size=20, momentum=0.9)
    with torch.no_grad():
        for parameter in plastic.parameters():
            parameter.add_(0.5)
    expected = copy.deepcopy(head.momentum_encoder)
    with torch.no_grad():
        for mean, now in zip(expected.parameters(), plastic.parameters(), strict=True):
            mean.mul_(0.9).add_(now, alpha=0.1)
    view1, view2 = views()
    queue = head.queue.clone()
    loss, (features,) = head(plastic, view1, view2)
    keys = F.normalize(expected(view2), dim=1)
    logits = torch.cat([cosine(features, keys).unsqueeze(1), F.normalize(features) @ queue], dim=1)
    torch.testing.assert_close(loss, F.cross_entropy(logits / 0.07, torch.zeros(B, dtype=int)))

    loss.backward()
    assert torch.equal(head.queue, queue)  # the backward pass needed it as it was
    head.after_update(plastic)
    torch.testing.assert_close(head.queue[:, :B].T, keys)
    assert torch.equal(head.queue[:, B:], queue[:, B:])
    head.after_training_exp()
    assert not head.queue.any()
    assert head._keys is None


def test_nnclr_contrasts_with_the_nearest_of_the_queue():
    plastic, head = built("nnclr", queue_size=40, out_features=8)
    view1, view2 = views()
    loss, (features1, features2) = head(plastic, view1, view2)
    z1, z2 = head.projector(features1), head.projector(features2)
    expected = 0
    for z, other in ((z1, z2), (z2, z1)):
        nearest = torch.stack([head.queue[:, int((z[i] @ head.queue).argmax())] for i in range(B)])
        prediction = F.normalize(head.predictor(other), dim=1)
        logits = nearest @ prediction.T / 0.2
        expected += F.cross_entropy(logits, torch.arange(B)) / 2
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    head.after_update(plastic)
    torch.testing.assert_close(head.queue[:, :B].T, F.normalize(z1.detach(), dim=1))


def test_a_queue_is_refreshed_at_each_experience():
    _, head = built("mocov2", queue_size=50)
    first = head.queue.clone()
    head.before_training_exp()
    torch.testing.assert_close(head.queue.norm(dim=0), torch.ones(50))
    assert (head.queue - first).abs().max() > 0.1
    assert head.queue_pointer == 0


@pytest.mark.parametrize("name", ["mocov2", "nnclr"])
def test_a_column_of_a_queue_lies_in_one_piece_and_its_numbers_do_not_depend_on_that(name):
    _, head = built(name, queue_size=50)
    again = copy.deepcopy(head).to("cpu")
    again.load_state_dict(head.state_dict())
    assert again.queue.T.is_contiguous()
    torch.manual_seed(3)
    again.before_training_exp()
    torch.manual_seed(3)
    assert torch.equal(again.queue, F.normalize(torch.randn(again.queue.shape), dim=0))


def test_a_queue_takes_any_batch_size_and_wraps_round():
    queue, pointer = random_unit_columns_(torch.empty(4, 10)), torch.tensor(0)
    pushed = []
    for size in (3, 4, 5, 10, 1):
        keys = torch.rand(size, 4)
        pushed += list(keys)
        enqueue_(queue, pointer, keys)
    newest = torch.stack(pushed[-10:])
    order = [(int(pointer) + i) % 10 for i in range(10)]
    assert torch.equal(queue[:, order].T, newest)


def test_more_keys_than_columns_are_refused():
    with pytest.raises(ValueError, match="Expected `queue_size` to be at least the batch size 5"):
        enqueue_(torch.zeros(2, 4), torch.tensor(0), torch.zeros(5, 2))


def test_momentum_update_moves_parameters_and_keeps_buffers():
    source = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    target = momentum_copy(source)
    source(torch.rand(5, 2))
    before = copy.deepcopy(target.state_dict())
    with torch.no_grad():
        source[0].weight.add_(1)
    momentum_update_(target, source, momentum=0.75)
    torch.testing.assert_close(target[0].weight, before["0.weight"] + 0.25)
    assert torch.equal(target[1].running_mean, before["1.running_mean"])
    assert not any(p.requires_grad for p in target.parameters())


@pytest.mark.parametrize("name", ["mocov2", "byol"])
def test_a_momentum_encoder_that_could_not_move_is_refused(name):
    message = r"at least 32 bits for a momentum encoder, .* got torch.bfloat16 for .*'bf16'"
    with pytest.raises(ValueError, match=message):
        HEADS[name]().build(plastic_network().bfloat16(), D)
    HEADS[name]().build(plastic_network().double(), D)


def test_perceptrons_have_the_layers_that_they_are_asked_for():
    kinds = [type(layer).__name__ for layer in multilayer_perceptron([2, 3, 4], last_norm=True)]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    for affine in (False, True):  # SimSiam's and NNCLR's
        last = multilayer_perceptron([2, 3, 4], last_norm=True, last_affine=affine)[-1]
        assert last.affine == affine
    plain = multilayer_perceptron([2, 3, 4], bias=False, batch_norm=False)
    assert [type(layer).__name__ for layer in plain] == ["Linear", "ReLU", "Linear"]
    assert plain[0].bias is None
    assert [p.shape for p in plain.parameters()] == [(3, 2), (4, 3)]


def test_heads_by_name():
    assert isinstance(make_head("mocov2"), MoCoV2)
    head = MoCoV2()
    assert make_head(head) is head
    assert make_head(None) is None
    with pytest.raises(ValueError, match=r"one of mocov2, byol.*got 'mocov'.*mean 'mocov2'"):
        make_head("mocov")
    with pytest.raises(
        TypeError, match="Expected `ssl` to be a name, a SelfSupervisedHead or None"
    ):
        make_head(3)
    with pytest.raises(NotImplementedError):
        SelfSupervisedHead()(plastic_network(), *views())


def test_a_missing_solo_learn_names_the_command_that_installs_it(monkeypatch):
    _solo_learn._load_module.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps solo-learn==1\.0\.2"):
        make_head("byol")


def test_a_solo_learn_without_the_loss_names_the_command_too(monkeypatch, tmp_path):
    _solo_learn._load_module.cache_clear()
    monkeypatch.setattr(_solo_learn, "_losses_folder", lambda: tmp_path)
    with pytest.raises(ImportError, match=r"'byol'.*pip install --no-deps solo-learn==1.0.2"):
        make_head("byol")


def test_the_losses_leave_no_package_named_solo_behind():
    import sys

    make_head("simclr")
    assert "solo" not in sys.modules
