"""A folder of checkpoints belongs to one process at a time."""

import copy
import gc
import multiprocessing
import os
import signal
import warnings

import pytest
from helpers import SmallCNN, strategy_of

from avalanche_dlcpa import folder_lock
from avalanche_dlcpa.folder_lock import lock_folder

FORK = multiprocessing.get_context("fork")


def _hold(folder, answers, words):
    try:
        lock = lock_folder(folder)
        answers.put("refused" if lock is None else "locked")
        words.get()
    except ValueError as error:
        answers.put(str(error))


class OtherProcess:
    """A process that locks a folder, and holds it until told to end."""

    def __init__(self, folder):
        self.answers, self.words = FORK.Queue(), FORK.Queue()
        arguments = (folder, self.answers, self.words)
        self.process = FORK.Process(target=_hold, args=arguments, daemon=True)
        self.process.start()
        self.answer = self.answers.get(timeout=60)

    def end(self):
        self.words.put("end")
        self.process.join(60)

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)


@pytest.fixture
def other(tmp_path):
    process = OtherProcess(tmp_path / "run")
    yield process
    process.end()


def test_a_strategy_is_refused_while_another_process_runs(tmp_path, other):
    assert other.answer == "locked"
    strategy = strategy_of(SmallCNN())
    match = rf"'{tmp_path / 'run'}', where process {other.process.pid} on .* is running: give each"
    with pytest.raises(ValueError, match=match):
        strategy.resume(tmp_path / "run")
    strategy.resume(tmp_path / "another")
    other.end()
    again = strategy_of(SmallCNN())
    assert again.resume(tmp_path / "run") == 0


def test_a_killed_process_leaves_no_lock(tmp_path, other):
    other.kill()
    assert lock_folder(tmp_path / "run") is not None


def test_within_a_process_a_run_may_be_started_again(tmp_path):
    first, second = lock_folder(tmp_path), lock_folder(tmp_path)
    assert first is second is not None
    del first
    gc.collect()
    assert "that no other process uses" in OtherProcess(tmp_path).answer
    del second
    gc.collect()
    process = OtherProcess(tmp_path)
    assert process.answer == "locked"
    process.end()


def test_a_forked_loader_worker_neither_has_nor_keeps_the_lock(tmp_path):
    lock = lock_folder(tmp_path)
    end = FORK.Event()
    worker = FORK.Process(target=end.wait, daemon=True)
    worker.start()
    del lock
    gc.collect()
    process = OtherProcess(tmp_path)
    assert process.answer == "locked"
    process.end()
    end.set()
    worker.join(60)


def test_a_copy_of_a_strategy_holds_no_lock(tmp_path):
    strategy = strategy_of(SmallCNN())
    strategy.resume(tmp_path)
    copied = copy.deepcopy(strategy)
    assert "that no other process uses" in OtherProcess(tmp_path).answer
    del strategy
    gc.collect()
    process = OtherProcess(tmp_path)
    assert process.answer == "locked"
    assert copied.resume(tmp_path / "another") == 0
    process.end()


def test_a_folder_that_was_removed_is_locked_anew(tmp_path):
    first = lock_folder(tmp_path / "run")
    (tmp_path / "run" / folder_lock.NAME).unlink()
    (tmp_path / "run").rmdir()
    second = lock_folder(tmp_path / "run")
    assert second is not first
    assert "that no other process uses" in OtherProcess(tmp_path / "run").answer


def test_where_nothing_can_be_written_there_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="could not be locked .*no other run may use it"):
        assert lock_folder(tmp_path / "file" / "run") is None


def test_where_the_system_has_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "fcntl", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lock_folder(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()
