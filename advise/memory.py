"""The memory that a GPT's layout needs on a device and on a host, by closed forms: fast enough for thousands of
layouts.

It is used to prune; what is shown is planned exactly. They state the plan's account (engine/predict/fit.py):

    need = states + max(activations, the model's largest tensor, which is evaluated, the worker's own parameters)

Bytes that a layer keeps of a token for backward, in float32, t ways tensor parallel. w is the width, f that of the
feed-forward layer, V the vocabulary:

    block       16 w + (16 w + 8 f) / t, all over t with sequence parallelism; 8 w more with dropout
    gated       16 f in place of 8 f: gate and unit, the gate's SiLU, and their product
    one group   4 w (1 + 2 / heads) of queries, keys and values in place of 12 w, where all heads of a worker share one
                key and value; heads of several groups get copies
    RMSNorm     4 w more, as on a CPU: torch keeps its input, and its result without the weights, both in float32
    experts     E, and 8 w for each active one, beside the active ones' feed-forward layers
    head        8 w + 4 V / t, with the last norm
    recompute   4 w of a block

Half of it where weights are rounded to half precision, but for RMSNorm. Where each pass casts float32 weights
(autocast), norms and what goes from block to block stay in float32: 12 w + (8 w + 4 f) / t, 6 w + 4 V / t, and 4 w; and
one worker's replica keeps the rounded copy of its matrices, 2 bytes an entry, with each pass.

A stage keeps what its schedule has in flight (strategies/pipelining/simulate.py counts the same). Tests hold that it is
never more than the plan's need by `BOUND`, so that nothing is pruned that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from ..engine.base.memory import BUILT_ONCE
from ..engine.predict.fit import FLOAT, PROCESS, SHARE
from ..strategies.core.balance import balanced
from ..strategies.zero import BUCKET
from .candidate import Candidate, Schedule

BOUND = 0.20  # of the need: by so much at most a closed form is more than the plan; most are within 1 %


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT. `state`: bytes of optimizer state for each byte of a parameter in float32."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    gated: bool
    rms_norm: bool
    bias: bool
    positions: int  # that are learned
    context: int  # tokens of a sample
    vocabulary: int
    tied: bool
    dropout: bool
    state: float
    experts: int = 0  # in place of a feed-forward layer, `active` of which compute a token
    active: int = 1

    @property
    def matrices(self) -> float:
        """Entries of a block's matrices."""
        return self._matrices(self.experts or 1)

    @property
    def computing(self) -> float:
        """Entries of a block's matrices that compute one token."""
        return self._matrices(self.active)

    def _matrices(self, feed_forwards: int) -> float:
        attention = 2 * (1 + self.kv_heads / self.heads) * self.width**2
        return attention + self.width * ((3 if self.gated else 2) * self.ffn_width * feed_forwards + self.experts)

    @property
    def norm(self) -> int:
        return self.width * (1 if self.rms_norm else 2)

    @cached_property
    def block(self) -> float:
        expanded = (2 if self.gated else 1) * self.ffn_width
        biases = (2 + 2 * self.kv_heads / self.heads) * self.width + (0 if self.experts else self.width + expanded)
        biases = biases if self.bias else 0
        return self.matrices + 2 * self.norm + biases

    @property
    def embedding(self) -> float:
        return (self.vocabulary + self.positions) * self.width

    @property
    def head(self) -> float:
        return self.vocabulary * self.width

    @property
    def largest(self) -> float:
        """Entries of the largest tensor."""
        expanded = (2 if self.gated else 1) * self.ffn_width * (self.experts or 1)
        return max(self.vocabulary, self.positions, expanded) * self.width

    @property
    def entries(self) -> float:
        return self.embedding + self.layers * self.block + self.norm + (0 if self.tied else self.head)


@dataclass(frozen=True)
class UsableMemory:
    """Bytes that may be filled; as engine/predict/fit.py keeps them back."""

    device: int
    host: int
    per_host: int


def capacity(device_memory: int, host_memory: int, devices: int, workers: int) -> UsableMemory:
    per_host = min(devices, workers)
    device = max(int(device_memory * (1 - SHARE)) - PROCESS, 0)
    return UsableMemory(device, max(int(host_memory * (1 - SHARE)) - PROCESS * per_host, 0), per_host)


def need(of: Shape, candidate: Candidate, capacity: UsableMemory) -> tuple[int, int]:
    """Bytes of the device and of the host that need most."""
    layout = candidate.layout
    assert layout is not None
    width = layout.held
    held = _of_each_stage(of, candidate)
    whole = width * sum(entries for entries, _ in held) * layout.tensor
    devices, there = [], 0.0
    states_of = {entries: _states(of, candidate, entries, width) for entries in {entries for entries, _ in held}}
    for i, (entries, activations) in enumerate(held):
        states = states_of[entries]
        fetched = width * of.largest if i == len(held) - 1 else 0.0  # by the chief, to evaluate
        devices.append(states.device + max(activations, fetched, states.stepped))
        there = max(there, states.host, states.parameters)
    built, n = max(whole, FLOAT * of.entries), min(capacity.per_host, candidate.workers)
    if n > 1 and whole >= BUILT_ONCE:
        return int(max(devices)), int(n * there + built + whole)
    return int(max(devices)), int(n * max(there, built) + whole)


def checkpoint(of: Shape, candidate: Candidate) -> float:
    """Returns the bytes of weights and optimizer state of the worker that holds most."""
    layout = candidate.layout
    assert layout is not None
    entries = max(entries for entries, _ in _of_each_stage(of, candidate))
    return _states(of, candidate, entries, layout.held).saved


class HeldStates(NamedTuple):
    """Bytes of parameters, gradients, optimizer state and buffers. `parameters` and `stepped` are of those on the
    device: all of the parameters, and those that a worker steps. `saved`: the worker's weights and optimizer state.
    """

    device: float
    parameters: float
    stepped: float
    saved: float
    host: float = 0.0


def _states(of: Shape, candidate: Candidate, entries: float, width: int) -> HeldStates:
    layout = candidate.layout
    assert layout is not None
    n, several = layout.replicas, layout.micro_batches > 1
    held, optimizer = 4 * entries, 4 * of.state * entries
    if candidate.family == "zero":
        return _zero(candidate, entries, width, optimizer)
    if n == 1:
        return HeldStates(2 * held + optimizer, held, held, held + optimizer)
    if candidate.family == "torch_fsdp":
        largest = max(of.embedding, of.block, 0 if of.tied else of.head)
        return HeldStates((2 * held + optimizer) / n + 3 * 4 * largest, held / n, held / n, (held + optimizer) / n)
    tensor = 4 * min(entries, of.head / layout.tensor)  # the largest tensor, which is a bucket of its own
    kept = held if several else tensor
    match candidate.shard:
        case 1:
            return HeldStates(3 * held + optimizer / n + kept, held, held, held + optimizer / n)
        case 2:
            saved = held + optimizer / n
            return HeldStates(held + (held + optimizer) / n + kept + 3 * tensor, held, held / n, saved)
        case _:
            return HeldStates(3 * held + optimizer, held, held, held + optimizer)


def _zero(candidate: Candidate, entries: float, width: int, optimizer: float) -> HeldStates:
    """States what DeepSpeed holds, as strategies/external/deepspeed_memory.py does."""
    layout = candidate.layout
    assert layout is not None
    stage, n = layout.zero, layout.replicas
    share = entries / n if stage else entries
    bucket = min(BUCKET, entries) if stage else 0
    gradients = {
        0: entries,
        1: entries,
        2: min(entries, bucket + share),
        3: bucket + share * (2 if layout.micro_batches > 1 else 1),
    }[stage]
    offloads = layout.offload != "none"
    if offloads and stage > 1:
        gradients = bucket
    parameters = width * (share if stage == 3 else entries)
    state = optimizer * share / entries + (4 * share if stage or width < 4 else 0)
    device, host = width * (gradients + bucket), 0.0
    if offloads:
        host += (4 + (width if stage == 3 else 0)) * share + state
    else:
        device += state
    if layout.offload == "all":
        return HeldStates(device, 0.0, 0.0, parameters + state, host + parameters)
    stepped = min(parameters, width * gradients)
    return HeldStates(device + parameters, parameters, stepped, parameters + state, host)


def _of_each_stage(of: Shape, candidate: Candidate) -> Sequence[tuple[float, float]]:
    """Entries, and bytes of activations, of a worker of each stage."""
    its = candidate.layout
    assert its is not None
    cut_vocabulary = its.tensor if candidate.family != "torch_tensor" else 1
    degrees = its.stages, its.chunks, its.tensor, its.micro_batches, its.micro_batch, cut_vocabulary
    kept = its.recompute == "full", its.sequence, its.held, its.casts
    return _stages(of, degrees, kept, candidate.schedule, candidate.stage_recompute)


@lru_cache(maxsize=64)  # layouts that differ in shards alone come one soon after the other
def _stages(
    of: Shape,
    degrees: tuple[int, int, int, int, int, int],
    kept: tuple[bool, bool, int, bool],
    schedule: Schedule | None,
    stage_recompute: bool,
) -> Sequence[tuple[float, float]]:
    """The arguments are named in `_of_each_stage`."""
    p, v, t, m, micro_batch, cut_vocabulary = degrees
    recompute, sequence, held, casts = kept
    tokens = micro_batch * of.context
    unit = tokens * of.width * held / 4
    qkv = 3 if of.kv_heads > t else 1 + 2 * of.kv_heads / of.heads  # of one group: no copies
    inner = (4 if of.gated else 2) * of.ffn_width
    if of.experts:
        inner = of.active * (inner + 2 * of.width) + of.experts
    within = held * tokens * ((1 + qkv) * of.width + inner) / t
    shared = unit / (t if sequence else 1)
    norm = (8 - held) * tokens * of.width / (t if sequence else 1) if of.rms_norm else 0.0
    logits = 4 * tokens * of.vocabulary / cut_vocabulary
    enters, dropout = 4 * shared, 8 * shared if of.dropout else 0.0
    if casts:
        rounded = 2 if t == 1 else 0  # layers of tensor parallelism round again in backward
        block = 12 * shared + 2 * norm + dropout / 2 + within / 2 + rounded * of.matrices
        rest = 6 * shared + norm + logits + rounded * of.head
    else:
        block = 16 * shared + 2 * norm + dropout + within
        rest = 8 * shared + norm + logits
    found: list[tuple[float, float]] = []
    chunks = _chunks(of, p * v)
    for i in range(p):
        mine = [chunks[k * p + i] for k in range(v)]
        blocks = sum(count for count, _, _ in mine)
        entries = blocks * of.block / t
        first, last = mine[0][1], mine[-1][2]
        entries += (of.vocabulary / cut_vocabulary + of.positions) * of.width if first else 0
        entries += of.head / cut_vocabulary if last and not (of.tied and first) else 0
        in_flight, ends = _in_flight(schedule, i, p, v, m)
        if stage_recompute:
            most = max(count for count, _, _ in mine) * block
            found.append((entries, _again(most, enters, rest if last else 0.0, logits, in_flight, ends, v, first)))
        else:
            each = blocks / v * (enters if recompute else block)
            once = block - enters if recompute else 0.0
            found.append((entries, in_flight * each + max(once, rest * ends if last else 0.0)))
    return found


def _again(
    stage: float, enters: float, rest: float, logits: float, in_flight: int, ends: int, v: int, first: bool
) -> float:
    """A stage keeps what enters it, all of it while it computes one micro-batch again; the last one its logits."""
    others = enters * ((v - 1) / v if first else 1)  # tokens enter the first: next to nothing
    computing = (in_flight - 1) * others + stage + (rest - logits if rest else 0.0)
    return max(computing, in_flight * others + (logits * ends if rest else 0.0))


def _in_flight(schedule: Schedule | None, i: int, p: int, v: int, m: int) -> tuple[int, int]:
    """Micro-batches of chunks that worker i has begun and not ended, and of them those of the last chunk."""
    match schedule:
        case "naive" | "gpipe":
            return m, m
        case "1f1b":
            return min(p - i, m), 1
        case "interleaved":
            each = m // max(1, m // p)
            return min((v - 1) * each + 2 * (p - 1 - i) + 1, m * v), 1
        case _:  # one micro-batch after the other
            return 1, 1


@lru_cache(maxsize=4096)
def _chunks(of: Shape, stages: int) -> list[tuple[int, bool, bool]]:
    """Blocks of each stage, whether the embedding is there, and the head: cut by time, as strategy.cut=time does."""
    if stages == 1:
        return [(of.layers, True, True)]
    block = 2 * of.computing + 4 * of.context * of.width
    weights = [1.0, *[float(block)] * of.layers, 1.0, 2.0 * of.vocabulary * of.width]
    cuts = [0, *balanced(weights, stages), len(weights)]
    return [
        (sum(1 <= layer <= of.layers for layer in range(a, b)), a == 0, b == len(weights)) for a, b in pairwise(cuts)
    ]


def hosts_of(workers: int, devices: int) -> int:
    return ceil(workers / devices) if devices else 1
