"""What a worker's process does with memory that was let go of."""

import ctypes
import resource
import subprocess
import sys

import pytest

from paceline.engine import prepare
from paceline.engine.planning.build import assemble
from paceline.engine.training.worker import prepare_process

PASSES, BLOCKS, SIZE = 5, 5, 10 * 2**20  # together less than is kept, more than malloc would keep by itself


@pytest.mark.slow
def test_what_a_pass_frees_serves_the_next_one() -> None:
    """Malloc is told once and for all, so in a process of its own."""
    ended = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < BLOCKS * SIZE / resource.getpagesize() / 10


def pages_taken_anew() -> int:
    """By passes that each take the same blocks and free them all."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p

    def one_pass() -> None:
        blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(SIZE))) for _ in range(BLOCKS)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE)
        for block in blocks:
            libc.free(block)

    one_pass()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(PASSES):
        one_pass()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


if __name__ == "__main__":
    experiment = prepare(["hardware.device=cpu"]).experiment
    prepare_process(experiment, assemble(experiment, ()), 0)
    print(pages_taken_anew())
