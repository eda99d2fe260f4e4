"""The end of a federated round of which the server learns the sum alone: clients that would deliver say so, and once
all who live have said it the server leads them through the protocol of bonawitz.py. Of those who came to its end

    Delta = sum_k n_k (w_k - w) / sum_k n_k,   w <- server(w, Delta).

With `privacy=dp_fedavg` each client clips its own change and counts once, and of the m clients of the round

    Delta = 1/m (sum_k clip(w_k - w) + noise).

Where too few come to the end the round is given up, and w stays.
"""

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor
from torch.optim import Optimizer

from ...comm import Comm
from ...strategies.core.errors import TooFewClientsError
from ...strategies.core.held import Held
from ...strategies.core.sync import Measures
from ..client_updates import ClientUpdates, Rules, ServerUpdate
from ..participation import Rounds
from .bonawitz import Bonawitz


class SecureUpdates(ClientUpdates):
    """See the module."""

    brings_weights = False

    def __init__(self, rules: Rules, secure: Bonawitz, server_update: ServerUpdate) -> None:
        super().__init__(rules)
        self._secure, self._server_update = secure, server_update
        self._given_up = 0  # rounds that too few clients came to the end of

    def prepare(
        self, weights: Tensor, parameters: Sequence[Tensor], optimizer: Optimizer, rounds: Rounds, comm: Comm
    ) -> None:
        super().prepare(weights, parameters, optimizer, rounds, comm)
        self._secure.begin(comm)
        self._here: dict[int, bool] = {}  # client -> whether its training is over

    # -- on a client

    def told(self, samples: int, is_over: bool) -> int:
        """The server must not learn the samples."""
        return is_over

    def deliver(self, samples: int, number: int) -> None:
        way = self._way()
        if self._privacy is not None:  # the server will not see what there is to clip; each client counts once
            rounding = self._secure.fixed.rounding(len(way))
            way, samples = self._privacy.clipped(way, self._comm.rank, number, rounding), 1
        way = self._aggregation.sent(way, self._comm.rank, self._rounds.clients, number)
        self._secure.deliver(way, samples, number, self._rounds.per_round)

    def shows(self) -> dict[str, Held]:
        return self._secure.shows()

    # -- on the server

    def take(self, client: int, told: int, number: int) -> None:
        """Notes that the client is there. Its delivery comes once all clients are."""
        self._here[client] = bool(told)

    def close(self, number: int) -> bool:
        is_over = any(self._here.values())
        with self._comm.ledger.aside() if is_over else nullcontext():
            found = self._secure.collect(self._here, number, len(self._weights), self._rounds.per_round)
        if found is None:
            self._given_up += len(self._here) > 0
            self._check_enough_are_left()
        changes = found is not None and found[1] > 0  # w stays where nobody has samples
        if found is not None and changes:
            delta = self._way_of_all(*found, number)
            self._server_update(self._weights, delta, self._server)
        self._here.clear()
        return changes

    def _way_of_all(self, mean: Tensor, clients: int, number: int) -> Tensor:
        """[d] float64, of so many clients -> [d], Delta."""
        if self._privacy is None:
            return mean.to(self._weights)
        total = mean.mul_(clients).to(self._weights)  # clients count alike: their mean times their number is the sum
        return self._privacy.noised(total, self._rounds.per_round, number)

    def _check_enough_are_left(self) -> None:
        """Raises `TooFewClientsError`: the lost do not come back, and no round would change a weight again."""
        clients, m = self._rounds.clients, self._rounds.per_round
        left, needed = clients - len(self._comm.lost()), self._secure.needed(m)
        if left < needed:
            raise TooFewClientsError(
                f"{left} of {clients} clients are left, and secure=bonawitz needs {needed} to come to the "
                f"end of a round of {m} (secure.threshold={self._secure.threshold:g})"
            )

    def report(self, serves: bool) -> Measures:
        if serves:
            return {"given_up": self._given_up}
        return {"entries": self._secure.delivered, "cut": self._secure.lost}

    # -- what is stated

    def check(self, parameters: Sequence[Tensor], per_round: int) -> None:
        self._secure.check(per_round)
        if self._privacy is not None:
            self._privacy.longest(self._secure.fixed.rounding(_entries(parameters)))

    def nbytes(self, parameters: Sequence[Tensor], per_round: int) -> tuple[int, int]:
        return self._secure.client_bytes(per_round, _entries(parameters)), self._secure.server_bytes(per_round)


def _entries(parameters: Sequence[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)
