"""The order of methods beside the paper's (accuracies of the paper: Tables 3 and 4)."""

import pytest
from synthetic_results import make_result

from benchmarks.orders import order_tables

SETTING = "lab-cifar100-10"
# Class-IL: the paper has Joint 70.31, DER++ 36.52, (a) 27.93, EWC none
CLASS_IL = {"joint": 0.5, "der++": 0.3, "dlcpa-a": 0.4, "ewc": 0.9}


def results(seeds=(0,)):
    return [
        make_result(method, SETTING, seed, class_il=accuracy + seed / 50, task_il=0.5)
        for method, accuracy in CLASS_IL.items()
        for seed in seeds
    ]


def test_methods_come_in_our_order_with_their_place_in_the_paper():
    class_il, task_il = order_tables("grid", "lab", results())
    rows = [(row.label, *(entry.text for entry in row.entries)) for row in class_il.rows]
    assert rows == [
        ("1. Joint", "50.00", "70.31", "1"),
        ("2. (a) without SSL", "40.00", "27.93 ± 1.5", "3"),
        ("3. DER++", "30.00", "36.52 ± 2.0", "2"),
    ]
    order, scale = class_il.notes
    assert order == "2 of 3 pairs of methods stand in the paper's order."
    assert scale.startswith("Lab scale: 100 images a class")
    assert scale.endswith("not comparable with the published numbers.")
    assert [row.label.partition(" ")[2] for row in task_il.rows] == [
        "DER++", "EWC", "(a) without SSL",
    ]  # fmt: skip


def test_equal_accuracies_share_a_place_and_contradict_no_order():
    level = [*results()[:1], make_result("dlcpa-a", SETTING, class_il=0.3), results()[1]]
    class_il, _ = order_tables("grid", "lab", level)
    assert sorted(row.label for row in class_il.rows) == [
        "1. Joint", "2. (a) without SSL", "2. DER++",
    ]  # fmt: skip
    assert class_il.notes[0].startswith("3 of 3 pairs")


def test_seeds_have_a_mean_and_a_deviation():
    class_il, _ = order_tables("grid", "lab", results(seeds=(0, 1)))
    assert class_il.rows[0].entries[0].text == "51.00 ± 1.41"


def test_a_deviation_is_told_where_any_table_of_the_paper_has_it():
    run = make_result("dlcpa-mocov2", SETTING, class_il=0.2, task_il=0.9)
    _, task_il = order_tables("grid", "lab", [*results(), run])
    assert task_il.rows[0].label == "1. DLCPA + MoCoV2"
    assert task_il.rows[0].entries[1].text == "81.15 ± 0.5"  # Table 4; Table 2 has none


def test_numbers_that_the_paper_quotes_are_left_out():
    lwf = make_result("lwf", SETTING, class_il=0.2, task_il=0.6)
    class_il, task_il = order_tables("grid", "lab", [*results(), lwf])
    assert task_il.rows[0].label == "1. LwF"
    assert not any("LwF" in row.label for row in class_il.rows)


@pytest.mark.parametrize("scale", ["paper", "lab"])
def test_without_two_methods_there_is_no_order(scale):
    assert order_tables("grid", scale, results()[:1]) == []
