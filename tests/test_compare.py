import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import compare, hyperparameters, live, trials
from benchmarks.analyses import ANALYSES
from benchmarks.cells import Cell, checkpoints_path, grid, read_result, result_path
from benchmarks.experiments import EXPERIMENTS
from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import PUBLISHED
from benchmarks.live import run_grid
from benchmarks.methods import METHODS as ALL_METHODS
from benchmarks.pool import Progress, run_in_processes
from benchmarks.run import run_cell
from benchmarks.settings import SCALES, SETTINGS

ROOT = Path(__file__).parents[1]
TWIN = "digits-cifar100-5"  # two tasks, a second a cell
METHODS = ("naive", "ewc", "dlcpa-mocov2")  # the last keeps checkpoints
GRID = grid(METHODS, [TWIN], range(4))
COMMAND = [
    *(sys.executable, "-W", "ignore", "-m", "benchmarks.compare"),
    *("--methods", *METHODS, "--settings", TWIN, "--seeds", *map(str, range(4))),
    *("--jobs", "2", "--out"),
]


def call(*words, **options):
    return subprocess.run(
        [*COMMAND[:5], *map(str, words)], cwd=ROOT, capture_output=True, text=True, **options
    )


def results_of(folder):
    """Files of results; a process that was killed while it wrote one leaves a draft beside them."""
    return list(folder.glob("*_seed*.json"))


def numbers(folder):
    """Of all results: what does not depend on time and place."""
    results = {path.name: read_result(path) for path in results_of(folder)}
    return {name: (r["class_il"], r["task_il"]) for name, r in results.items()}


@pytest.fixture(scope="module")
def undisturbed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = {f"{cell.name}.json": run_cell(cell) for cell in GRID}
    torch.set_num_threads(threads)
    return {name: (r["class_il"], r["task_il"]) for name, r in results.items()}


def test_a_grid_killed_three_times_ends_with_the_results_of_an_undisturbed_one(
    undisturbed, tmp_path
):
    generator = random.Random(0)
    for life in range(3):
        process = subprocess.Popen(
            [*COMMAND, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        if life == 1:  # at any moment from its start on, with all that it has started
            time.sleep(generator.uniform(0, 12))
            os.killpg(process.pid, signal.SIGKILL)
        else:
            wait_for_a_cell(tmp_path, process)
        if life == 0:  # amid the training of a cell that goes on from its checkpoint
            wait_for(lambda: any(tmp_path.glob("*.checkpoints/*")), process)
        else:
            time.sleep(generator.uniform(0, 4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for_orphans(tmp_path)
    assert 0 < len(numbers(tmp_path)) < len(GRID)
    assert call(*COMMAND[5:], tmp_path).returncode == 0
    assert numbers(tmp_path) == undisturbed
    assert len(undisturbed) == 12
    # a killed process may leave the draft of its result, which ends in .json as well
    assert {p.name for p in tmp_path.iterdir() if p.suffix != ".json"} <= {"logs"}


def wait_for_a_cell(folder, process):
    """Until the process has added a result."""
    before = len(results_of(folder))
    wait_for(lambda: len(results_of(folder)) > before, process)


def wait_for(happened, process):
    while not happened():
        assert process.poll() is None
        time.sleep(0.05)


def wait_for_orphans(folder):
    """Until no process works for this folder any more: they end with the one that started them."""
    deadline = time.monotonic() + 120  # a busy machine lets them end late
    while at_work(folder):
        assert time.monotonic() < deadline, "cells outlive the comparison that started them"
        time.sleep(0.1)


def at_work(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if b"benchmarks.worker" in words and os.fsencode(folder) in words:
            found.append(int(path.parent.name))
    return found


def test_what_is_there_is_not_run_again_and_what_is_not_sound_is_left_alone(tmp_path, capsys):
    cells = grid(["naive"], [TWIN], range(4))
    good, short, old, other = (result_path(cell, tmp_path) for cell in cells)
    list(run_in_processes(cells[:1], tmp_path, jobs=1, options=[]))
    text = good.read_text()
    short.write_text(text[:100])
    old.write_text(json.dumps({**json.loads(text), "format": 1}))
    other.write_text(json.dumps({**json.loads(text), "epochs": 99}))
    before = {path: path.read_bytes() for path in (good, short, old, other)}
    answer = call(
        "--methods", "naive", "--settings", TWIN, "--seeds", 0, 1, 2, 3, "--out", tmp_path
    )
    assert {path: path.read_bytes() for path in before} == before
    assert answer.returncode == 1
    assert "4 cells: 1 are there, 0 to run" in answer.stdout
    assert (
        f"skipped: {cells[1].name}: Expected {short.name} to hold a whole result" in answer.stdout
    )
    assert "to have format 3, got 1" in answer.stdout
    assert "to have epochs 2, got 99" in answer.stdout


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("naive", ("strength", 1), "Expected hyperparameters that naive has, got strength:"),
        ("dlcpa-byol", ("queue_size", 64), "that dlcpa-byol has, got queue_size:"),
        ("replay", ("buffer_size", 0), "Expected `buffer_size` to be a whole number from 1 on"),
        ("dlcpa-byol", ("precision", "bf61"), "Expected hyperparameters that suit dlcpa-byol"),
        ("dlcpa-byol", ("ema_decay", 0.5), "of the cumulative mean, got ema_decay 0.5: name dlcpa"),
        ("ewc", ("mode", "online"), "You need to set `decay_factor` to use the `online`"),
        ("naive", ("lr+", 1), "Expected hyperparameters that naive has, got lr+:"),
        ("stl-me", ("finetune_lr", 0.1), "got finetune_lr 0.1: name stl-me-finetuned"),
    ],
)
def test_a_cell_that_could_not_be_built_is_not_run(tmp_path, method, change, message):
    bad, naive = Cell(method, TWIN, 1, (change,)), Cell("naive", TWIN)
    missing, done, refused = compare.sort_out([bad, naive], tmp_path)
    assert (missing, done, list(refused)) == ([naive], [], [bad])
    assert message in refused[bad]


def test_a_cell_that_fails_is_reported_with_its_reason_and_stops_no_other(tmp_path, capsys):
    bad = Cell("ewc", TWIN, 0, (("lr", 1e30),))
    good = Cell("naive", TWIN, 0)
    ended = []
    failures = run_grid(
        [bad, good],
        lambda cells: run_in_processes(cells, tmp_path, jobs=1, options=[]),
        on_end=lambda cell, failure: ended.append((cell, failure is None)),
    )
    assert ended == [(bad, False), (good, True)]
    assert list(failures) == [bad]
    assert "NonFiniteLossError: Expected finite weights after 1 experiences" in failures[bad]
    assert [p.name for p in results_of(tmp_path)] == [f"{good.name}.json"]
    (log,) = (tmp_path / "logs").iterdir()
    assert log.name == f"{bad.name}.log"
    assert "Traceback" not in log.read_text()


def test_when_a_grid_is_stopped_nothing_is_at_work_any_more(tmp_path):
    def stopped(*_):
        raise KeyboardInterrupt

    def run(cells):
        return run_in_processes(cells, tmp_path, jobs=2, options=[])

    with pytest.raises(KeyboardInterrupt) as stop:
        run_grid(grid(["naive", "dlcpa-mocov2"], [TWIN], [0]), run, on_end=stopped)
    assert not at_work(tmp_path)
    assert stop.tb  # keeps the frame that was interrupted, as a handler does


def test_the_view_says_what_is_at_work_also_where_no_task_has_ended(monkeypatch, capsys):
    first, second, third = grid(["naive", "ewc", "lwf"], [TWIN], [0])

    def run_nothing(cells):
        yield [Progress(first, 1)]
        yield [Progress(first, 2, ended=True), Progress(second, 0)]
        yield [Progress(second, 0), Progress(third, 0)]
        yield [Progress(second, 1, ended=True, failure="lost"), Progress(third, 2, ended=True)]

    monkeypatch.setattr(live, "LOG_SECONDS", 0.0)
    assert run_grid([first, second, third], run_nothing) == {second: "lost"}
    lines = [line.strip() for line in capsys.readouterr().err.split("\r") if " tasks" in line]
    at_work = f"{second.name} (0); {third.name} (0)"
    assert any("2/6 tasks" in line and line.endswith(at_work) for line in lines)
    assert "5/5 tasks" in lines[-1]  # the task that was lost is not counted


def test_what_an_earlier_life_learned_took_no_time_of_this_one(monkeypatch, capsys):
    (cell,) = grid(["dlcpa-mocov2"], ["digits"], [0])

    def go_on_with_the_fourth_of_five(cells):
        yield [Progress(cell, 3, resumed=3)]
        time.sleep(2.1)
        yield [Progress(cell, 4, resumed=3)]
        yield [Progress(cell, 5, resumed=3, ended=True)]

    monkeypatch.setattr(live, "LOG_SECONDS", 0.0)
    run_grid([cell], go_on_with_the_fourth_of_five)
    (line,) = (line for line in capsys.readouterr().err.split("\r") if "4/5 tasks" in line)
    assert "00:02, 00:02 left" in line  # a task took two seconds, and one is left


def test_a_cell_that_was_killed_is_told_with_the_signal(tmp_path):
    told, cell = [], Cell("naive", TWIN)
    for reports in run_in_processes([cell], tmp_path, jobs=1, options=[]):
        told += reports
        for child in psutil.Process().children():
            if "benchmarks.worker" in child.cmdline():
                child.send_signal(signal.SIGKILL)
    log = tmp_path / "logs" / f"{cell.name}.log"
    assert told[-1].failure == f"killed by SIGKILL after 0 experiences (see {log})"
    assert log.exists()


def test_a_log_is_named_as_it_can_be_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failure = None
    for reports in run_in_processes(
        [Cell("naive", TWIN)], tmp_path / "out", jobs=1, options=["--device", "nowhere"]
    ):
        failure = reports[-1].failure
    _, _, place = failure.rpartition(" (see ")
    assert place.startswith("out/logs/")
    assert (tmp_path / place.removesuffix(")")).exists()


def test_two_grids_in_one_folder_keep_their_logs_apart(tmp_path):
    cells = grid(["naive"], [TWIN], [0])
    (tmp_path / "logs").mkdir()
    other = tmp_path / "logs" / f".{cells[0].name}.1.log"  # of another process
    other.write_text("learned 2 experiences\n")
    reports = [r for rs in run_in_processes(cells, tmp_path, jobs=1, options=[]) for r in rs]
    assert reports[0].learned == 0
    assert reports[-1].ended
    assert other.exists()


def test_checkpoints_that_a_kill_has_left_beside_a_result_are_removed(tmp_path, monkeypatch):
    cell = Cell("dlcpa-mocov2", TWIN)
    list(run_in_processes([cell], tmp_path, jobs=1, options=[]))
    checkpoints_path(cell, tmp_path).mkdir()
    words = ["compare", "--methods", cell.method, "--settings", TWIN, "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        compare.main()
    assert end.value.code == 0
    assert not checkpoints_path(cell, tmp_path).exists()


def test_ctrl_c_while_tuning_counts_what_is_left(tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "tune", stopped)
    monkeypatch.setattr(hyperparameters, "CHOSEN", tmp_path / "nothing.json")
    words = ["compare", "--tune", "--methods", "naive", "--settings", TWIN, "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="stopped with 2 cells left; the same command goes on"):
        compare.main()


def test_ctrl_c_says_how_to_go_on(tmp_path):
    (tmp_path / ".1.draft.json").write_text("{")  # a life that ended while it wrote a result
    process = subprocess.Popen(
        [*COMMAND, tmp_path],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests run in the background, it would be ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for_a_cell(tmp_path, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    left = len(GRID) - len(numbers(tmp_path))
    assert process.returncode == 1
    assert f"stopped with {left} cells left; the same command goes on" in said
    assert not at_work(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "ewk", "--settings", "digits"], "got 'ewk'. Did you mean 'ewc'?"),
        (["--methods", "ewc", "--settings", "digitz"], "got 'digitz'. Did you mean 'digits'?"),
        (["tabel4"], "Expected a table or figure by name, got 'tabel4'. Did you mean 'table4'?"),
        (["table4", "--methods", "ewc"], "Expected a method by name, got 'ewc'. There are dlcpa-a"),
        ([], "Expected a table or figure, or --methods and --settings, got neither. There are tab"),
        (
            ["table4", "--set", "lr=1"],
            "Expected 'table4' alone, whose settings and changes are its",
        ),
        (
            ["table4", "--ssl", "byol"],
            "Expected 'table4' alone, whose settings and changes are its",
        ),
        (["--methods", "dlcpa-a", "--settings", "digits", "--ssl", "byol"], "which has its own"),
        (["table4", "--jobs", "0"], "--jobs: Expected a whole number of at least 1, got 0"),
        (["table4", "--gpus", "0.5"], "Expected --gpus with --ray alone, got 0.5"),
        *(
            (["table4", "--ray", "local", f"--gpus={word}"], f"or a whole one above, got {word}.")
            for word in ("-1", "nan", "inf", "1.5", "half")
        ),
        (["table4", "--jobs", "2", "--ray", "local"], "Expected --jobs without --ray"),
        (
            ["table4", "--ray", "local", "--device", "cuda"],
            "Expected --gpus with --ray and --devic",
        ),
        (["table4", "--checkpoints", "kept"], "Expected --checkpoints with --ray alone, got kept"),
        (
            ["--methods", "ewc", "--settings", "cifar100-10", "--scale", "lab"],
            "Expected --scale with a table or figure alone, got --scale lab",
        ),
        (
            ["--methods", "ewc", "--settings", "digits", "--ssl", "mocov3"],
            "got 'mocov3'. Did you mean 'mocov2'?",
        ),
        (
            ["--methods", "packnet", "--settings", "digits", "--ssl", "byol"],
            "Expected a method whose network takes images alone with --ssl, got packnet",
        ),
        (
            ["--methods", "ewc", "--settings", "digits", "--set", "lr=[1,2]"],
            "Expected a number or a word for lr, got '[1,2]'",
        ),
    ],
)
def test_an_unknown_word_is_refused_before_anything_runs(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["compare", *words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        compare.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_help_names_all_methods_and_settings(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", "--help"])
    with pytest.raises(SystemExit):
        compare.main()
    _, _, below = capsys.readouterr().out.partition("methods: ")
    methods, _, settings = below.partition("settings: ")
    assert methods.replace(",", "").split() == [*ALL_METHODS, *ANALYSES]
    assert settings.replace(",", "").split() == list(SETTINGS)


NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def test_data_that_are_missing_are_named_with_their_place(tmp_path):
    words = ["--methods", "dlcpa-mocov2", "--settings", "cifar100-10", "--seeds", 0]
    out = tmp_path / "out"
    answer = call(
        *words, "--dataset-root", tmp_path / "nowhere", "--out", out,
        env={**os.environ, **NO_NETWORK, "no_proxy": ""}, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 1
    assert "lacks cifar-100-python/train" in answer.stdout
    assert str(tmp_path / "nowhere") in answer.stdout
    (log,) = (out / "logs").iterdir()
    assert "Traceback" not in log.read_text()


TRIAL = '"{""lr"": 0.1, ""last_epochs"": 1}"'  # as tuning.csv writes it


@pytest.fixture
def checkout_with_a_trial_missing(tmp_path):
    """A copy of the benchmarks in which one trial of Naive was not run, and nothing chosen."""
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    results = tmp_path / "benchmarks" / "results"
    rows = (results / "tuning.csv").read_text().splitlines()
    kept = [row for row in rows if not (row.startswith("digits,naive,") and TRIAL in row)]
    assert len(rows) - len(kept) == 3  # seeds
    (results / "tuning.csv").write_text("\n".join(kept) + "\n")
    chosen = json.loads((results / "hyperparameters.json").read_text())
    del chosen["digits"]["naive"]
    expected = trials.best(trials.in_grids(trials.read_rows()), "digits", "naive", [0])
    (results / "hyperparameters.json").write_text(json.dumps(chosen))
    return tmp_path, expected["hyperparameters"]


def test_tune_first_runs_what_is_missing_and_chooses(checkout_with_a_trial_missing):
    folder, expected = checkout_with_a_trial_missing
    words = ["--tune", "--methods", "naive", "--settings", TWIN, "--seeds", "0", "--out", "out"]
    done = subprocess.run(
        [*COMMAND[:5], *words], cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert "tuning naive in digits, on the validation split" in done.stdout
    results = folder / "benchmarks" / "results"
    rows = (results / "tuning.csv").read_text().splitlines()
    assert sum(row.startswith("digits,naive,") and TRIAL in row for row in rows) == 1
    chosen = json.loads((results / "hyperparameters.json").read_text())["digits"]["naive"]
    assert chosen["hyperparameters"] == expected
    (path,) = (folder / "out").glob("*.json")
    assert read_result(path)["hyperparameters"] == expected


@pytest.mark.parametrize(("cell", "source"), [
    (Cell("dlcpa-mocov2-gaussian", "digits"), "dlcpa-mocov2"),
    (Cell("linear-probe", TWIN), "stl"),
    (Cell("ewc", TWIN), "ewc"),
])  # fmt: skip
def test_tuning_chooses_for_the_method_that_a_cell_trains_as(cell, source, monkeypatch, tmp_path):
    asked = []

    def tune(setting, methods, *_, **__):
        asked.append((setting, list(methods)))
        return {cell: "NonFiniteLossError"}

    def choose(setting, methods, seeds):
        raise ValueError(f"Expected tuning rows of {methods[0]}, got none.")

    monkeypatch.setattr(compare, "tune", tune)
    monkeypatch.setattr(compare, "choose", choose)
    monkeypatch.setattr(compare, "has_values", lambda method, setting: False)
    words = ["compare", "--tune", "--methods", cell.method, "--settings", cell.setting]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"Expected tuning rows of {source}, got none"):
        compare.main()
    assert asked == [("digits", [source])]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_and_figure_can_be_tuned_where_nothing_is_known(name, scale):
    for cell in EXPERIMENTS[name].cells(scale, [0]):
        source = SETTINGS[cell.setting].tuned_on or cell.setting
        known = {**GRIDS.get(source, {}), **PUBLISHED.get(source, {})}
        assert set(cell.sources) <= known.keys(), cell.name
        if scale == "digits" or (name, scale) == ("grid", "lab"):
            assert cell.hyperparameters


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_and_figure_has_cells_at_every_scale(name):
    counts = {scale: len(EXPERIMENTS[name].cells(scale, [0, 1])) for scale in ("paper", "lab")}
    assert counts["paper"] == counts["lab"] > 0
    assert len(EXPERIMENTS[name].cells("digits", [0])) * 2 == counts["paper"]
