"""Losses that are not finite on a device that nobody waits for: seen at the end of the epoch."""

import pytest
import torch
from helpers import (
    Probe,
    SmallCNN,
    assert_same_state,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)

from avalanche_dlcpa import NonFiniteLossError
from avalanche_dlcpa.checkpoint import CheckpointFolder
from avalanche_dlcpa.loss_watch import LossWatch


def watching(strategy):
    """Do as on a GPU."""
    strategy._now.watch = LossWatch(torch.device("cpu"))
    return state_of(strategy.model) | momenta(strategy)


def momenta(strategy):
    parameters = strategy.optimizer.state.items()
    return {f"momentum {i}": s["momentum_buffer"].clone() for i, (_, s) in enumerate(parameters)}


def spoil(strategy):
    if (strategy.clock.train_exp_epochs, strategy.clock.train_epoch_iterations) == (2, 1):
        strategy.mbatch[0][3, 0, 4, 4] = float("nan")


def broken(**kwargs):
    seed_everything()
    probe = Probe(before_training_epoch=watching, before_training_iteration=spoil)
    strategy = strategy_of(
        SmallCNN(), ssl=small_head("simclr"), plugins=[probe], train_epochs=4, momentum=0.9,
        lr=0.01, train_mb_size=8, **kwargs,
    )  # fmt: skip
    return strategy, probe, tensors_stream(size=8, per_class=20).train_stream[0]


def test_a_corrupt_image_sends_back_to_the_start_of_its_epoch():
    strategy, probe, experience = broken(views=lambda x: (x, x.flip(-1)))
    match = (
        r"finite loss, got NaN or infinity in experience 0, epoch 2, iteration 1:.*start of that"
    )
    with pytest.raises(NonFiniteLossError, match=match):
        strategy.train(experience)
    assert len(probe.seen["before_training_iteration"]) == 3 * 5  # the epoch went on to its end
    now = state_of(strategy.model) | momenta(strategy)
    assert "momentum 0" in now
    assert_same_state(now, probe.seen["before_training_epoch"][2])


def test_a_classifier_loss_is_named():
    strategy, _, experience = broken()

    def spoil_stable(strategy):
        if (strategy.clock.train_exp_epochs, strategy.clock.train_epoch_iterations) == (1, 2):
            next(strategy.model.stable.parameters()).data.fill_(float("nan"))

    strategy.plugins.append(Probe(after_update=spoil_stable))
    match = r"finite classifier loss, got NaN or infinity in experience 0, epoch 1, iteration 2:"
    with pytest.raises(NonFiniteLossError, match=match):
        strategy.train(experience)


def test_no_checkpoint_is_written_after_it(tmp_path):
    strategy, _, experience = broken(views=lambda x: (x, x.flip(-1)))
    strategy.resume(tmp_path, every_minutes=0)  # after every iteration
    with pytest.raises(NonFiniteLossError, match="epoch 2, iteration 1:"):
        strategy.train(experience)
    state = CheckpointFolder(tmp_path).read(lambda state: None)
    assert (state["position"]["epoch"], state["position"]["iteration"]) == (2, 1)
    assert all(tensor.isfinite().all() for tensor in state["learned"]["model"].values())


def test_after_it_one_may_evaluate_with_checkpoints(tmp_path):
    strategy, _, experience = broken()
    strategy.resume(tmp_path)
    with pytest.raises(NonFiniteLossError):
        strategy.train(experience)
    strategy.eval([experience])  # everything is sound again, and a checkpoint is written


def test_sound_losses_are_only_looked_at():
    def train(hook):
        seed_everything()
        strategy = strategy_of(
            SmallCNN(), ssl=small_head("byol"), plugins=[Probe(**hook)], train_epochs=2
        )
        for experience in tensors_stream(size=8, per_class=20).train_stream:
            strategy.train(experience)
        return state_of(strategy.model, strategy.ssl)

    assert_same_state(train({"before_training_epoch": watching}), train({}))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_the_first_failure_of_an_epoch_is_remembered(value):
    watch = LossWatch(torch.device("cpu"))
    good, bad = torch.tensor(1.0), torch.tensor(float(value), requires_grad=True)
    watch.begin(10)
    for losses in ((good, good), (good, bad), (bad, bad)):
        for loss, name in zip(losses, ("loss", "classifier loss"), strict=True):
            watch.note(loss, name)
    assert watch.first_failure() == ("classifier loss", 11)
    watch.begin(0)
    assert watch.first_failure() is None
    watch.note(bad, "loss")
    watch.note(bad, "classifier loss")
    assert watch.first_failure() == ("loss", 0)
