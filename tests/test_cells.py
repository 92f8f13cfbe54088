import json

import pytest
from synthetic_results import make_result

from benchmarks import cells, hyperparameters
from benchmarks.cells import Cell, check_same, grid, parse_changes, read_result
from benchmarks.hyperparameters import hyperparameters_of
from benchmarks.settings import SETTINGS, at_scale


def result_of(cell):
    own = {"hyperparameters": cell.hyperparameters, "batch_size": cell.batch_size}
    return make_result(cell.method, cell.setting, cell.seed, changes=dict(cell.changes), **own)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("dlcpa-mocov", "digits"),
            "Expected a method by name, got 'dlcpa-mocov'. Did you",
        ),
        (("ewc", "digit"), "Expected a setting by name, got 'digit'. Did you mean 'digits'?"),
        (("xyz", "digits"), "got 'xyz'. There are stl, "),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(names, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Cell(*names)


def test_every_cell_of_a_grid_has_a_file_of_its_own():
    changes = [{}, {"supervised_weight": 0.1}, {"supervised_weight": 1.0}]
    made = grid(["dlcpa-mocov2", "naive"], ["digits", "lab-cifar100"], [0, 1], changes)
    trials = [Cell(c.method, c.setting, c.seed, c.changes, validation=True) for c in made]
    assert len({cell.name for cell in [*made, *trials]}) == 2 * 2 * 2 * 2 * 3
    assert [cell.seed for cell in made] == sorted(cell.seed for cell in made)  # seed by seed


def test_the_command_line_of_a_cell_gives_the_cell_again():
    cell = Cell("ewc", "digits", 3, (("lr", 0.01), ("ssl", "mocov2")), validation=True)
    words = cell.words
    changes = parse_changes([word[6:] for word in words if word.startswith("--set=")])
    assert tuple(sorted(changes.items())) == cell.changes
    assert words[:6] == ["--method", "ewc", "--setting", "digits", "--seed", "3"]
    assert "--validation" in words


def test_equal_values_name_one_file():
    names = {Cell("ewc", "digits", 0, (("strength", value),)).name for value in (1, 1.0)}
    assert names == {"digits_ewc_strength=1_seed0"}
    assert Cell("ewc", "digits", 0, (("strength", 0.5),)).name == "digits_ewc_strength=0.5_seed0"


@pytest.mark.parametrize("word", ["lr", "=0.1", "lr="])
def test_a_change_without_name_or_value_is_refused(word):
    with pytest.raises(ValueError, match=f"Expected changes such as .*got '{word}'"):
        parse_changes([word])


def test_changes_come_on_top_of_the_chosen_hyperparameters():
    chosen = hyperparameters_of("dlcpa-mocov2", "digits")
    changed = Cell("dlcpa-mocov2", "digits", changes=(("lr", 9.0),)).hyperparameters
    assert changed == {**chosen, "lr": 9.0}
    trial = Cell("dlcpa-mocov2", "digits", changes=(("lr", 9.0),), validation=True)
    assert trial.hyperparameters == {"lr": 9.0}


def test_a_setting_takes_the_hyperparameters_of_that_on_which_it_was_tuned():
    assert SETTINGS["cifar100-20"].tuned_on == "cifar100-10"
    for method in ("dlcpa-mocov2", "gem"):
        of_20 = hyperparameters_of(method, "cifar100-20")
        assert of_20 == hyperparameters_of(method, "cifar100-10")
    assert hyperparameters_of("dlcpa-mocov2", "tiny-25")["lr"] == 0.02  # the paper's table


@pytest.mark.parametrize(
    ("method", "size"), [("gem", 64), ("der", 32), ("dlcpa-e", 512), ("dlcpa-byol-gaussian", 512)]
)
def test_batch_sizes_are_those_of_the_papers_table(method, size):
    assert Cell(method, "tiny-10").batch_size == Cell(method, "tiny-25").batch_size == size
    assert Cell(method, "cifar100-10").batch_size == Cell(method, "lab-tiny-10").batch_size == 32


def test_hyperparameters_that_nobody_chose_are_asked_for():
    message = "none, published or chosen: run `python -m benchmarks.tune --setting cifar100-10 --me"
    with pytest.raises(ValueError, match=message):
        hyperparameters_of("ewc", "cifar100-20")
    with pytest.raises(
        ValueError, match="got none, published or chosen: name them with --set, lr "
    ):
        hyperparameters_of("gem", "lab-cifar100")  # which has no grid for it


def test_where_nothing_was_chosen_changes_with_a_learning_rate_are_enough(monkeypatch, tmp_path):
    changes = (("lr", 0.05), ("strength", 3.0))
    own = Cell("mas", "cifar100-10", 0, changes)
    monkeypatch.setattr(hyperparameters, "CHOSEN", tmp_path / "none.json")
    assert own.hyperparameters == {"lr": 0.05, "strength": 3.0}
    with pytest.raises(ValueError, match="none, published or chosen"):
        Cell("mas", "cifar100-10", 0, changes[1:]).hyperparameters  # noqa: B018
    published = Cell("gem", "cifar100-10", 0, changes[:1]).hyperparameters
    assert published == {"lr": 0.05, "memory_strength": 0.5}


def test_with_a_learning_rate_a_loss_of_which_nothing_was_chosen_has_its_defaults():
    changes = (("lr", 0.05), ("ssl", "vicreg"))
    assert Cell("naive", "cifar100-10", 0, changes).hyperparameters == dict(changes)
    with pytest.raises(ValueError, match="none, published or chosen"):
        Cell("naive", "cifar100-10", 0, changes[1:]).hyperparameters  # noqa: B018


def test_a_trial_learns_no_more_experiences_than_there_are():
    for setting, number in (("digits-cifar100-5", 2), ("lab-cifar100-10", 3)):
        assert Cell("naive", setting, changes=(("lr", 0.1),), validation=True).num_experiences == (
            number
        )


@pytest.mark.parametrize("scale", ["paper", "lab", "digits"])
def test_every_setting_has_a_twin_at_every_scale(scale):
    for name in SETTINGS:
        if not name.startswith(("lab", "digits")):
            twin = SETTINGS[at_scale(name, scale)]
            assert (twin.num_experiences == SETTINGS[name].num_experiences) or scale == "digits"
    with pytest.raises(ValueError, match=r"got 'pocket'\. There are paper, lab, digits"):
        at_scale("tiny-10", "pocket")


def test_a_result_cut_short_is_told_from_one_of_another_version(tmp_path):
    cell = Cell("naive", "digits")
    path = cells.result_path(cell, tmp_path)
    text = json.dumps(result_of(cell))
    path.write_text(text)
    assert read_result(path) == result_of(cell)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"digits_naive_seed0.json to hold a whole result"):
        read_result(path)
    path.write_text(json.dumps({**result_of(cell), "format": 1}))
    with pytest.raises(ValueError, match="to have format 3, got 1: it is of another version"):
        read_result(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"to be a result of benchmarks\.run, got another JSON"):
        read_result(path)


@pytest.mark.parametrize(
    "name",
    ["setting_title", "hyperparameters", "epochs", "batch_size", "num_experiences", "views"],
)
def test_a_result_of_other_settings_is_not_taken_for_that_of_a_cell(name):
    cell = Cell("naive", "digits")
    check_same(result_of(cell), cell)
    with pytest.raises(ValueError, match=f"Expected digits_naive_seed0.json to have {name} "):
        check_same({**result_of(cell), name: "other"}, cell)
