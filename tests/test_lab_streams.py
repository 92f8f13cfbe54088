"""The streams of the lab scale: few images, and a validation split that is large enough."""

import functools

import pytest

from avalanche_dlcpa.streams import split_digits
from benchmarks.cells import Cell
from benchmarks.gaussian_training import StudiedTraining
from benchmarks.settings import SETTINGS

NUM_IMAGES = 20


@pytest.fixture(params=[("lab-cifar100-10", 100), ("lab-tiny-10", 50)])
def lab(request):
    """A lab setting and how many images of a class its trials hold out."""
    return request.param


@pytest.fixture
def num_held_out(lab):
    return lab[1]


@pytest.fixture
def make_stream(lab):
    """That of the lab setting, with digits in the place of its data."""
    of_setting = SETTINGS[lab[0]].make_stream
    return functools.partial(of_setting.func, split_digits, 5, NUM_IMAGES, **of_setting.keywords)


def test_a_setting_that_learns_all_images_has_none_for_trials():
    name = "lab-cifar100-10-all-images"
    assert SETTINGS[name].make_stream.args[-1] == 500
    match = f"hold out, got {name}, which learns all: take lab-cifar100-10"
    for asks in (
        lambda: Cell("naive", name, changes=(("lr", 0.1),), validation=True),
        lambda: Cell("loss-surface", name),
        lambda: StudiedTraining("naive", name, 0),
    ):
        with pytest.raises(ValueError, match=match):
            asks()
    Cell("naive", name), Cell("linear-probe", name)


def images_of(stream):
    """The bytes of all images by class."""
    found = {}
    for experience in stream:
        for x, y, *_ in experience.dataset:
            found.setdefault(y, []).append(x.numpy().tobytes())
    return found


def test_trials_train_on_as_many_images_as_runs_and_are_judged_on_others(make_stream, num_held_out):
    run, trial = make_stream(), make_stream(validation_fraction=0.1)
    trained, held_out = images_of(trial.train_stream), images_of(trial.valid_stream)
    assert {len(images) for images in trained.values()} == {NUM_IMAGES}
    assert {len(images) for images in held_out.values()} == {num_held_out}
    assert {len(images) for images in images_of(run.train_stream).values()} == {NUM_IMAGES}
    for label, images in trained.items():
        assert not set(images) & set(held_out[label])


def test_runs_and_trials_read_the_first_images_and_never_those_of_the_test_set(
    make_stream, num_held_out
):
    whole = images_of(split_digits(5).train_stream)
    run, trial = make_stream(), make_stream(validation_fraction=0.1)
    test = images_of(run.test_stream)
    for label, images in images_of(run.train_stream).items():
        assert images == whole[label][:NUM_IMAGES]
        read = images_of(trial.train_stream)[label] + images_of(trial.valid_stream)[label]
        assert sorted(read) == sorted(whole[label][: NUM_IMAGES + num_held_out])
        assert not set(read) & set(test[label])
