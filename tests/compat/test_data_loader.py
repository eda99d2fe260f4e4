"""What paceline uses of torch's DataLoader beside its public interface."""

import os
import signal
import subprocess
import sys

import pytest
from torch.utils.data import DataLoader, Dataset

from paceline.compat.data_loader import shut_down


class Deadly(Dataset[int]):
    def __getitem__(self, number: int) -> int:
        if number:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def test_processes_that_were_shut_down_are_no_error_later() -> None:
    iterator = iter(DataLoader(Deadly(), batch_size=None, sampler=range(4), num_workers=1, timeout=30))
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        while True:
            next(iterator)
    shut_down(iterator)
    subprocess.run([sys.executable, "-c", ""], check=True)  # its end is a SIGCHLD, which torch's handler looks at
