"""Models that are large enough to be built once a host, as `one_build.LEAST` is lowered for them."""

import gc
import os
import resource
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.comm.errors import HangError
from paceline.engine import prepare
from paceline.engine.base import memory
from paceline.engine.planning.build import assemble
from paceline.engine.training import one_build


class Rich(nn.Module):
    """[n, 64] -> [n, 10]. Has every kind of tensor: tied, frozen, buffers, plain attributes, a view.

    Args:
        once: it is built once a host.
        odd: what keeps workers from sharing it: "list", a tensor that nobody finds; "generator", of its own;
            "hook", "later", of a gradient; "conjugate", a tensor whose values are not those of its memory.
        width: of its inner layers, of which there are `depth`.
    """

    def __init__(self, once: bool = True, odd: str = "", width: int = 8, depth: int = 2) -> None:
        super().__init__()
        if once:
            one_build.LEAST = 1
        self.first = nn.Linear(64, width)
        self.inner = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
        self.again = nn.Linear(64, width)
        self.again.weight = self.first.weight
        self.frozen = nn.Parameter(torch.rand(width), requires_grad=False)
        self.register_buffer("table", torch.arange(width) / 2 + torch.rand(()), persistent=False)
        self.norm, self.drop, self.head = nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 10)
        self.shift = torch.rand(width)
        self.learnt = torch.rand(width, requires_grad=True)
        self.sliced = nn.Parameter(torch.zeros(2, width).narrow(0, 1, 1).detach())
        self.register_buffer("none", torch.empty(0))
        if odd == "list":
            self.hidden = [torch.rand(width)]
        if odd == "generator":
            self.draws = torch.Generator()
        if odd == "hook":
            self.head.weight.register_hook(lambda gradient: gradient / 2)
        if odd == "later":
            self.head.weight.register_post_accumulate_grad_hook(lambda _: None)
        if odd == "conjugate":
            self.turned = torch.rand(width, dtype=torch.complex64).conj()
        vars(self.first.weight)["told"] = "kept"  # an attribute of its own
        if not self.head.weight.is_meta:
            print("built for real", flush=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = torch.relu(self.first(x) + self.again(x.flip(1)) + self.frozen + self.table + self.shift + self.sliced)
        return self.head(self.drop(self.norm(self.inner(x))))


def build(comm: Comm, chosen: dict[str, Any], largest: int = 0) -> dict[str, Any]:
    """Returns what a worker of this run has once it has built its model. `largest`: bytes of a file; 0: no limit."""
    knobs = "".join(f",{key}:{value}" for key, value in chosen.items())
    overrides = ["tracking=none", f"hardware.workers={comm.size}", f"model={{_target_:built_once.Rich{knobs}}}"]
    parts = assemble(prepare(overrides, allow_modules=["built_once"]).experiment, ("built_once",))
    built = [0]

    def alone() -> nn.Module:
        built.append(1)
        torch.manual_seed(0)
        return parts.make_model()

    memory.keep_freed()
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    before = _private()
    with patch.object(one_build, "LEAST", one_build.LEAST):
        model = one_build.built(parts, comm, alone)
    grown = _private() - before
    tensors = {name: each.detach().clone() for name, each in one_build._by_name(model).items()}
    assert isinstance(model, Rich)
    with torch.no_grad():
        model.first.weight += comm.rank + 1  # a worker's own from now on
    one_build.leave_file(model)
    gc.collect()
    comm.barrier()
    return {
        "copied": [
            line for line in Path("/proc/self/maps").read_text().splitlines() if " rw-p " in line and "memfd:" in line
        ],
        "built": sum(built),
        "grown": grown,
        "tensors": tensors,
        "trained": [name for name, each in one_build._by_name(model).items() if each.requires_grad],
        "tied": model.again.weight is model.first.weight and vars(model.first.weight) == {"told": "kept"},
        "added": float((model.first.weight - tensors["first.weight"]).mean()),
        "next": torch.rand(4),
    }


def _private() -> int:
    """Returns the bytes of memory that this process shares with no other."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def die_while_building(comm: Comm) -> str:
    """Returns what a follower says of a leader that is killed."""
    overrides = ["tracking=none", f"hardware.workers={comm.size}", "model={_target_:built_once.Rich}"]
    parts = assemble(prepare(overrides, allow_modules=["built_once"]).experiment, ("built_once",))
    try:
        one_build.built(parts, comm, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type]
    except HangError as error:
        return str(error)
    return ""
