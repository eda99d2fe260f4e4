"""Workers that lie about a row, and not in it: how many samples are behind it, how often it comes, what it is."""

from pathlib import Path

import pytest
import torch
from test_unreadable_rows import LIAR, trained
from torch import Tensor

from paceline.comm.errors import MessageError
from paceline.exchange.pushing import Pushing
from paceline.exchange.round_client import RoundClient
from paceline.exchange.round_server import RoundMessage
from paceline.strategies.sync.fedavg import FedAvg
from paceline.strategies.sync.parameter_server import ParameterServer

ROUNDS = ("sync=fedavg", "steps=8")


def deliveries_of_the_liar(
    monkeypatch: pytest.MonkeyPatch, samples: int | None, kind: int = RoundMessage.DELIVER
) -> None:
    """`samples`: what the liar says; None: a row of NaN, with the true number."""
    usual, delivered = RoundClient.tell, FedAvg._deliver

    def tell(self: RoundClient, message: RoundMessage, told: int = 0, number: int | None = None) -> None:
        if self._comm.rank == LIAR and message == RoundMessage.DELIVER:
            self._header.copy_(torch.tensor([kind, self._own.number, told if samples is None else samples]))
            return self._comm.send(self._header, self._server)
        return usual(self, message, told, number)

    def deliver(self: FedAvg, is_over: bool = False) -> None:
        if self.comm.rank == LIAR and samples is None:
            self._weights.fill_(torch.nan)
        delivered(self, is_over)

    monkeypatch.setattr(RoundClient, "tell", tell)
    monkeypatch.setattr(FedAvg, "_deliver", deliver)


def federated(tmp_path: Path, samples: int | None, *overrides: str, kind: int = RoundMessage.DELIVER) -> Tensor:
    with pytest.MonkeyPatch.context() as until_then:
        deliveries_of_the_liar(until_then, samples, kind)
        return trained(tmp_path / str(samples), *ROUNDS, *overrides)


@pytest.mark.slow
def test_a_client_that_states_fewer_samples_than_none_counts_as_a_row_of_nan(tmp_path: Path) -> None:
    spoilt, expected = (federated(tmp_path, samples, "aggregate=median") for samples in (-(10**12), None))
    assert torch.equal(spoilt, expected)


def test_under_the_mean_it_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match=f"client {LIAR} says that it trained on -5 samples in round 0"):
        federated(tmp_path, -5)


@pytest.mark.slow
def test_a_message_of_no_kind_ends_the_run_with_the_senders_name(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match=f"worker {LIAR} sent a message of kind 9"):
        federated(tmp_path, 1, kind=9)


@pytest.mark.parametrize("aggregate", [pytest.param("median", marks=pytest.mark.slow), "mean"])
def test_a_push_of_more_than_all_samples_counts_as_a_row_of_nan_or_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aggregate: str
) -> None:
    usual = Pushing.accrue
    nan = False

    def accrue(self: Pushing, share: float, step: int) -> None:
        lies = self._comm.rank == LIAR
        usual(self, 1e30 if lies and not nan else share, step)
        if lies and nan:
            self.accrued.fill_(torch.nan)

    monkeypatch.setattr(Pushing, "accrue", accrue)
    asked = ("sync=parameter_server", f"aggregate={aggregate}", "schedule=linear")
    if aggregate == "mean":
        with pytest.raises(MessageError, match=f"worker {LIAR} says that its batch is 1e"):
            trained(tmp_path, *asked)
        return
    spoilt = trained(tmp_path / "spoilt", *asked)
    nan = True
    assert torch.equal(spoilt, trained(tmp_path / "nan", *asked))


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 1e-9])
def test_a_false_share_of_the_samples_neither_weighs_nor_moves_the_schedule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float
) -> None:
    asked = ("sync=parameter_server", "aggregate=median", "schedule=linear")
    honest = trained(tmp_path / "honest", *asked)
    usual = Pushing.accrue

    def accrue(self: Pushing, true: float, step: int) -> None:
        usual(self, share if self._comm.rank == LIAR else true, step)

    monkeypatch.setattr(Pushing, "accrue", accrue)
    assert torch.equal(trained(tmp_path / "lied", *asked), honest)


@pytest.mark.slow
def test_two_messages_of_one_step_are_not_those_of_two_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = ParameterServer.update

    def update(self: ParameterServer) -> None:
        if self.comm.rank == LIAR:
            self._worker.skip()
        usual(self)

    monkeypatch.setattr(ParameterServer, "update", update)
    with pytest.raises(MessageError, match=f"worker {LIAR} sent a second message of the same step"):
        trained(tmp_path, "sync=parameter_server", "aggregate=median")
