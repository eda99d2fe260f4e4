"""A row that cannot be read is left out by a robust rule, as a row of NaN is, and ends no run."""

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from paceline.comm import MessageError
from paceline.comm.virtual import VirtualComm
from paceline.engine.api.preparing import prepare
from paceline.engine.launch.virtual import cluster_of, run
from paceline.engine.planning.build import assemble
from paceline.exchange.aggregate import Median
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.channel import Channel
from paceline.exchange.compress import Dense, TopK, Vector
from paceline.tracking.run_directory import RunDirectory

LIAR = 4  # of five replicas
TINY = ("tracking=none", "hardware=virtual", "hardware.workers=5", "model.hidden=[16]", "batch_size=8", "steps=4")
QUICK = (*TINY, "data.limit=96", "checkpoint.every=0", "evaluate.every=1000")
SPOILT = {
    "nan": lambda message: torch.full_like(message.view(torch.float32), torch.nan).view(message.dtype),
    "short": lambda message: message.flatten()[:-1].clone(),
    "long": lambda message: torch.cat([message.flatten(), message.flatten()]),
    "another dtype": lambda message: message.double() if message.dtype == torch.float32 else message.float(),
}
MODES = {
    "bsp": (),
    "parameter_server": ("sync=parameter_server",),
    "ssp": ("sync=ssp", "sync.staleness=0"),
    "local_sgd": ("sync=local_sgd", "sync.period=2"),
    "fedavg": ("sync=fedavg",),
    "gossip": ("sync=gossip",),
    "krum": ("aggregate=krum",),
    "draco": ("aggregate=draco", "aggregate.f=1", "hardware.workers=6"),
}
SLOW = [pytest.param(each, marks=[] if each in ("bsp", "fedavg", "gossip") else [pytest.mark.slow]) for each in MODES]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch):
    """Spoils what the liar sends in place of its rows."""

    def spoil(how: str, patch: pytest.MonkeyPatch = monkeypatch) -> None:
        for name in ("send", "isend"):
            usual = getattr(VirtualComm, name)

            def sent(self, message: Tensor, dst: int, usual=usual):
                lies = self._worker.rank == LIAR and message.numel() > 500 and not self.ledger.is_aside
                return usual(self, SPOILT[how](message) if lies else message, dst)

            patch.setattr(VirtualComm, name, sent)

    return spoil


def trained(folder: Path, *overrides: str) -> Tensor:
    """A run in this process, where the liar can be spoilt -> its weights."""
    prepared = prepare([*QUICK, *overrides])
    directory = RunDirectory.create(folder, "run")
    directory.write_config(yaml.safe_dump(prepared.experiment.model_dump()))
    parts = assemble(prepared.experiment, ())
    run(prepared.assignment(directory, prepared.plan()), parts, cluster_of(parts, prepared.experiment.hardware))
    return torch.cat([tensor.flatten() for tensor in load_file(directory.path / "model.safetensors").values()])


@pytest.mark.parametrize("mode", SLOW)
def test_a_spoilt_row_counts_as_a_row_of_nan(tmp_path: Path, spoil, mode: str) -> None:
    asked = ("aggregate=median", *MODES[mode])
    with pytest.MonkeyPatch.context() as until_then:
        spoil("nan", until_then)
        expected = trained(tmp_path / "nan", *asked)
    spoil("short")
    assert torch.equal(trained(tmp_path / "spoilt", *asked), expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bsp", "parameter_server"])
@pytest.mark.parametrize("how", ["long", "another dtype"])
@pytest.mark.parametrize("compress", ["none", "fp16", "topk"])
def test_any_spoilt_message_is_left_out(tmp_path: Path, spoil, mode: str, how: str, compress: str) -> None:
    spoil(how)
    trained(tmp_path, "aggregate=median", *MODES[mode], f"compress={compress}")


def test_more_spoilt_rows_than_a_rule_withstands_end_the_run_with_the_senders_name() -> None:
    aggregation = Aggregation(Median(f=1), None)
    rows, weights = torch.zeros(5, 3), dict.fromkeys(range(5), 1.0)

    def receive() -> None:
        raise MessageError("worker 3 sent nonsense")

    aggregation.read(3, rows[3], receive)
    assert torch.equal(aggregation.join_in_place(rows.clone(), range(5), weights, 5, 0), torch.zeros(3))
    aggregation.read(3, rows[3], receive)
    rows[2] = torch.nan
    with pytest.raises(MessageError, match="worker 3 sent nonsense"):
        aggregation.join_in_place(rows.clone(), range(5), weights, 5, 0)


def test_the_mean_withstands_nothing_and_names_the_sender(tmp_path: Path, spoil) -> None:
    spoil("short")
    with pytest.raises(MessageError, match="worker 4 sent"):
        trained(tmp_path, "sync=parameter_server")


def send_rows(comm) -> list[Tensor]:
    """Worker 1 sends a row that is far too long, then a sound one; to dense receives and to those of any length."""
    found = []
    for compress in (Dense(), TopK(0.5)):
        channel = Channel(compress, comm, {"x": Vector(((6,),), torch.float32)})
        if comm.rank == 1:
            comm.send(torch.zeros(3_000_000), 0)
            channel.isend("x", torch.arange(6.0), 0).wait()
            continue
        aggregation, row = Aggregation(Median(), None), torch.zeros(6)
        for _ in range(2):
            aggregation.read(1, row, partial(channel.recv, "x", row, 1))
            found.append(row.clone())
    return found


def test_what_follows_a_row_that_cannot_be_read_is_sound(fabric) -> None:
    first, second, third, fourth = fabric(2, send_rows)[0]
    assert first.isnan().all() and third.isnan().all()
    assert second.tolist() == [0, 1, 2, 3, 4, 5] and fourth.tolist() == [0, 0, 0, 3, 4, 5]
