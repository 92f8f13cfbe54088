"""The same grids on Ray: a cluster of two machines, each with one core, and one GPU in name."""

import json
import signal
import sys

import psutil
import pytest

from benchmarks import compare, hyperparameters
from benchmarks.cells import checkpoints_path, grid, read_result, result_path
from benchmarks.live import run_grid
from benchmarks.run import run_cell

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

from benchmarks import ray_pool  # noqa: E402 - it wants Ray

TWIN = "digits-cifar100-10"  # five tasks, a second each
CELLS = grid(["naive", "dlcpa-mocov2"], [TWIN], [0, 1])


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        # Ray's workers step back behind other work, and give up where a busy machine keeps them
        environment.setenv("RAY_worker_niceness", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1})
        cluster.add_node(num_cpus=1)
        yield cluster.address
        ray.shutdown()
        cluster.shutdown()


def run_all(cells, folder, address, *, gpus=0, **options):
    from benchmarks.ray_pool import run_on_ray

    return run_on_ray(
        cells, folder, address=address, gpus=gpus, threads=1, dataset_root=None, device="cpu",
        **options,
    )  # fmt: skip


def workers():
    """The processes that work on a cell."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith("ray::_run"):
            found.append(process)
    return found


def numbers(result):
    return [result["class_il"], result["task_il"], result["provenance"]["commit"]]


def test_a_cell_whose_worker_is_killed_midway_is_not_lost(address, tmp_path, monkeypatch):
    from benchmarks import ray_pool

    monkeypatch.setattr(ray_pool, "POLL_SECONDS", 0.05)
    results, kept = tmp_path / "results", tmp_path / "kept"
    most_at_work, learned, killed, victims = [], {}, [], []

    def run_and_kill(cells):
        for reports in run_all(cells, results, address, checkpoints=kept):
            begun = [report for report in reports if not report.ended]
            for report in begun:
                learned.setdefault(report.cell, []).append(report.learned)
            busy = [report for report in begun if report.learned < report.cell.num_experiences]
            midway = [r for r in busy if r.cell.method != "naive" and r.learned > 1]
            if not killed:
                most_at_work.append(len(busy))
            if midway and not killed and max(most_at_work) == 2:
                killed.append(midway[0])
                victims.extend(workers())  # of both machines
                for worker in victims:
                    worker.send_signal(signal.SIGKILL)
            yield reports

    ended = []
    failures = run_grid(CELLS, run_and_kill, on_end=lambda cell, failure: ended.append(cell))
    assert failures == {}
    assert max(most_at_work) == 2  # on both machines; what waits is not shown as if it ran
    assert sorted(cell.name for cell in ended) == sorted(cell.name for cell in CELLS)
    before = killed[0].learned
    again = learned[killed[0].cell]
    again = again[again.index(before) :]
    assert victims
    assert not {*range(1, before)} & {*again}  # begun a second time, and gone on where it was
    for cell in CELLS:
        assert numbers(read_result(result_path(cell, results))) == numbers(run_cell(cell))
        assert not checkpoints_path(cell, kept).exists()


def test_what_another_grid_has_written_meanwhile_is_left_alone(address, tmp_path):
    path, failures = result_path(CELLS[0], tmp_path), []
    path.write_text('{"format": 1}')  # after the other grid has looked for it
    for reports in run_all(CELLS[:1], tmp_path, address):
        failures += [report.failure for report in reports if report.ended]
    assert [failure.partition(":")[0] for failure in failures] == [
        f"Expected {path.name} to have format 3, got 1"
    ]
    assert path.read_text() == '{"format": 1}'


@pytest.mark.parametrize("gpus", [0.5, 1])
def test_a_cell_takes_its_fraction_of_a_gpu(address, tmp_path, monkeypatch, gpus):
    from benchmarks import ray_pool

    monkeypatch.setattr(ray_pool, "POLL_SECONDS", 0.05)
    left = set()
    for reports in run_all(CELLS[1:2], tmp_path, address, gpus=gpus):
        if any(report.learned for report in reports if not report.ended):
            left.add(ray.available_resources().get("GPU", 0))
    assert min(left) == 1 - gpus


def test_the_command_runs_on_a_cluster(address, tmp_path, monkeypatch, capsys):
    words = ["compare", "--methods", "naive", "--settings", TWIN, "--seeds", "0", "1"]
    monkeypatch.setattr(
        sys, "argv", [*words, "--ray", address, "--gpus", "0.5", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        compare.main()
    assert end.value.code == 0
    printed = capsys.readouterr()
    assert "2 run, 0 failed, 0 skipped" in printed.out
    assert "--gpus 0.5 with --device cpu: cells hold GPUs and do not use them" in printed.err
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_cells_take_what_this_process_has_chosen_since_it_sent_its_code(
    address, tmp_path, monkeypatch
):
    (cell,) = grid(["naive"], [TWIN], [0])
    list(run_all([cell], tmp_path / "before", address))
    values = {**cell.hyperparameters, "lr": 0.017}
    chosen = tmp_path / "hyperparameters.json"
    chosen.write_text(json.dumps({"digits": {"naive": {"hyperparameters": values}}}))
    monkeypatch.setattr(hyperparameters, "CHOSEN", chosen)
    list(run_all([cell], tmp_path / "after", address))
    assert read_result(result_path(cell, tmp_path / "after"))["hyperparameters"] == values


def test_a_cell_that_fails_is_reported_with_its_reason(address, tmp_path):
    cells = grid(["naive"], [TWIN], [0], [{"lr": 1e30}, {}])
    failures = run_grid(cells, lambda chosen: run_all(chosen, tmp_path, address))
    assert list(failures) == cells[:1]
    assert "Expected finite weights after 1 experiences" in failures[cells[0]]
    assert [path.name for path in tmp_path.iterdir()] == [f"{cells[1].name}.json"]


def test_the_command_starts_a_ray_of_its_own(tmp_path, monkeypatch, capsys):
    ray.shutdown()  # whatever the other tests have joined
    words = ["compare", "--methods", "naive", "--settings", TWIN, "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--ray", "local", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        compare.main()
    ray.shutdown()
    assert end.value.code == 0
    assert "2 run, 0 failed, 0 skipped" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_cluster_that_is_not_there_is_named(tmp_path, monkeypatch):
    ray.shutdown()  # whatever the other tests have joined
    words = ["compare", "--methods", "naive", "--settings", TWIN, "--ray", "no-address"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="Expected --ray to be the address of a Ray cluster that"):
        compare.main()


@pytest.mark.parametrize(("gpus", "threads"), [(2, 1), (0, 2)])
def test_a_cell_for_which_no_machine_has_enough_is_not_waited_for_in_silence(
    address, gpus, threads, capsys
):
    if not ray.is_initialized():
        ray.init(address=address)
    needs = {"gpus": gpus, "threads": threads}
    message = f"Expected a machine with {gpus} GPUs and {threads} CPUs for each cell, got 2 with at"
    with pytest.raises(ValueError, match=message):
        ray_pool._expect_machine(**needs, is_local=True)
    ray_pool._expect_machine(**needs, is_local=False)
    assert message in capsys.readouterr().err
    ray_pool._expect_machine(gpus=1, threads=1, is_local=True)
    assert not capsys.readouterr().err
