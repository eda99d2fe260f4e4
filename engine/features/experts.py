"""Replicas that are experts of the samples that they own (sync=routed): what of a run differs for it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...comm import Comm
from ...comm.key_values import KeyValues
from ...conf.errors import ConfigError
from ...strategies.core.protocols import SideBySide
from ...strategies.sync.routed import CENTRES, LIVING, state_of_expert
from ...tasks.base import DataSpec, Readable, Split
from ...tasks.clusters import centres_of, unmeasured
from ...tasks.partition import Partition, Partitioner
from ..base.refusals import refuse
from ..config.experiment import Experiment
from .feature import Chosen, Feature, Parts


@dataclass(frozen=True)
class ExpertReplicas(Feature):
    """Replicas are experts of samples of their own."""

    key = "sync"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return cls() if isinstance(chosen.sync, SideBySide) else None

    def check(self, chosen: Chosen) -> None:
        """Refuses replicas that would have no samples of their own, or no centres."""
        experiment = chosen.experiment
        told = _refused(experiment, chosen.partitioner, chosen.data.spec)
        refuse(f"sync={experiment.sync.name}: {why}" for why in told)

    def set_up(self, parts: Parts, comm: Comm) -> None:
        found = centres(parts.experiment, parts.load()[0], parts.deal())
        parts.sync.configure(replace(parts.sync.setting, centres=found))
        check_alike(comm.key_values, parts.layout.chief, parts.deal())


def _refused(experiment: Experiment, partitioner: Partitioner, spec: DataSpec) -> Iterator[str]:
    if not partitioner.owns:
        yield (
            f"each replica is the expert of samples of its own, and partition={experiment.partition.name} "
            "deals all samples anew in each epoch. Choose partition=clusters, or partition=dirichlet or by_label."
        )
    if why := unmeasured(spec):
        yield (
            f"routes a sample to the nearest centre, and {why}; data={experiment.data.name} goes with other "
            "modes, such as sync=bsp or sync=independent"
        )
    if (adapt := experiment.choice("adapt").name) != "none":
        yield (
            f"the run's model is that of all replicas side by side, of which adapt={adapt} would have to "
            "take each apart. Choose adapt=none, or another sync mode."
        )


def inputs_of(train: Readable) -> Tensor | None:
    """[n, ...] of a split that is in memory, or in files mapped into it; None of one whose samples are read singly."""
    return train.inputs if isinstance(train, Split) and isinstance(train.inputs, Tensor) else None


def centres(experiment: Experiment, train: Readable, dealt: Partition) -> Tensor:
    """[replicas, ...] of the samples that each owns. Raises `ConfigError`."""
    inputs = inputs_of(train)
    if inputs is None:
        raise ConfigError(
            f"sync={experiment.sync.name}: takes the mean of all inputs of a part, and samples of data="
            f"{experiment.data.name} are read when they are wanted. Choose data that fit into memory, or another mode."
        )
    return centres_of(inputs, [dealt.owned(replica) for replica in range(dealt.replicas)])


def check_alike(key_values: KeyValues, chief: int, dealt: Partition) -> None:
    """Each worker deals by itself: a sample that two of them own, or none, is found here. Raises `ConfigError`."""
    digest = hashlib.sha256()
    for replica in range(dealt.replicas):
        digest.update(dealt.owned(replica).numpy().tobytes() + b"|")
    key_values.post(f"parts/{key_values.rank}", json.dumps(digest.hexdigest()))
    if json.loads(key_values.read(f"parts/{chief}", chief)) != digest.hexdigest():
        raise ConfigError(
            f"partition: worker {key_values.rank} has made other parts of the data than worker {chief}, so that "
            "experts would not own what the others leave; the data, or the libraries that compute distances, differ "
            "between hosts"
        )


def is_of_experts(names: Mapping[str, object]) -> bool:
    """Returns whether a file's tensors are those of experts, by their names."""
    return CENTRES in names and LIVING in names and any(name.startswith("experts.0.") for name in names)


def number_in(names: Mapping[str, object]) -> int:
    return len({name.split(".")[1] for name in names if name.startswith("experts.")})


def begins_with(
    state: dict[str, Tensor], own: dict[str, Tensor], replica: int, centres: Tensor | None, weights: str
) -> dict[str, Tensor]:
    """Returns the weights of a replica's own expert in `state`. If that died, it returns the replica's present ones
    (`own`).

    Raises `ConfigError` where they are experts of other parts.
    """
    if centres is None or not torch.equal(state[CENTRES], centres):
        raise ConfigError(
            f"weights={weights}: holds experts of other parts of the data than this run's, so that no replica has the "
            "samples that one of them learnt; give the data, partition, seed and hardware.workers of that run"
        )
    return state_of_expert(state, replica) if bool(state[LIVING][replica]) else own
