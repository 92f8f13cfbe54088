"""`make soak` in small form: killed in a step, while writing and while evaluating."""

import multiprocessing
import os
import signal
import warnings

import pytest

from benchmarks import soak


class ForkedLife:
    """A life in a fork, which need not import everything again; answers as a Popen does."""

    def __init__(self, folder, words):
        receiving, sending = os.pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=self._live, args=(sending, ["--life", str(folder), *words])
        )
        self._process.start()
        os.close(sending)
        self.stdout = os.fdopen(receiving, "rb")

    @staticmethod
    def _live(sending, words):
        os.dup2(sending, 1)
        warnings.simplefilter("ignore")
        soak.main(words)

    def poll(self):
        return self._process.exitcode

    @property
    def returncode(self):
        return self._process.exitcode

    def kill(self):
        os.kill(self._process.pid, signal.SIGKILL)

    def wait(self):
        self._process.join()
        self.stdout.close()

    def communicate(self):
        self.stdout.read()
        self.wait()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(num_workers):
    found = soak.soak(
        kills=3, epochs=2, num_tasks=2, num_workers=num_workers, seed=1, start=ForkedLife
    )
    assert found["kills"] == {"step": 1, "write": 1, "eval": 1}
    assert found["iterations"] == 2 * 2 * 9
    assert found["identical"]
