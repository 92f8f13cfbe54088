"""The benchmark of the throughput: what it times is what training does, and it changes nothing."""

import json
import re
import time
from collections import Counter

import pytest
import torch
from helpers import Probe, SmallCNN, nc_stream, small_head, state_of, strategy_of

from avalanche_dlcpa.self_supervised import HEADS
from benchmarks import throughput, timing
from benchmarks.growth import with_classes
from benchmarks.phases import PHASES, REST, Phases, watched
from benchmarks.throughput import FIGURES, TABLE, main, measure, table
from benchmarks.throughput_setup import images_per_class, one_experience
from benchmarks.timing import EpochTimer, seconds_of_passes, unavoidable_passes


def count_images(strategy, counts):
    """Count the images that pass through each network, and those that come back."""

    def forward(name):
        return lambda module, inputs, output: counts.update({name: len(inputs[0])})

    def backward(module, gradients, output_gradients):
        counts["backward"] += len(output_gradients[0])

    networks = {"plastic": strategy.model.plastic, "stable": strategy.model.stable}
    if getattr(strategy.ssl, "momentum_encoder", None) is not None:
        networks["momentum"] = strategy.ssl.momentum_encoder
    handles = [m.register_forward_hook(forward(name)) for name, m in networks.items()]
    handles.append(strategy.model.plastic.conv.register_full_backward_hook(backward))
    return handles


@pytest.mark.parametrize("ssl", [None, *HEADS])
def test_the_unavoidable_passes_are_those_of_training(ssl):
    training, alone, states = Counter(), Counter(), []

    def run_passes(strategy):
        for handle in handles:
            handle.remove()
        before = state_of(strategy.model, strategy.ssl)
        assert seconds_of_passes(strategy, 2) > 0
        states.append((before, state_of(strategy.model, strategy.ssl)))
        run = unavoidable_passes(strategy)
        count_images(strategy, alone)
        run()
        states.append([p.grad for p in strategy.model.plastic.parameters()])

    probe = Probe(after_training_epoch=run_passes)
    strategy = strategy_of(SmallCNN(), ssl=small_head(ssl), plugins=[probe])
    strategy.copy_suits = strategy.model_suits = True  # which passes would look for, once
    handles = count_images(strategy, training)
    strategy.train(nc_stream(per_class=8).train_stream[0])  # one iteration
    assert alone == training
    (before, after), gradients = states
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert gradients == [None] * len(gradients)


def test_passes_come_after_each_iteration_and_count_as_none_of_it(monkeypatch):
    events = []

    def pass_for_long(strategy, count):
        events.append(f"{count} pass")
        time.sleep(0.2)
        return 0.2

    monkeypatch.setattr(timing, "seconds_of_passes", pass_for_long)
    stopwatch = EpochTimer(rounds=2)
    probe = Probe(before_training_iteration=lambda strategy: events.append("iteration"))
    strategy = strategy_of(SmallCNN(), plugins=[stopwatch, probe], train_epochs=stopwatch.epochs)
    strategy.train(nc_stream(per_class=16).train_stream[0])
    assert events == ["iteration", "1 pass"] * 6 + ["iteration"] * 2  # 4 epochs of 2, one watched
    assert stopwatch.passes_ms == [pytest.approx(200)] * 2
    assert len(stopwatch.iteration_ms) == 2
    assert max(stopwatch.iteration_ms) < 200


@pytest.mark.parametrize("batch_size", [1, 7, 10, 16, 32, 100])
def test_every_mini_batch_is_full(batch_size):
    num_images = len(one_experience(None, 9, batch_size).train_stream[0].dataset)
    assert num_images % batch_size == 0
    assert num_images >= min(9 * batch_size, 1000)


def test_a_batch_size_beyond_all_images_is_refused():
    with pytest.raises(ValueError, match="125 images of each of 10 classes fill, got 2048"):
        images_per_class(1, 2048, most=125)


def test_every_class_of_the_growth_has_an_image():
    how = {"head": "none", "network": "resnet18", "width": 1, "layout": "contiguous"}
    (row,) = with_classes([30], iterations=1, rounds=1, batch_size=10, **how)
    assert row["classifier_bytes"] == 30 * (8 + 1) * 4  # of as many classes as were seen
    with pytest.raises(ValueError, match=r"at most 1250 classes, .* of 10, got 1300"):
        with_classes([1300], iterations=1, rounds=1, batch_size=10, **how)


def test_a_phase_within_another_takes_its_time_off_it():
    phases = Phases()
    inner = phases.timed(lambda: time.sleep(0.2), "views")
    outer = phases.timed(lambda: (time.sleep(0.1), inner(), phases.become(REST)), "alignment")
    start = time.perf_counter()
    phases.begin()
    outer()
    phases.credit()
    total = time.perf_counter() - start
    assert phases.seconds["views"] >= 0.2
    assert 0.1 <= phases.seconds["alignment"] <= total - 0.2
    assert sum(phases.shares().values()) == pytest.approx(1)


def test_watching_ends_without_a_trace():
    strategy = strategy_of(SmallCNN(), ssl=small_head("byol"))
    owners = (strategy, strategy.model.plastic, strategy.ssl, strategy.optimizer)
    names = [set(vars(owner)) for owner in owners]
    loader = strategy.dataloader
    with watched(strategy, Phases()):
        assert strategy.dataloader is not loader
        assert [set(vars(owner)) for owner in owners] != names
    assert [set(vars(owner)) for owner in owners] == names
    assert strategy.dataloader is loader


def test_the_quick_form_measures_everything(tmp_path, capsys):
    path = tmp_path / "throughput.json"
    words = ["--quick", "--heads", "mocov2", "--precisions", "float32", "bf16", "--out", str(path)]
    main(words)
    result = json.loads(path.read_text())
    assert [row["precision"] for row in result["configurations"]] == ["float32", "bf16"]
    for row in result["configurations"]:
        assert all(row[name] > 0 for name in FIGURES)
        assert list(row["shares"]) == list(PHASES)
        assert all(share > 0 for share in row["shares"].values())
        assert sum(row["shares"].values()) == pytest.approx(1)
        rounds = row["rounds"]
        assert len(rounds["iteration_ms"]) == len(rounds["passes_ms"]) == 2
        assert min(rounds["iteration_ms"]) <= row["iteration_ms"] <= max(rounds["iteration_ms"])
        assert row["images_per_second"] == pytest.approx(8000 / row["iteration_ms"])
    growth = result["growth"]
    assert [row["experience"] for row in growth] == [1, 2, 3]
    assert [row["classes"] for row in growth] == [10, 20, 30]
    assert all(row["iteration_ms"] > 0 and row["first_ms"] > 0 for row in growth)
    assert len({row["other_bytes"] for row in growth}) == 1
    one = growth[0]["classifier_bytes"]
    assert [row["classifier_bytes"] for row in growth] == [one, 2 * one, 3 * one]
    of_classes = result["classes"]
    assert [row["classes"] for row in of_classes] == [10, 20]
    assert [row["classifier_bytes"] for row in of_classes] == [one, 2 * one]
    assert {row["other_bytes"] for row in of_classes} == {growth[0]["other_bytes"]}
    assert result["provenance"]["command"].startswith("python -m benchmarks.throughput --quick")
    printed = capsys.readouterr().out
    assert table(result["configurations"], (*TABLE, *FIGURES)) in printed


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--batch-sizes", "64"], "at most 960 classes, .* mini-batches of 64, got 1000"),
        (["--batch-sizes", "256", "--classes"], "125 images of each .* fill, got 256"),
        (["--classes", "1300", "--growth", "0"], "at most 1120 classes, .* of 32, got 1300"),
    ],
)
def test_too_few_images_for_what_grows_are_told_before_anything_is_measured(
    words, what, tmp_path, capsys
):
    path = tmp_path / "throughput.json"
    with pytest.raises(SystemExit):
        main([*words, "--out", str(path)])
    assert re.search(what, capsys.readouterr().err)
    assert not path.exists()


def test_a_configuration_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    def out_of_memory(**options):
        if options["head"] == "byol":
            raise MemoryError("1 GB too little")
        return measure(**options)

    monkeypatch.setattr(throughput, "measure", out_of_memory)
    path = tmp_path / "throughput.json"
    words = ["--quick", "--heads", "byol", "simclr", "--precisions", "float32", "--out", str(path)]
    with pytest.raises(SystemExit, match="but not: byol resnet18 4 8 float32 contiguous"):
        main([*words, "--growth", "0", "--classes"])
    captured = capsys.readouterr()
    assert "1 GB too little" in captured.err
    [row] = json.loads(path.read_text())["configurations"]
    assert f"{row['iteration_ms']:.1f} ms an iteration" in captured.out
