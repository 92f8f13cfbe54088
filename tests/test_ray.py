import signal
import time

import psutil
import pytest

from benchmarks.cells import grid, read_result, result_path
from benchmarks.live import run_grid
from benchmarks.run import run_cell

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

CELLS = grid(["naive", "ewc"], ["digits-cifar100-5"], [0, 1])


@pytest.fixture(scope="module")
def cluster():
    yield  # started by the first grid, as for users: the code goes to the workers as a package
    ray.shutdown()


def at_work():
    """The processes that work on a cell."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith("ray::_run"):
            found.append(process)
    return found


def run_all(cells, folder):
    from benchmarks.ray_pool import run_on_ray

    return run_on_ray(
        cells, folder, address="local", gpus=0, threads=1, dataset_root=None, device="cpu"
    )


def test_a_cell_whose_worker_is_killed_is_not_lost(cluster, tmp_path):
    killed = []

    def run_and_kill(cells):
        for reports in run_all(cells, tmp_path):
            if not killed:
                deadline = time.monotonic() + 300
                while not (workers := at_work()):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                workers[0].send_signal(signal.SIGKILL)
                killed.append(workers[0].pid)
            yield reports

    ended = []
    failures = run_grid(CELLS, run_and_kill, on_end=lambda cell, failure: ended.append(cell))
    assert killed
    assert failures == {}
    assert sorted(cell.name for cell in ended) == sorted(cell.name for cell in CELLS)
    for cell in CELLS:
        found, expected = read_result(result_path(cell, tmp_path)), run_cell(cell)
        assert found["task_il"] == expected["task_il"]
        assert found["class_il"] == expected["class_il"]
        assert found["provenance"]["commit"] == expected["provenance"]["commit"]


def test_a_cell_that_fails_is_reported_with_its_reason(cluster, tmp_path):
    cells = grid(["naive"], ["digits-cifar100-5"], [0], [{"lr": 1e30}, {}])
    failures = run_grid(cells, lambda chosen: run_all(chosen, tmp_path))
    assert list(failures) == cells[:1]
    assert "Expected finite weights after 1 experiences" in failures[cells[0]]
    assert [path.name for path in tmp_path.iterdir()] == [f"{cells[1].name}.json"]
