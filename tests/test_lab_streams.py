"""The streams of the lab scale: few images, and a validation split that is large enough."""

import functools

import pytest

from avalanche_dlcpa.streams import split_digits
from benchmarks.settings import SETTINGS, VALIDATION_IMAGES

NUM_IMAGES = 20


@pytest.fixture
def make_stream():
    """That of a lab setting, with digits in the place of its data."""
    lab = SETTINGS["lab-cifar100-10"].make_stream
    few_images = lab.func
    return functools.partial(few_images, split_digits, 5, NUM_IMAGES)


def images_of(stream):
    """The bytes of all images by class."""
    found = {}
    for experience in stream:
        for x, y, *_ in experience.dataset:
            found.setdefault(y, []).append(x.numpy().tobytes())
    return found


def test_trials_train_on_as_many_images_as_runs_and_are_judged_on_others(make_stream):
    run, trial = make_stream(), make_stream(validation_fraction=0.1)
    trained, held_out = images_of(trial.train_stream), images_of(trial.valid_stream)
    assert {len(images) for images in trained.values()} == {NUM_IMAGES}
    assert {len(images) for images in held_out.values()} == {VALIDATION_IMAGES}
    assert {len(images) for images in images_of(run.train_stream).values()} == {NUM_IMAGES}
    for label, images in trained.items():
        assert not set(images) & set(held_out[label])


def test_runs_and_trials_read_the_first_images_and_never_those_of_the_test_set(make_stream):
    whole = images_of(split_digits(5).train_stream)
    run, trial = make_stream(), make_stream(validation_fraction=0.1)
    test = images_of(run.test_stream)
    for label, images in images_of(run.train_stream).items():
        assert images == whole[label][:NUM_IMAGES]
        read = images_of(trial.train_stream)[label] + images_of(trial.valid_stream)[label]
        assert sorted(read) == sorted(whole[label][: NUM_IMAGES + VALIDATION_IMAGES])
        assert not set(read) & set(test[label])
