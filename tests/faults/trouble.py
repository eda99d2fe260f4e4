"""A user's model that does harm in one worker: in its constructor, or in its forward pass after some steps."""

import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.tasks.base import DataSpec

FOREVER = 3600.0  # seconds
MEGABYTES = 20


class BurntError(Exception):
    """An exception of the user's."""


class LuckyError(Exception):
    """Its attributes are named as those of paceline's own errors are."""

    exit_code = 0
    missing = "nobody"
    virtual_rank = "none"
    details = 7


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Trouble(nn.Sequential):
    """[n, 1, 8, 8] -> [n, 10]. Worker `rank` does `act` in step `at`, or when the model is made (-1)."""

    def __init__(self, spec: DataSpec, act: str = "none", rank: int = 1, at: int = 8, pause: float = 0.0) -> None:
        harms = multiprocessing.current_process().name == f"paceline-worker-{rank}"
        if harms and at < 0:
            harm(act)
        last = Last(act if harms else "none", at, pause)
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, spec.classes), last)


class Last(nn.Module):
    """Passes on what it gets, and does harm in the training step `at`."""

    def __init__(self, act: str, at: int, pause: float) -> None:
        super().__init__()
        self.act, self.at, self.pause, self.step = act, at, pause, 0

    def forward(self, input: Tensor) -> Any:
        if not self.training:
            return input
        time.sleep(self.pause)
        self.step += 1
        return harm(self.act, input) if self.step == self.at + 1 else input


def harm(act: str, output: Any = None) -> Any:
    getattr(sys.modules[__name__], f"_{act}")()
    return {"object": SimpleNamespace(logits=output), "nothing": None, "text": "10"}.get(act, output)


def _none() -> None: ...


_object = _nothing = _text = _none


def _raise() -> None:
    raise BurntError("the coffee machine is on fire")


def _raise_long() -> None:
    raise BurntError("the coffee machine is on fire" + " and burns" * 100_000)


def _raise_empty() -> None:
    raise BurntError


def _raise_lucky() -> None:
    raise LuckyError("all is well")


def _raise_mute() -> None:
    raise MuteError


def _raise_escapes() -> None:
    raise BurntError("\x1b[2J\x1b]0;owned\x07\u202eelttil\r\x9b31m")


def _raise_surrogates() -> None:
    raise BurntError("\ud800 \udfff")


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _raise_generator_exit() -> None:
    raise GeneratorExit


def _raise_memory_error() -> None:
    raise MemoryError


def _assert() -> None:
    assert sys is None


def _wait_for_go() -> None:
    deadline = time.monotonic() + FOREVER
    while not Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _recurse() -> None:
    _recurse()


def _exit_0() -> None:
    sys.exit(0)


def _exit_text() -> None:
    sys.exit("so long")


def _vanish_0() -> None:
    os._exit(0)


def _vanish_130() -> None:
    os._exit(130)


def _abort() -> None:
    os.abort()


def _segfault() -> None:
    ctypes.string_at(0)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _signal_itself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _hang() -> None:
    time.sleep(FOREVER)


def _spin() -> None:
    while True:
        pass


def _hang_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOREVER)


def _stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _print_much() -> None:
    for _ in range(MEGABYTES):
        print("x" * 500_000)
        print("y" * 500_000, file=sys.stderr)


def _print_escapes() -> None:
    print("\x1b[2J\x1b]0;owned\x07", flush=True)


def _close_all() -> None:
    os.closerange(0, 4096)


def _thread_raises() -> None:
    thread = threading.Thread(target=_raise)
    thread.start()
    thread.join()


def _finalizer_raises() -> None:
    class Late:
        def __del__(self) -> None:
            _raise()

    Late()
    gc.collect()


def _allocate() -> None:
    torch.empty(2**52)


def _lose_the_run() -> None:
    shutil.rmtree(Path("/proc/self/fd/1").readlink().parent.parent)


def _go_elsewhere() -> None:
    os.chdir("/")
