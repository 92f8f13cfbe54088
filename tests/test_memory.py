"""The most memory of a run: its own alone, and from where it began to count."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEGABYTE = 2**20
CHILD = """
from benchmarks.memory import peak_bytes, reset_peak
before = peak_bytes("cpu")
block = bytearray(b"1") * (400 * 2**20)
after = peak_bytes("cpu")
del block
reset_peak("cpu")
print(before, after, peak_bytes("cpu"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let no process reset its peak")
def test_the_peak_is_that_of_the_process_alone_and_can_be_reset():
    block = bytearray(b"1") * (1500 * MEGABYTE)  # of the process that starts it
    child = [sys.executable, "-W", "ignore", "-c", CHILD]
    words = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before, after, reset = (int(word) / MEGABYTE for word in words.split())
    assert len(block) > before * MEGABYTE
    assert after - before == pytest.approx(400, abs=40)
    assert reset - before == pytest.approx(0, abs=40)
