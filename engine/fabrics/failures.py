"""Failures of links on the virtual cluster: which links are down or slow at which second of the virtual clock.

They delay what is sent and lose nothing: a message waits until its link is up again, as TCP sends again what did not
arrive (comm/links.py). So every strategy and sync mode goes through them.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt, MinLen

from ...comm.links import LinkChange
from ...comm.network import ModelledNetwork, Place
from ...conf.errors import ConfigError

Number = Annotated[int, Ge(0)]
MOST = 1e9  # seconds, thirty years: a longer time is a mistake
Seconds = Annotated[float, Ge(0), Le(MOST)]
Duration = Annotated[float, Gt(0), Le(MOST)]


class Failures:
    """The base of the choices of `failures`. With this one nothing fails."""

    def check(self, network: ModelledNetwork) -> None:
        """Raises `ConfigError` for a failure of something that `network` does not have."""

    def on_links(self, network: ModelledNetwork) -> Iterator[LinkChange]:
        """Returns the changes of the network's links, in the order of their moments."""
        return iter(())


# -- links


class LinkFailures(Failures):
    """Failures of the links of some workers, hosts or racks."""

    def __init__(self, place: Place, numbers: Sequence[Number]) -> None:
        self._place: Place = place
        self._numbers = sorted(set(numbers))

    def check(self, network: ModelledNetwork) -> None:
        there = network.count(self._place)
        if self._place == "rack" and there == 1:
            raise ConfigError(
                "failures.place=rack: all hosts are in one rack, which has no uplink. Choose hardware.hosts_per_rack, "
                "or failures.place=host."
            )
        if wrong := [number for number in self._numbers if number >= there]:
            raise ConfigError(
                f"failures.numbers={self._numbers}: there is no {self._place} {wrong[0]}. Choose of 0 to {there - 1}."
            )

    def _links(self, network: ModelledNetwork) -> list[int]:
        return network.links_of(self._place, self._numbers)

    @property
    def _named(self) -> str:
        return f"{self._place}{'s' if len(self._numbers) > 1 else ''} {', '.join(map(str, self._numbers))}"


class NetworkPartition(LinkFailures):
    """Nothing passes between some workers and the others for a time."""

    def __init__(
        self,
        place: Place = "worker",
        numbers: Annotated[Sequence[Number], MinLen(1)] = (1,),
        at: Seconds = 0.0,
        lasts: Duration | None = 60.0,
    ) -> None:
        """`at`: the moment of the cut. `lasts`: seconds; None for good."""
        super().__init__(place, numbers)
        self._at, self._lasts = at, lasts

    def check(self, network: ModelledNetwork) -> None:
        super().check(network)
        if len(self._numbers) == network.count(self._place):
            raise ConfigError(
                f"failures.numbers={self._numbers}: names every {self._place}, which leaves no others to be cut off "
                "from. Choose fewer."
            )

    def on_links(self, network: ModelledNetwork) -> Iterator[LinkChange]:
        lane = network.cut(network.members(self._place, self._numbers))
        usual = network.links.bandwidth(lane)
        until = "with no end" if self._lasts is None else f"until second {self._at + self._lasts:g}"
        why = f"failures=partition cuts off {self._named} from second {self._at:g} on, {until}"
        yield LinkChange(self._at, [(lane, 0.0)], why)
        if self._lasts is not None:
            yield LinkChange(self._at + self._lasts, [(lane, usual)], why)


class SlowLink(LinkFailures):
    """Some links have a share of their bandwidth for a time."""

    def __init__(
        self,
        place: Place = "worker",
        numbers: Annotated[Sequence[Number], MinLen(1)] = (1,),
        share: Annotated[float, Gt(0), Lt(1)] = 0.1,
        at: Seconds = 0.0,
        lasts: Duration | None = None,
    ) -> None:
        """`share`: of the bandwidth. `lasts`: seconds; None for good."""
        super().__init__(place, numbers)
        self._share, self._at, self._lasts = share, at, lasts

    def on_links(self, network: ModelledNetwork) -> Iterator[LinkChange]:
        usual = [(lane, network.links.bandwidth(lane)) for lane in self._links(network)]
        why = f"failures=slow_link slows the links of {self._named}"
        yield LinkChange(self._at, [(lane, self._share * bandwidth) for lane, bandwidth in usual], why)
        if self._lasts is not None:
            yield LinkChange(self._at + self._lasts, usual, why)


class Flapping(LinkFailures):
    """Some links are down for a time, again and again."""

    def __init__(
        self,
        place: Place = "worker",
        numbers: Annotated[Sequence[Number], MinLen(1)] = (1,),
        up: Annotated[float, Ge(1e-3), Le(MOST)] = 10.0,
        down: Annotated[float, Ge(1e-3), Le(MOST)] = 1.0,
        at: Seconds = 0.0,
    ) -> None:
        """`at`: the first moment at which they go down. `up`, `down`: seconds of each state, by turns."""
        super().__init__(place, numbers)
        self._up, self._down, self._at = up, down, at

    def on_links(self, network: ModelledNetwork) -> Iterator[LinkChange]:
        usual = [(lane, network.links.bandwidth(lane)) for lane in self._links(network)]
        why = f"failures=flapping has the links of {self._named} down"
        for cycle in count():
            at = self._at + cycle * (self._down + self._up)
            yield LinkChange(at, [(lane, 0.0) for lane, _ in usual], why)
            yield LinkChange(at + self._down, usual, why)
