"""What the README says and shows is what the committed results hold."""

import contextlib
import csv
import json
import operator
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import demo, figures, report, trials
from benchmarks.cells import check_same
from benchmarks.experiments import EXPERIMENTS
from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import CHOSEN
from benchmarks.loading import cell_of, load_results
from benchmarks.markup import as_markdown
from benchmarks.methods import METHODS
from benchmarks.orders import order_tables
from benchmarks.origin import commit
from benchmarks.published import read_published
from benchmarks.tables import comparison_table, experiment_table, numbers_behind, results_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OF_GRID = EXPERIMENTS["grid"].methods
DLCPA = tuple(name for name in OF_GRID if name.startswith("dlcpa"))
OTHERS = ("cumulative", "agem", "der", "replay", "icarl", "mas", "si", "packnet")


def test_the_readme_counts_the_methods():
    assert f"Grids of any of {len(METHODS)} methods" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("setting", ["digits", "lab-cifar100"])
def test_the_tables_of_the_readme_are_those_of_the_results(setting):
    results, skipped = load_results(RESULTS)
    assert not skipped
    chosen = [result for result in results if result["setting"] == setting]
    assert {r["method"] for r in chosen} == set(demo.METHODS)
    for result in chosen:
        check_same(result, cell_of(result))
    assert as_markdown(comparison_table(chosen)) in (ROOT / "README.md").read_text()


def lab_grid():
    """The results of methods, without the analyses, in the setting of the lab grid."""
    results = load_results(RESULTS)[0]
    own = [r for r in results if r["setting"] == "lab-cifar100-10" and r["method"] in OF_GRID]
    return [r for r in own if not r["changes"].keys() & {"ssl", "supervised_weight"}]


def test_the_tables_of_the_lab_grid_are_those_of_the_results():
    text, chosen = (ROOT / "README.md").read_text(), lab_grid()
    assert {r["method"] for r in chosen} == set(OF_GRID)
    for result in chosen:
        check_same(result, cell_of(result))
    for table in (comparison_table(chosen), *order_tables("grid", "lab", chosen)):
        assert as_markdown(table) in text
    stl, joint = ([r for r in chosen if r["method"] == name] for name in ("stl", "joint"))
    assert {r["task_il"]["BWT"] for r in stl} == {0.0}
    others = max(r["class_il"]["ACC"] for r in chosen if r["method"] != "joint")
    assert min(r["class_il"]["ACC"] for r in joint) > others


@pytest.mark.parametrize("setting", ["lab-cifar100-10", "lab-tiny-10"])
def test_joint_training_is_above_all_but_cumulative_which_takes_more_steps(setting):
    shown = [r for r in load_results(RESULTS)[0] if r["setting"] == setting]
    means = {
        name: pair[0]
        for name, pair in means_of(r for r in shown if "class_il" in r).items()
        if np.isfinite(pair[0])
    }
    joint, cumulative = means.pop("joint"), means.pop("cumulative")
    assert len(means) > 15
    assert joint > max(means.values())
    assert cumulative > joint
    steps = "takes (T + 1) / 2 times as many steps as Joint over T tasks"
    assert steps in (ROOT / "README.md").read_text()


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def test_what_the_readme_says_of_the_lab_grid():
    text = " ".join((ROOT / "README.md").read_text().split())
    found = {}
    for result in lab_grid():
        name = ", ".join([result["method"], *result["changes"]])
        pair = [100 * result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
        found.setdefault(name, []).append(pair)
    means = {name: np.mean(pairs, axis=0) for name, pairs in found.items()}
    deviations = {name: np.std(pairs, axis=0, ddof=1) for name, pairs in found.items()}
    simclr, *others = (means[f"dlcpa-{ssl}"] for ssl in ("simclr", "mocov2", "byol"))
    mocov2, byol = others
    ablations = {letter: means[f"dlcpa-{letter}"] for letter in "abcde"}

    assert (
        "**In Task-IL** DLCPA with BYOL and with SimCLR, level with each other, lead the "
        "exemplar-free methods of one network, by half a point and more, all but "
        "[PackNet](#the-other-methods-of-tables-2-and-3), which is told the task and has no "
        "Class-IL. STL, which keeps a network a task, is four and a half ahead of BYOL. - **In "
        "Class-IL** SimCLR is level with (c), which is an ablation of DLCPA with MoCoV2, and BYOL "
        "not quite; STL is a point ahead of SimCLR."
    ) in text
    assert abs(byol - simclr)[1] < 0.5
    assert (
        min(byol, simclr, key=lambda pair: pair[1])[1]
        - max(pair[1] for pair in (mocov2, *ablations.values()))
        > 0.5
    )
    assert abs(simclr - ablations["c"])[0] < deviations["dlcpa-c"][0]
    assert 0.5 < (ablations["c"] - byol)[0] < 1
    assert ablations["c"][0] == max(pair[0] for pair in (*others, *ablations.values()))
    free = [means[name] for name in ("stl-me", "naive", "ewc", "lwf", "lwf, strength")]
    best = np.max(free, axis=0)
    in_class_il = (np.min([simclr, *others], axis=0) - best)[0]
    in_task_il = (np.min([simclr, byol], axis=0) - best)[1]
    assert (
        f"of one network, but for PackNet, are more than {NUMBERS[int(in_class_il)]} points of "
        "Class-IL behind DLCPA with any of the three losses, and of Task-IL more than "
        f"{NUMBERS[int(in_task_il)]} behind it with BYOL and SimCLR; LwF with a strength of "
        "10 is within a point of it with MoCoV2."
    ) in text
    assert abs(mocov2 - means["lwf, strength"])[1] < 1
    ahead = means["stl"] - simclr
    assert round(ahead[0]) == 1
    assert ahead[0] > deviations["stl"][0]
    assert (means["stl"] - byol)[1] == pytest.approx(4.5, abs=0.1)
    assert (
        "is within a point of (a) and (b) in Class-IL, but behind them in Task-IL, by one point "
        "and two: its learning rate was chosen by three tasks, and ten want a higher one."
    ) in text
    over = np.stack([ablations[letter] - mocov2 for letter in "ab"])
    assert (abs(over[:, 0]) < 1).all()
    assert over[:, 1].round().tolist() == [1, 2]
    assert "it has two points more of Task-IL, and is level with (b) and a point ahead of" in text
    higher = means["dlcpa-mocov2, lr"]
    assert round((higher - mocov2)[1]) == 2
    assert (abs(higher - ablations["b"]) < 0.5).all()
    assert round((higher - ablations["a"])[1]) == 1
    assert "with 0.005 it is no more than a point ahead of them" in text
    assert "**(e)** is three and four points behind (a), **(d)** five and seven" in text
    behind = np.stack([ablations["a"] - ablations[letter] for letter in "ed"])
    assert behind.round().tolist() == [[3, 4], [5, 7]]

    joint = means.pop("joint")
    assert means["stl"][1] == max(mean[1] for mean in means.values())
    assert (joint > np.max(list(means.values()), axis=0)).all()
    assert f"(Joint has {joint[1]:.0f} %)" in text
    stronger = means["lwf, strength"][1]
    assert f"and has {means['lwf'][1]:.0f} % of Task-IL after ten; with a strength of 10," in text
    assert (
        f"two points behind it in the trials at that learning rate, it has {stronger:.0f} %" in text
    )
    in_trials = {
        json.loads(row["hyperparameters"])["strength"]: 100 * float(row["task_il_ACC"])
        for row in trials.read_rows()
        if (row["setting"], row["method"]) == ("lab-cifar100-10", "lwf")
        and json.loads(row["hyperparameters"])["lr"] == 0.05
    }
    assert round(in_trials[3.0] - in_trials[10.0]) == 2
    assert (
        "it falls by four and a half points in both scenarios, two thirds of the way to (d) in "
        "Class-IL and half of it in Task-IL"
    ) in text
    fall, way = (means["dlcpa-c"] - means[name] for name in ("dlcpa-c, ema_decay", "dlcpa-d"))
    assert fall == pytest.approx(np.full(2, 4.5), abs=0.25)
    assert fall / way == pytest.approx([2 / 3, 1 / 2], abs=0.04)
    assert abs(means["der++"] - simclr)[0] < deviations["der++"][0]
    assert means["der++"][0] > max(other[0] for other in others)
    assert "in Task-IL it is between MoCoV2 and the other two" in text
    assert mocov2[1] < means["der++"][1] < min(simclr[1], byol[1])
    assert "it is six points of Class-IL and eleven of Task-IL behind DLCPA with MoCoV2" in text
    hundredth = mocov2 - means["der++, buffer_size"]
    assert hundredth.round().tolist() == [6, 11]
    assert (abs(means["ewc"] - means["naive"]) < 1).all()
    hours = sum(result["training_seconds"] for result in lab_grid()) / 3600
    assert "The seconds, three and three quarter hours of one core in all" in text
    assert hours == pytest.approx(3.75, abs=0.1)


def test_the_runs_of_the_lab_grid_name_commits_that_hold_all_that_they_ran_with():
    assert not [r for r in lab_grid() if r["provenance"]["commit"].endswith("+")]


def best_of_trials():
    """The best Task-IL in percent of each method, with and without the schedule, at lab scale."""
    best = {}
    for row in trials.read_rows():
        if row["setting"] == "lab-cifar100-10":
            place = row["method"], "last_epochs" in json.loads(row["hyperparameters"])
            best[place] = max(best.get(place, 0.0), 100 * float(row["task_il_ACC"]))
    return best


def test_what_the_readme_says_of_the_schedule():
    text = " ".join((ROOT / "README.md").read_text().split())
    best = best_of_trials()
    names = ("stl", "joint", "stl-me", "gem", "der++", "naive", "ewc")
    said = [f"from {best[name, False]:.0f} to {best[name, True]:.0f} %" for name in names]
    stl, joint, stl_me, gem, der, naive, ewc = said
    assert (
        f"it took the best Task-IL of STL {stl}, that of Joint {joint}, of STL-me {stl_me}, of GEM "
        f"{gem}, of DER++ {der}, of Naive {naive} and of EWC {ewc}; that of STL-me with finetuning "
        "stayed at 48 %."
    ) in text
    assert {round(best["stl-me-finetuned", scheduled]) for scheduled in (False, True)} == {48}
    assert "without the schedule its best trial was behind those of all variants of DLCPA" in text
    assert best["stl", False] < min(best[method, False] for method in DLCPA)
    others = [name for name in OF_GRID if name not in DLCPA]
    assert all((name, True) in best for name in others)


WIDENED = ("stl-me-finetuned", "gem", "der++", "ewc", "lwf", *DLCPA)


def test_every_method_of_the_lab_grid_had_as_many_trials_as_the_readme_says():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "Eight combinations were tried for every method, with one seed" in text
    assert (
        "For those whose best lay on the edge of these, GEM, DER++, EWC, LwF, STL-me with "
        "finetuning, and DLCPA with all its ablations, eight more were tried beyond it, which "
        "changed little on the held-out images: DER++ gained a point, EWC almost three, (b) a "
        "point of Class-IL for half a point of Task-IL, the others less than half a point or "
        "nothing."
    ) in text
    entries = json.loads(CHOSEN.read_text())["lab-cifar100-10"]
    trials_of = {name: entries[name]["num_trials"] for name in OF_GRID}
    assert trials_of == {**dict.fromkeys(trials_of, 8), **dict.fromkeys(WIDENED, 16)}
    assert all(entries[name]["seeds"] == [0] for name in trials_of)
    rows = trials.in_grids(trials.read_rows())
    gains = {}
    for name in set(WIDENED) - {"lwf"}:  # whose sixteen were all run again
        later = {"e40f9d2", "c573f90"}  # the commits of the eight more
        before = [row for row in rows if row["commit"] not in later]
        first, both = (trials.best(of, "lab-cifar100-10", name, [0]) for of in (before, rows))
        assert (first["num_trials"], both["num_trials"]) == (8, 16)
        scenarios = "class_il_ACC", "task_il_ACC"
        gains[name] = [100 * (both[scenario] - first[scenario]) for scenario in scenarios]
    assert gains.pop("der++") == pytest.approx([1.4, 1.4], abs=0.05)
    assert 2.5 < gains.pop("ewc")[1] < 3
    assert gains.pop("dlcpa-b") == pytest.approx([1.1, -0.6], abs=0.05)
    assert max(abs(gain) for of_method in gains.values() for gain in of_method) < 0.5


def test_what_the_readme_says_of_the_edges_of_the_lab_grids():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        "Value by value, what was chosen now lies within what was tried, but for DER++'s alpha, "
        "the highest, and "
        "the learning rates of (b) and of DLCPA with MoCoV2, the lowest."
    ) in text
    assert chosen_on_an_edge(OF_GRID) == {
        "alpha": {"der++": "highest"},
        "lr": {"dlcpa-b": "lowest", "dlcpa-mocov2": "lowest"},
    }


def chosen_on_an_edge(methods):
    """Hyperparameter -> method -> which end of all that was tried at lab scale was chosen."""
    entries = json.loads(CHOSEN.read_text())["lab-cifar100-10"]
    on_edge = {}
    for name in methods:
        grids, chosen = GRIDS["lab-cifar100-10"][name], entries[name]["hyperparameters"]
        for option, value in chosen.items():
            tried = {value for grid in grids for value in grid.get(option, [])}
            if len(tried) > 1 and value in (min(tried), max(tried)):
                end = "lowest" if value == min(tried) else "highest"
                on_edge.setdefault(option, {})[name] = end
    return on_edge


def test_what_the_readme_says_of_the_other_methods_of_tables_2_and_3():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    of_tables = {name for table in ("table2", "table3") for name in EXPERIMENTS[table].methods}
    assert of_tables - set(OF_GRID) == set(OTHERS)
    results = load_results(RESULTS)[0]
    chosen = [r for r in results if r["setting"] == "lab-cifar100-10" and r["method"] in OTHERS]
    for result in chosen:
        check_same(result, cell_of(result))
        assert not result["provenance"]["commit"].endswith("+")
    assert as_markdown(comparison_table(chosen)) in readme
    assert (
        "tuned like the grid: eight combinations a method, and eight more for DER, MAS, SI and "
        "PackNet, whose best lay on an edge. iCaRL had had twelve more with lower learning rates, "
        "PackNet eight in its first form. DER's alpha and SI's strength still are the highest "
        "that were tried; DER gained two and a half points of Class-IL in the trials with the "
        "last doubling of its alpha."
    ) in text
    of_der = {}
    for row in trials.read_rows():
        if (row["setting"], row["method"]) == ("lab-cifar100-10", "der"):
            alpha = json.loads(row["hyperparameters"])["alpha"]
            of_der[alpha] = max(of_der.get(alpha, 0.0), 100 * float(row["class_il_ACC"]))
    highest = max(of_der)
    assert of_der[highest] - of_der[highest / 2] == pytest.approx(2.5, abs=0.1)
    entries = json.loads(CHOSEN.read_text())["lab-cifar100-10"]
    more = dict.fromkeys(("der", "mas", "si", "packnet"), 16)
    num_trials = {**dict.fromkeys(OTHERS, 8), **more}
    assert {name: entries[name]["num_trials"] for name in OTHERS} == num_trials
    rows = [row["method"] for row in trials.read_rows() if row["setting"] == "lab-cifar100-10"]
    earlier = {name: rows.count(name) - num for name, num in num_trials.items()}
    assert earlier == {**dict.fromkeys(OTHERS, 0), "icarl": 12, "packnet": 8}
    assert chosen_on_an_edge(OTHERS) == {"alpha": {"der": "highest"}, "strength": {"si": "highest"}}
    before, after = (f"{best_of_trials()['packnet', scheduled]:.0f}" for scheduled in (False, True))
    assert (
        f"its best trial had {before} % of Task-IL after three tasks, with them and the schedule "
        f"{after} %"
    ) in text
    assert "wants a hundred times the learning rates of others" in text
    rates = [entries[name]["hyperparameters"]["lr"] for name in OTHERS if name != "icarl"]
    assert min(rates) <= entries["icarl"]["hyperparameters"]["lr"] / 100 <= max(rates)


def means_of(results):
    """Mean Class-IL and Task-IL ACC in percent of each method."""
    found = {}
    for result in results:
        pair = [result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
        found.setdefault(result["method"], []).append(100 * np.array(pair, float))
    return {name: np.mean(pairs, axis=0) for name, pairs in found.items()}


def test_what_the_readme_says_of_labels_on_one_view():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    names = [
        "dlcpa-mocov2",
        *(f"dlcpa-{x}{y}" for x in ("simclr", "byol") for y in ("", "-one-view")),
    ]
    results = [r for r in load_results(RESULTS)[0] if r["setting"] == "lab-cifar100-10"]
    chosen = [r for r in results if r["method"] in names and not r["changes"]]
    for result in chosen:
        check_same(result, cell_of(result))
    assert as_markdown(comparison_table(chosen)) in readme
    means = means_of(chosen)
    lead = {name: means[name] - means["dlcpa-mocov2"] for name in names}
    share = {
        name: 1 - lead[f"dlcpa-{name}-one-view"] / lead[f"dlcpa-{name}"]
        for name in ("simclr", "byol")
    }
    assert (
        "what SimCLR is ahead of MoCoV2 in Task-IL, four points, is the second labelled view's, "
        "and half of BYOL's four and a half. In Class-IL it is more than half of SimCLR's lead and "
        "a quarter of BYOL's."
    ) in text
    assert lead["dlcpa-simclr"][1] == pytest.approx(4, abs=0.25)
    assert lead["dlcpa-byol"][1] == pytest.approx(4.5, abs=0.25)
    assert share["simclr"] == pytest.approx([0.55, 0.97], abs=0.03)
    assert share["byol"] == pytest.approx([0.25, 0.5], abs=0.03)
    higher = [r for r in results if r["method"] == "dlcpa-mocov2" and r["changes"] == {"lr": 0.005}]
    assert "MoCoV2 with the learning rate of 0.005, which" in text
    with_higher = means_of(higher)["dlcpa-mocov2"][1]
    assert means["dlcpa-byol-one-view"][1] == pytest.approx(with_higher, abs=0.5)


def test_what_the_readme_says_of_rounding():
    text = " ".join((ROOT / "README.md").read_text().split())
    with (RESULTS / "rounding.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = {
        (r["setting"], r["method"], str(r["seed"])): r
        for r in load_results(RESULTS)[0]
        if not r["changes"]
    }
    again = {}
    for row in rows:
        run = shown[row["setting"], row["method"], row["seed"]]
        pairs = [(row[f"{name}_ACC"], run[name]["ACC"]) for name in ("class_il", "task_il")]
        again.setdefault(row["method"], []).append(100 * np.array(pairs, float))
    [simclr], [naive] = again["dlcpa-simclr"], again["naive"]
    assert (
        "DLCPA with SimCLR, seed 0, ended at {:.2f} and {:.2f} % there instead of {:.2f} and "
        "{:.2f}, Naive at the same".format(*simclr.T.flat)
    ) in text
    assert naive[:, 0] == pytest.approx(naive[:, 1], abs=0.005)
    digits = np.array([pairs[0] for pairs in again["dlcpa-mocov2"]])
    assert len(digits) == 4
    assert (
        f"DLCPA with MoCoV2 had between {min(digits[:, 0]):.2f} and {max(digits[:, 0]):.2f} of "
        "Class-IL with four other ways of rounding"
    ) in text
    assert (
        f"had between {min(digits[:, 0]):.1f} and {max(digits[:, 0]):.1f} % of Class-IL with four "
        f"other ways of rounding, where the run of the tables has {digits[0, 1]:.1f}"
    ) in text


def test_what_the_readme_says_of_all_images():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    labels = {
        "stl": "STL",
        "packnet": "PackNet",
        "dlcpa-mocov2": "DLCPA + MoCoV2",
        "dlcpa-mocov2, lr 0.005": "DLCPA + MoCoV2, lr 0.005",
        "dlcpa-mocov2, lr 0.02": "DLCPA + MoCoV2, lr 0.02",
        "dlcpa-a": "(a) without SSL",
    }
    settings = ("lab-cifar100-10-all-images", "lab-cifar100-10")
    runs = {
        (r["setting"], ", ".join([r["method"], *(f"{k} {v}" for k, v in r["changes"].items())])): r
        for r in load_results(RESULTS)[0]
        if r["seed"] == 0
    }
    lines, after, at_end = [], {}, {}
    for method, label in labels.items():
        many, few = (runs.get((setting, method)) for setting in settings)
        assert few is None or many["hyperparameters"] == few["hyperparameters"]
        matrix = 100 * np.array(many["task_il"]["accuracy_matrix"], float)
        after[method], at_end[method] = np.diag(matrix), matrix[-1]
        task_il, class_il = (
            [None if run is None else run[scenario]["ACC"] for run in (many, few)]
            for scenario in ("task_il", "class_il")
        )
        shown = [task_il[0], np.diag(matrix).mean() / 100, task_il[1], *class_il]
        cells = ["–" if value is None else f"{100 * value:.2f}" for value in shown]
        lines.append(f"| {' | '.join([label, *cells])} |")
    assert "\n".join(lines) in readme

    def lead(setting, scenario, first, second="dlcpa-mocov2"):
        return 100 * (
            runs[setting, first][scenario]["ACC"] - runs[setting, second][scenario]["ACC"]
        )

    assert "grows from five and a half points to ten" in text
    leads = [lead(setting, "task_il", "packnet") for setting in settings]
    assert leads == pytest.approx([10, 5.5], abs=0.25)
    assert "right after one, STL has fifteen points more, and PackNet ten" in text
    more = [(after[name] - after["dlcpa-mocov2"]).mean() for name in ("stl", "packnet")]
    assert np.round(more).tolist() == [15, 10]
    assert after["dlcpa-mocov2"].mean() == pytest.approx(at_end["dlcpa-mocov2"].mean(), abs=0.25)
    assert "a thirty-fifth of STL's" in text
    rates = [runs[settings[0], name]["hyperparameters"]["lr"] for name in ("stl", "dlcpa-mocov2")]
    assert rates[0] / rates[1] == pytest.approx(35)
    higher = "dlcpa-mocov2, lr 0.005"
    assert (
        "with two and a half times that rate it has two points more, as with 100 images, and with "
        "ten times a point; PackNet is eight ahead of the best of the three"
    ) in text
    assert runs[settings[0], higher]["hyperparameters"]["lr"] / rates[1] == pytest.approx(2.5)
    assert [round(lead(setting, "task_il", higher)) for setting in settings] == [2, 2]
    assert round(lead(settings[0], "task_il", "packnet", higher)) == 8
    highest = "dlcpa-mocov2, lr 0.02"
    assert runs[settings[0], highest]["hyperparameters"]["lr"] / rates[1] == pytest.approx(10)
    assert round(lead(settings[0], "task_il", highest)) == 1
    assert lead(settings[0], "task_il", highest) < lead(settings[0], "task_il", higher)
    assert (
        "MoCoV2 is a point and a half ahead of (a) in Task-IL, where with 100 it is a point behind"
        in text
    )
    assert -lead(settings[0], "task_il", "dlcpa-a") == pytest.approx(1.5, abs=0.25)
    assert round(lead(settings[1], "task_il", "dlcpa-a")) == 1
    assert round(lead(settings[0], "class_il", "dlcpa-a")) == 1
    assert "(a) forgets, thirty points of the first task, and MoCoV2 fifteen" in text
    lwf = runs[settings[0], "lwf"]
    both = [round(100 * lwf[scenario]["ACC"]) for scenario in ("task_il", "class_il")]
    assert (
        "LwF, with {} % of Task-IL and {} % of Class-IL, stays behind both.".format(*both) in text
    )
    for scenario in ("task_il", "class_il"):
        for name in ("dlcpa-a", "dlcpa-mocov2"):
            assert lead(settings[0], scenario, "lwf", name) < 0
    lost = [after[name][0] - at_end[name][0] for name in ("dlcpa-a", "dlcpa-mocov2")]
    assert np.round(lost).tolist() == [30, 15]


def test_how_the_other_methods_of_tables_2_and_3_stand_to_those_of_the_grid():
    text = " ".join((ROOT / "README.md").read_text().split())
    of_setting = [r for r in load_results(RESULTS)[0] if r["setting"] == "lab-cifar100-10"]
    plain = [r for r in of_setting if r["method"] in METHODS and not r["changes"]]
    means = means_of(plain)
    class_il, task_il = ({name: pair[i] for name, pair in means.items()} for i in range(2))
    assert "PackNet, exemplar-free and of one network, is a point and a half ahead of DLCPA" in text
    assert task_il["packnet"] - task_il["dlcpa-byol"] == pytest.approx(1.5, abs=0.25)
    assert task_il["dlcpa-byol"] > task_il["dlcpa-simclr"]
    assert "ten behind STL; here it is three behind STL" in text
    assert round(task_il["stl"] - task_il["packnet"]) == 3
    assert (
        "iCaRL is two points ahead of DER++ in Class-IL, Replay two behind it and DER four and a "
        "half"
    ) in text
    ahead = [class_il[name] - class_il["der++"] for name in ("icarl", "replay", "der")]
    assert ahead == pytest.approx([2, -2, -4.5], abs=0.25)
    assert "A-GEM, MAS and SI answer with the classes of the last task, as Naive does." in text
    for result in plain:
        if result["method"] in ("agem", "mas", "si", "naive"):
            counts = np.array(result["class_il"]["confusion_matrix"])
            assert counts[:, result["classes"][-1]].sum() > 0.9 * counts.sum()
    assert "Cumulative is above Joint: in each task it goes over all images so far" in text
    assert (means["cumulative"] > means["joint"]).all()
    assert class_il["joint"] > max(class_il[name] for name in ("icarl", "replay", "der", "stl"))


def shown_in(readme, table):
    """The results behind a table that a text shows at lab scale, as they would be run today."""
    results = results_of(table, "lab", load_results(RESULTS)[0])
    for result in results:
        check_same(result, cell_of(result))
    assert as_markdown(experiment_table(table, "lab", results)) in readme
    return results


def test_what_the_readme_says_of_the_methods_with_masks():
    readme = (ROOT / "README.md").read_text()
    results = shown_in(readme, "table8")
    means = means_of(results)
    ahead = means["packnet"][1] - means["dlcpa-mocov2"][1]
    assert "PackNet is more than six points ahead in Task-IL" in " ".join(readme.split())
    assert 6 < ahead < 7


def test_what_the_readme_says_of_a_head_a_task():
    best = best_of_trials()
    names = ("naive", "ewc", "naive-heads", "ewc-heads")
    naive, ewc, naive_heads, ewc_heads = (f"{best[name, True]:.0f}" for name in names)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"in trials, after three tasks, Naive and EWC had {naive} and {ewc} % of Task-IL with it, "
        f"and {naive_heads} and {ewc_heads} % with a head a task" in text
    )
    rows = [r for r in trials.read_rows() if r["setting"] == "lab-cifar100-10"]
    of_heads = [r for r in rows if r["method"] == "ewc-heads"]
    chosen = json.loads(max(of_heads, key=lambda r: float(r["task_il_ACC"]))["hyperparameters"])
    tried = [json.loads(r["hyperparameters"]) for r in of_heads]
    assert "with a head a task its best is the highest strength that was tried, 1, at the" in text
    assert chosen["strength"] == max(values["strength"] for values in tried) == 1
    assert chosen["lr"] == min(values["lr"] for values in tried)


def test_what_a_method_keeps_does_not_depend_on_the_seed():
    kept = {}
    for result in load_results(RESULTS)[0]:
        if result["method"] in METHODS:
            run = (result["setting"], result["method"], str(result["changes"]))
            kept.setdefault(run, set()).add(result["memory"]["kept_bytes"])
    assert {len(sizes) for sizes in kept.values()} == {1}


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def expect_history():
    if commit() == "unknown" or "true" in git("rev-parse", "--is-shallow-repository").stdout:
        pytest.skip("no clone, or one without its history")


def test_the_commits_that_results_name_are_in_the_history():
    expect_history()
    texts = [path.read_text() for path in RESULTS.rglob("*.json")]
    named = {name for text in texts for name in re.findall(r'"commit": "(\w+)\+?"', text)}
    assert len(named) > 5
    lost = [name for name in named if git("merge-base", "--is-ancestor", name, "HEAD").returncode]
    assert lost == []


def test_what_the_readme_says_of_the_first_table():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "leads Class-IL by more than nine points, and its BWT is next to 0" in text
    found, over_time = {}, {}
    for result in load_results(RESULTS)[0]:
        if result["setting"] == "lab-cifar100":
            pair = [100 * result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
            found.setdefault(result["method"], []).append(pair)
            of_task_il = 100 * np.array(result["task_il"]["accuracy_over_experiences"])
            over_time.setdefault(result["method"], []).append(of_task_il)
            if result["method"] == "dlcpa-mocov2":
                assert abs(result["class_il"]["BWT"]) < 0.03
    means = {method: np.mean(pairs, axis=0) for method, pairs in found.items()}
    lead = means.pop("dlcpa-mocov2") - np.max(list(means.values()), axis=0)
    assert 9 < lead[0] < 9.5
    assert max(means, key=lambda name: means[name][1]) == "lwf"
    assert "In Task-IL it is level with LwF after the sixth task" in text
    assert abs(lead[1]) < np.std(found["lwf"], axis=0, ddof=1)[1]
    assert "after each of the first five LwF is ahead, by two to five points" in text
    ahead = np.mean(over_time["lwf"], axis=0) - np.mean(over_time["dlcpa-mocov2"], axis=0)
    assert (round(min(ahead[:5])), round(max(ahead[:5]))) == (2, 5)
    entries = json.loads(CHOSEN.read_text())["lab-cifar100"]
    assert {entries[name]["num_trials"] for name in found} == {4}


def test_what_the_readme_says_of_earlier_trials():
    text = " ".join((ROOT / "README.md").read_text().split())
    with (RESULTS / "earlier_trials.csv").open(newline="") as file:
        earlier = list(csv.DictReader(file))

    def best(rows, setting, method):
        own = [r for r in rows if (r["setting"], r["method"]) == (setting, method)]
        return max(100 * float(r["task_il_ACC"]) for r in own)

    assert "Avalanche leaves it in training mode, which cost LwF two points of Task-IL" in text
    now = trials.in_grids(trials.read_rows())
    gained = [best(rows, "lab-cifar100", "lwf") for rows in (now, earlier)]
    assert round(gained[0] - gained[1]) == 2
    assert "without the cap sixteen combinations were worse" in text
    of_si = [r for r in earlier if r["method"] == "si"]
    assert len(of_si) == len({r["hyperparameters"] for r in of_si}) == 16
    assert best(of_si, "lab-cifar100-10", "si") < best(now, "lab-cifar100-10", "si")


def test_earlier_trials_stand_in_the_commits_that_recorded_them():
    expect_history()
    with (RESULTS / "earlier_trials.csv").open(newline="") as file:
        earlier = list(csv.DictReader(file))
    for name in {row["recorded_in"] for row in earlier}:
        rows = git("show", f"{name}:benchmarks/results/tuning.csv").stdout.splitlines()
        held = [tuple(row[:-1]) for row in csv.reader(rows)]
        own = [tuple(row.values())[1:-1] for row in earlier if row["recorded_in"] == name]
        assert own
        assert set(own) <= set(held)


def test_what_the_readme_says_of_memory_and_time_beside_the_first_table():
    text = " ".join((ROOT / "README.md").read_text().split())
    held, seconds = {}, {}
    for result in load_results(RESULTS)[0]:
        is_own = result["method"] in METHODS and not result["changes"]
        if is_own and result["setting"] in ("lab-cifar100", "lab-cifar100-10"):
            place = (result["setting"], result["method"])
            held[place] = round(result["memory"]["kept_bytes"] / 1e6)
            seconds.setdefault(place, []).append(result["training_seconds"])
    six, ten = (
        [held[setting, name] for name in ("dlcpa-mocov2", "naive", "lwf", "ewc")]
        for setting in ("lab-cifar100", "lab-cifar100-10")
    )
    assert six[:3] == ten[:3]
    assert (
        "it holds {} MB, after ten as after six, where Naive holds {}, LwF {}, and EWC {} after six"
        " tasks and {} after ten".format(*six, ten[3])
    ) in text
    times = {place: np.mean(found) for place, found in seconds.items()}
    ratio = times["lab-cifar100", "dlcpa-mocov2"] / times["lab-cifar100", "naive"]
    assert f"it trains {ratio:.1f} times as long as Naive" in text
    others = [times["lab-cifar100-10", f"dlcpa-{name}"] for name in ("byol", "simclr")]
    ratios = [time / times["lab-cifar100-10", "dlcpa-mocov2"] for time in others]
    assert "train twice and 1.6 times as long" in text
    assert [round(ratios[0]), round(ratios[1], 1)] == [2, 1.6]
    assert "`byol` and `simclr` are four points of Task-IL and two of Class-IL ahead of it" in text
    runs = [r for r in load_results(RESULTS)[0] if r["setting"] == "lab-cifar100-10"]
    means = means_of([r for r in runs if r["method"].startswith("dlcpa-") and not r["changes"]])
    for name in ("dlcpa-byol", "dlcpa-simclr"):
        ahead = means[name] - means["dlcpa-mocov2"]
        assert ahead == pytest.approx([2, 4], abs=0.6)


def test_what_the_readme_says_of_task_il_with_more_tasks():
    text = " ".join((ROOT / "README.md").read_text().split())
    results = load_results(RESULTS)[0]
    kept = []
    stronger = {"strength": 10}
    for name, changes in (("dlcpa-mocov2", {}), ("lwf", {}), ("lwf", stronger)):
        for num_tasks in (5, 10, 20):
            setting = f"lab-cifar100-{num_tasks}"
            runs = [r for r in results if (r["setting"], r["method"]) == (setting, name)]
            runs = [r for r in runs if r["changes"] == changes]
            kept.append(f"{100 * np.mean([r['task_il']['ACC'] for r in runs]):.0f}")
    assert (
        "DLCPA has {}, {} and {} % with 5, 10 and 20 tasks, LwF {}, {} and {} % with the strength "
        "that three tasks chose, and {}, {} and {} % with one of 10".format(*kept)
    ) in text
    assert (
        f"of 5 it keeps {kept[0]} %, [of 20](#5-10-and-20-tasks) {kept[2]} %, LwF {kept[3]} and "
        f"{kept[5]} %, with a higher strength {kept[6]} and {kept[8]} %."
    ) in text


def test_what_the_readme_says_of_25_tasks():
    text = " ".join((ROOT / "README.md").read_text().split())
    of_tiny = [r for r in load_results(RESULTS)[0] if r["setting"] == "lab-tiny-25"]
    assert {r["method"] for r in of_tiny} == {"naive", "ewc", "dlcpa-mocov2"}
    assert "On 25-split Tiny-ImageNet Naive, EWC and DLCPA with MoCoV2 alone have been run" in text


def test_what_the_readme_says_of_task_il_of_all_methods():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    results = shown_in(readme, "table2")
    means = means_of(r for r in results if r["setting"] == "lab-cifar100-20")
    task_il = {name: pair[1] for name, pair in means.items()}
    of_dlcpa = [task_il.pop(f"dlcpa-{name}") for name in ("byol", "simclr", "mocov2")]
    assert set(task_il) == set(EXPERIMENTS["table2"].methods) - {
        f"dlcpa-{name}" for name in ("byol", "simclr", "mocov2")
    }
    assert "the three losses of DLCPA are level, at 65 %" in text
    assert {round(value) for value in of_dlcpa} == {65}
    ours = np.mean(of_dlcpa)
    assert "PackNet is four points ahead of them, as with 10 tasks of MoCoV2 six" in text
    assert round(task_il.pop("packnet") - ours) == 4
    assert f"STL has {task_il.pop('stl'):.0f} %." in text
    assert "is two points ahead of DLCPA, DER and Replay are level with it, and all others" in text
    assert round(task_il.pop("der++") - ours) == 2
    assert max(abs(task_il.pop(name) - ours) for name in ("der", "replay")) < 1
    assert ours - max(task_il.values()) > 10
    of_ten = means_of(r for r in results if r["setting"] == "lab-cifar100-10")
    assert round(of_ten["packnet"][1] - of_ten["dlcpa-mocov2"][1]) == 6
    for name in ("byol", "simclr"):
        ahead = of_ten[f"dlcpa-{name}"][1] - of_ten["dlcpa-mocov2"][1]
        assert ahead == pytest.approx(4, abs=0.6)


def test_what_the_readme_says_of_the_time_of_its_first_command():
    runs = [r for r in load_results(RESULTS)[0] if r["setting"] == "lab-cifar100"]
    minutes = sum(run["training_seconds"] for run in runs) / 60
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"The training of the first command takes {minutes:.0f} minutes of one core" in text


def test_what_the_readme_says_of_small_crops_in_the_lab_setting():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        "it had nine points less Task-IL on the validation images than with crops from 0.75 on, at "
        "the same learning rates, and eleven less than LwF."
    ) in text
    alike = json.dumps({"lr": 0.005, "classifier_lr": 0.05, "queue_size": 1024})
    views = csv.DictReader((RESULTS / "lab_views.csv").read_text().splitlines())
    by_crop = {
        row["min_crop_area"]: 100 * float(row["task_il_ACC"])
        for row in views
        if (row["hyperparameters"], row["seed"]) == (alike, "0")
    }
    lwf = max(
        100 * float(row["task_il_ACC"])
        for row in trials.read_rows()
        if (row["setting"], row["method"]) == ("lab-cifar100", "lwf")
    )
    behind = [best - by_crop["0.08"] for best in (by_crop["0.75"], lwf)]
    assert [round(points) for points in behind] == [9, 11]


def test_what_the_readme_says_of_the_last_task_in_the_lab_setting():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "on the last it is at 8 % where the others" in text
    assert "are above 70 %" in text
    found = {}
    for result in load_results(RESULTS)[0]:
        if result["setting"] == "lab-cifar100":
            last_row = result["class_il"]["accuracy_matrix"][-1]
            found.setdefault(result["method"], []).append(last_row)
    means = {method: 100 * np.mean(rows, axis=0) for method, rows in found.items()}
    ours = means.pop("dlcpa-mocov2")
    assert round(ours[-1]) == 8
    assert ours[:3].min() > ours[3:].max()
    for other in means.values():
        assert other[-1] > 70
        assert other[:-2].max() == 0


def test_the_page_of_the_lab_tables_is_that_of_the_results(monkeypatch):
    """All tables and figures at lab scale, as the report writes them."""
    save = figures._save

    def without_drawing(figure, *words):
        monkeypatch.setattr(type(figure), "savefig", lambda *_, **__: None)
        return save(figure, *words)

    monkeypatch.setattr(figures, "_save", without_drawing)
    monkeypatch.setattr(figures, "whole_file", lambda path: contextlib.nullcontext(path))
    made = report.make_sections(load_results(RESULTS)[0], RESULTS, scale="lab")
    sections = [section.drawn(RESULTS / "figures") for section in made]
    page = (RESULTS / "report.md").read_text()
    assert page == report._markdown(sections, {}, RESULTS)
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert all((RESULTS / name).stat().st_size > 10_000 for name in shown)


def test_what_the_readme_says_of_the_loss_for_baselines():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    names = ("naive", "ewc", "lwf", "dlcpa-a", "dlcpa-mocov2")
    chosen = [
        result
        for result in load_results(RESULTS)[0]
        if result["setting"] == "lab-cifar100-10"
        and result["method"] in names
        and (not result["changes"] or "ssl" in result["changes"])
    ]
    for result in chosen:
        check_same(result, cell_of(result))
    assert as_markdown(comparison_table(chosen)) in readme
    found = {}
    for result in chosen:
        changes = tuple(value for _, value in sorted(result["changes"].items()))
        numbers = [result["class_il"]["ACC"], result["task_il"]["ACC"], result["task_il"]["BWT"]]
        found.setdefault((result["method"], *changes), []).append(100 * np.array(numbers))
    means = {name: np.mean(of_seeds, axis=0) for name, of_seeds in found.items()}
    gain = {name: means[name, "mocov2"] - means[(name,)] for name in names[:3]}
    assert "worth twenty-two points and more to Naive and EWC, and eight to LwF" in text
    assert min(gain["naive"][1], gain["ewc"][1]) > 22
    assert round(gain["lwf"][1]) == 8
    left = {name: means[name, "mocov2"][2] / means[(name,)][2] for name in names[:3]}
    assert "with it they forget a third as much, LwF less than half" in text
    assert left["naive"] == pytest.approx(1 / 3, abs=0.03)
    assert left["ewc"] == pytest.approx(1 / 3, abs=0.03)
    assert left["lwf"] < 0.5
    assert round((means["naive", "mocov2", 0] - means[("naive",)])[1]) == 1
    behind = [means[("dlcpa-mocov2",)][1] - means[name, "mocov2"][1] for name in names[:3]]
    assert (
        "LwF is then two and a half points ahead of DLCPA with MoCoV2 and one ahead of (a), which "
        "averages without the loss; Naive and EWC are one and a half points behind."
    ) in text
    assert behind == pytest.approx([1.5, 1.5, -2.5], abs=0.1)
    assert round(means["lwf", "mocov2"][1] - means[("dlcpa-a",)][1]) == 1
    assert max(abs(of_method[0]) for of_method in gain.values()) < 0.2
    assert (
        "together no more than averaging alone: a point less here, a point more with a learning "
        "rate of 0.005"
    ) in text
    higher = [r for r in lab_grid() if r["method"] == "dlcpa-mocov2" and "lr" in r["changes"]]
    assert {r["changes"]["lr"] for r in higher} == {0.005}
    together = means[("dlcpa-mocov2",)][1], 100 * np.mean([r["task_il"]["ACC"] for r in higher])
    assert [round(each - means[("dlcpa-a",)][1]) for each in together] == [-1, 1]


def test_what_the_readme_says_of_the_number_of_tasks():
    readme = (ROOT / "README.md").read_text()
    results = load_results(RESULTS)[0]
    assert as_markdown(experiment_table("table7", "lab", results)) in readme
    assert "DLCPA leads with any number of tasks, by five to eight points" in readme
    for result in results_of("table7", "lab", results):
        check_same(result, cell_of(result))
    leads = []
    for num_tasks in (5, 10, 20):
        found = {}
        for result in results_of("table7", "lab", results):
            if result["setting"] == f"lab-cifar100-{num_tasks}":
                found.setdefault(result["method"], []).append(100 * result["class_il"]["ACC"])
        means = {name: np.mean(found[name]) for name in EXPERIMENTS["table7"].methods}
        leads.append(means.pop("dlcpa-mocov2") - max(means.values()))
    assert (round(min(leads)), round(max(leads))) == (5, 8)


def test_what_the_readme_says_of_the_orders_of_the_tasks():
    readme = (ROOT / "README.md").read_text()
    results = load_results(RESULTS)[0]
    assert as_markdown(experiment_table("table10", "lab", results)) in readme
    found = {scenario: [] for scenario in ("class_il", "task_il")}
    for result in results_of("table10", "lab", results):
        check_same(result, cell_of(result))
        for scenario, accuracies in found.items():
            accuracies.append(100 * result[scenario]["ACC"])
    assert (
        "by a third of a point in Class-IL and by two thirds in Task-IL, from a mean that is a "
        "point below that of the natural order in Class-IL and a point above it in Task-IL."
    ) in " ".join(readme.split())
    assert np.std(found["class_il"], ddof=1) == pytest.approx(1 / 3, abs=0.1)
    assert np.std(found["task_il"], ddof=1) == pytest.approx(2 / 3, abs=0.1)
    natural = [r for r in lab_grid() if r["method"] == "dlcpa-mocov2" and not r["changes"]]
    for scenario, accuracies in found.items():
        assert len(accuracies) == 5
        in_order = 100 * np.mean([r[scenario]["ACC"] for r in natural])
        lower = {"class_il": 1, "task_il": -1}[scenario]
        assert round(in_order - np.mean(accuracies)) == lower


def test_what_the_readme_says_of_the_weight_of_the_supervised_loss():
    readme = (ROOT / "README.md").read_text()
    results = results_of("lambda", "lab", load_results(RESULTS)[0])
    assert all(as_markdown(table) in readme for table in numbers_behind("lambda", results))
    task_il, class_il = {}, {}
    for result in results:
        check_same(result, cell_of(result))
        weight = result["changes"]["supervised_weight"]
        task_il[weight] = 100 * result["task_il"]["ACC"]
        class_il[weight] = 100 * result["class_il"]["ACC"]
    assert sorted(task_il) == [0, 0.1, 1, 10, 100, 1000]
    for accuracy in (task_il, class_il):
        in_order = [accuracy[weight] for weight in sorted(accuracy)]
        assert in_order[:4] == sorted(in_order[:4])
    text = " ".join(readme.split())
    assert "without the supervised loss Task-IL is 17 points lower" in text
    assert "Class-IL is the same at 100 and a point lower at 1,000" in text
    assert "and Task-IL falls by two points and four" in text
    lower = {weight: round(task_il[10] - accuracy) for weight, accuracy in task_il.items()}
    assert (lower[0], lower[100], lower[1000]) == (17, 2, 4)
    assert abs(class_il[10] - class_il[100]) < 0.2
    assert round(class_il[10] - class_il[1000]) == 1


def test_what_is_said_of_single_task_learning_on_mnist():
    text = " ".join((ROOT / "benchmarks" / "README.md").read_text().split())
    runs = [json.loads((RESULTS / f"lab-mnist-5_stl_seed{n}.json").read_text()) for n in (0, 1)]
    first = [round(100 * run["task_il"]["accuracy_matrix"][0][0]) for run in runs]
    assert (
        "comes to {} and {} % there (two seeds): on MNIST it is no upper bound".format(*first)
        in text
    )
    batches = -(-2 * 100 // runs[0]["batch_size"])  # two classes of 100 images
    assert f"STL has {batches * runs[0]['epochs']} steps for its first task of MNIST" in text


def test_what_the_readme_says_of_the_loss_surfaces():
    text = " ".join((ROOT / "README.md").read_text().split())
    found = {}
    for result in results_of("loss-surface", "lab", load_results(RESULTS)[0]):
        check_same(result, cell_of(result))
        kind = (result["changes"].get("ssl"), result["changes"].get("ssl_weight"))
        found[kind] = result["losses_at_points"]["task 1"]
    kinds = (None, None), ("mocov2", 0), ("mocov2", None)
    far, between = ([found[kind][at] for kind in kinds] for at in ("task 2", "mean"))
    assert (
        "is {:.2f} without it, {:.2f} with its views alone and {:.2f} with it".format(*far) in text
    )
    assert "between the two networks {:.2f}, {:.2f} and {:.2f}".format(*between) in text


def test_the_times_of_tables_are_those_of_the_results():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    said = re.findall(r"compare ([\w-]+) --scale lab` \| (some )?([\d.]+) h \|", text)
    seconds = {
        (r["setting"], r["method"], tuple(sorted(r["changes"].items()))): r["training_seconds"]
        for r in load_results(RESULTS)[0]
        if r["seed"] == 0 and r["method"] in METHODS
    }
    checked = []
    for name, is_estimate, hours in said:
        cells = EXPERIMENTS[name].cells("lab", [0], None)
        found = [seconds.get((cell.setting, cell.method, cell.changes)) for cell in cells]
        if cells[0].method in METHODS and None not in found:
            with_evaluation = [1.5 if "tiny" in cell.setting else 1.2 for cell in cells]
            expected = sum(map(operator.mul, found, with_evaluation)) / 3600
            assert float(hours) == pytest.approx(expected, abs=0.06), name
            checked.append(name)
            assert not is_estimate, name
        elif cells[0].method in METHODS:
            assert is_estimate, name
    assert {"table1", "table3", "table4", "table7", "table8", "table10", "over-time"} <= set(
        checked
    )
    pair = [seconds["lab-tiny-10", "dlcpa-mocov2", c] for c in ((), (("lr", 0.008),))]
    words = "DLCPA with MoCoV2 took {:,.0f} seconds there, and {:,.0f} with another learning rate"
    assert words.format(*pair) in " ".join(text.split())


def test_what_the_readme_says_of_tiny_imagenet():
    text = " ".join((ROOT / "README.md").read_text().split())
    found = {}
    for result in results_of("over-time", "lab", load_results(RESULTS)[0]):
        check_same(result, cell_of(result))
        pair = [100 * result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
        found.setdefault(result["method"], []).append(pair)
    ([der], [dlcpa]) = found["der++"], found["dlcpa-mocov2"]
    assert "DER++ at {:.1f} % of Class-IL and {:.1f} % of Task-IL in the end".format(*der) in text
    assert "and DLCPA with MoCoV2 at {:.1f} and {:.1f} %.".format(*dlcpa) in text


def test_what_the_readme_says_of_the_single_task_learners():
    readme = (ROOT / "README.md").read_text()
    results = shown_in(readme, "table1")
    on = {
        name: {
            m: pair[1] for m, pair in means_of(r for r in results if name in r["setting"]).items()
        }
        for name in ("cifar100", "mnist")
    }
    assert sorted(on["cifar100"], key=on["cifar100"].get) == ["stl-me", "stl-me-finetuned", "stl"]
    assert min(on["mnist"], key=on["mnist"].get) == "stl"
    assert "On CIFAR-100 the order is the paper's. On MNIST STL is last: a task has 35" in " ".join(
        readme.split()
    )


def test_what_the_readme_says_of_the_ablations():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    results = shown_in(readme, "table4")
    means = means_of(r for r in results if r["setting"] == "lab-tiny-10")
    leads = {letter: means["dlcpa-mocov2"] - means[f"dlcpa-{letter}"] for letter in "abcde"}
    assert "(b) is a point of Class-IL ahead of DLCPA with MoCoV2" in text
    assert round(-leads["b"][0]) == 1
    assert "level there with (c), (d) and (e) and a point ahead of (a); in Task-IL it is" in text
    assert max(abs(leads[letter][0]) for letter in "cde") < 0.5
    assert round(leads["a"][0]) == 1
    assert "it is level with (b) and ahead of the others by one point and more" in text
    assert abs(leads["b"][1]) < 0.5
    assert round(min(leads[letter][1] for letter in "acde")) == 1
    fresh, first = [], []
    for name in ("dlcpa-mocov2", "naive"):
        result = json.loads((RESULTS / f"lab-tiny-10_{name}_seed0.json").read_text())
        learned = 100 * np.diag(np.array(result["task_il"]["accuracy_matrix"], float))
        fresh.append(f"{learned.mean():.0f}")
        first.append(f"{learned[0]:.0f}")
    assert (
        "right after a task it has {} % of it in Task-IL, on average over the tasks, where Naive "
        "has {} %".format(*fresh)
    ) in text
    assert (
        "Of the first task, whose mean is of one network, it has {} %, and Naive {} %".format(
            *first
        )
    ) in text


def test_what_the_readme_says_of_the_images_of_tiny_imagenet():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "and 25 of its 50 validation images, which are what we test on" in text
    runs = [r for r in load_results(RESULTS)[0] if r["setting"].startswith("lab-tiny")]
    tested = {sum(row) for r in runs for row in r["class_il"]["confusion_matrix"]}
    assert tested == {25}


def test_what_the_readme_says_of_class_il_of_all_methods():
    readme = (ROOT / "README.md").read_text()
    text = " ".join(readme.split())
    results = shown_in(readme, "table3")
    means = means_of(r for r in results if r["setting"] == "lab-tiny-10")
    found = {name: pair[0] for name, pair in means.items() if name not in ("joint", "cumulative")}
    simclr, byol, mocov2 = (found.pop(f"dlcpa-{name}") for name in ("simclr", "byol", "mocov2"))
    assert "DLCPA with SimCLR leads all that do not keep all samples" in text
    assert simclr > max(byol, mocov2, *found.values())
    assert "with BYOL it is level with iCaRL, Replay and DER++ and their 400 to 500 samples" in text
    assert max(abs(byol - found.pop(name)) for name in ("icarl", "replay", "der++")) < 0.5
    assert "more than a point ahead of the exemplar-free baselines" in text
    others = {name: value for name, value in found.items() if name not in ("gem", "agem", "der")}
    assert set(others) == {"naive", "ewc", "lwf", "mas", "si"}
    assert byol - max(others.values()) > 1
    assert "which answer with the classes of the last task and have 4 %" in text
    assert {round(value) for value in found.values()} == {4}
    assert "With MoCoV2, first in the paper, it is level with those baselines" in text
    assert 0 < mocov2 - max(others.values()) < 0.5
    assert "The paper has both more than three points ahead of DER++." in text
    printed = {p.ours: float(p.value) for p in read_published("table3") if p.setting == "tiny-10"}
    assert min(printed[f"dlcpa-{name}"] for name in ("simclr", "byol")) > printed["der++"] + 3
    assert printed["dlcpa-mocov2"] == max(v for name, v in printed.items() if name != "joint")


def test_what_the_readme_says_of_the_views_on_tiny_imagenet():
    text = " ".join((ROOT / "README.md").read_text().split())
    found = {}
    with (RESULTS / "lab_tiny_first_task.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            place = tuple(row[name] for name in ("method", "augmentation", "lr"))
            found.setdefault(place, []).append(100 * float(row["task_il_ACC"]))
    places = (
        ("dlcpa-a", "views", "0.005"),
        ("dlcpa-a", "stream", "0.005"),
        ("naive", "stream", "0.07"),
        ("dlcpa-a", "views", "0.02"),
        ("dlcpa-a", "stream", "0.02"),
    )
    of_places = [found[place] for place in places]
    assert [len(values) for values in of_places] == [2] * 5
    assert (
        "has {:.0f} % of the first task on held-out images with them and a learning rate of 0.005, "
        "{:.0f} % with Naive's augmentation in their place, and Naive {:.0f} %; with 0.02, four "
        "times as high, (a) has {:.0f} and {:.0f} %".format(*map(np.mean, of_places))
    ) in text
    assert "two seeds; up to seven points apart with that augmentation" in text
    assert round(max(np.ptp(values) for values in of_places)) == 7
    of_mocov2 = [found["dlcpa-mocov2", name, "0.002"] for name in ("views", "flips")]
    assert [len(values) for values in of_mocov2] == [1, 1]
    assert (
        "DLCPA with MoCoV2 has {:.0f} % of it with the views, and {:.0f} % with flips alone (one "
        "seed)".format(*(values[0] for values in of_mocov2))
    ) in text


def test_what_the_readme_says_of_learning_rates_on_tiny_imagenet():
    text = " ".join((ROOT / "README.md").read_text().split())
    with (RESULTS / "lab_tiny_rates.csv").open(newline="") as file:
        found = {
            row["hyperparameters"]: 100 * float(row["task_il_ACC"]) for row in csv.DictReader(file)
        }
    assert len(found) == 7
    chosen = json.loads(CHOSEN.read_text())["lab-cifar100-10"]["dlcpa-mocov2"]["hyperparameters"]
    of_chosen = found[json.dumps(chosen)]
    assert "of seven pairs tried on held-out images" in text
    assert "the best is a point of Task-IL ahead of that pair" in text
    assert round(max(found.values()) - of_chosen) == 1
    names = ("dlcpa-mocov2", f"dlcpa-mocov2_lr={4 * chosen['lr']}")
    ends = []
    for name in names:
        result = json.loads((RESULTS / f"lab-tiny-10_{name}_seed0.json").read_text())
        ends.append([100 * result[scenario]["ACC"] for scenario in ("class_il", "task_il")])
    assert np.abs(np.subtract(*ends)).max() < 0.5
    assert (
        "with four times the plastic learner's rate (`--set lr=0.008`) the whole run ends within "
        "half a point of the row above, at {:.1f} and {:.1f} %.".format(*ends[1])
    ) in text
