"""`failures`: workers and links of the virtual cluster fail (engine/fabrics/failures.py)."""

from dataclasses import dataclass
from typing import Self

from ...comm.network import ModelledNetwork
from ...conf.errors import ConfigError
from ..config.experiment import Experiment
from ..fabrics.failures import Failures
from .feature import Chosen, Feature


@dataclass(frozen=True)
class Failing(Feature):
    """Workers or links fail in the course of a run."""

    failures: Failures

    key = "failures"
    unpredicted = "lets workers or links fail in the course of a run, and a prediction is of one step"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return None if type(chosen.failures) is Failures else cls(chosen.failures)

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        return "" if experiment.choice("failures").name == "none" else "lets workers or links fail"

    def check(self, chosen: Chosen) -> None:
        if not chosen.fabric.modelled:
            raise ConfigError(
                f"failures={chosen.experiment.choice('failures').name}: needs a modelled clock and network. Choose "
                "hardware=virtual, or failures=none."
            )
        self.failures.check(network_of(chosen))


def network_of(chosen: Chosen) -> ModelledNetwork:
    """Returns the network of the virtual cluster that is chosen."""
    network = chosen.fabric.network(chosen.experiment.hardware)
    assert network is not None, "a virtual cluster has a network"
    return ModelledNetwork(network, chosen.layout.world_size)
