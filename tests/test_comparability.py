"""What a comparison must hold alike for all methods, and what the paper's settings are."""

import dataclasses

import pytest

from benchmarks.cells import Cell
from benchmarks.methods import METHODS
from benchmarks.settings import ORDERS, SCALES, SETTINGS, at_scale
from benchmarks.training import Training

TWIN = "digits-cifar100-10"
PAPERS = [name for name in SETTINGS if not name.startswith(("lab", "digits"))]
CAN_BE_GIVEN_A_LOSS = [n for n, m in METHODS.items() if not (m.draws_views or m.needs_task_labels)]


@pytest.fixture
def asked_for(monkeypatch):
    """What trainings on the digits ask of their stream, which they get."""
    setting, asked = SETTINGS[TWIN], []

    def make_stream(**options):
        asked.append(options)
        return setting.make_stream(**options)

    monkeypatch.setitem(SETTINGS, TWIN, dataclasses.replace(setting, make_stream=make_stream))
    return asked


def prepare(method, *changes, **options):
    cell = Cell(method, TWIN, 0, changes, **options)
    return Training(cell, cell.hyperparameters, dataset_root=None, device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_who_draws_no_views_gets_the_streams_augmentation_and_nobody_both(method, asked_for):
    prepare(method)
    [asked] = asked_for
    assert asked["augment"] == (not method.startswith("dlcpa"))
    assert asked["validation_fraction"] == 0.0
    assert asked["task_labels"] == (method == "packnet" or method.endswith("-heads"))


@pytest.mark.parametrize("method", CAN_BE_GIVEN_A_LOSS)
def test_views_of_a_loss_that_is_given_take_the_place_of_the_augmentation(method, asked_for):
    prepare(method, ("ssl", "mocov2"))
    assert [asked["augment"] for asked in asked_for] == [False]


def test_a_trial_alone_holds_images_out_and_is_judged_on_them():
    run = prepare("naive")
    trial = Training(
        Cell("naive", TWIN, 0, validation=True), {"lr": 0.1}, dataset_root=None, device="cpu"
    )
    images = [[len(e.dataset) for e in training.train_stream] for training in (run, trial)]
    assert images[0] == [80] * 5  # two classes of 40
    assert images[1] == [72] * 3  # and a tenth less, in as many tasks as trials learn
    assert (run._judged_on, trial._judged_on) == ("test_stream", "valid_stream")


@pytest.mark.parametrize("name", PAPERS)
def test_a_setting_of_the_paper_has_its_budget(name):
    setting = SETTINGS[name]
    assert (setting.epochs, setting.batch_size) == (100, 32)
    assert setting.views == "PaperViews()"
    widths = [p.shape[0] for p in setting.make_network(2).parameters()]
    assert widths[0] == 64


@pytest.mark.parametrize("scale", SCALES)
def test_the_five_orders_are_five(scale):
    names = [at_scale(f"cifar100-10-order{n}", scale) for n in ORDERS]
    if scale == "digits":
        orders = [tuple(SETTINGS[name].make_stream().classes_order) for name in names]
    else:  # the data lies not everywhere; the streams' own tests see that the seed makes the order
        orders = [SETTINGS[name].make_stream.keywords["class_order_seed"] for name in names]
    assert len(set(orders)) == 5


@pytest.mark.parametrize(("method", "weighs_labels"), [("der", False), ("der++", True)])
def test_der_weighs_no_labels_of_its_buffer(method, weighs_labels):
    assert (prepare(method).strategy.beta > 0) == weighs_labels
