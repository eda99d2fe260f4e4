"""Pipeline schedules: pure functions (workers p, micro-batches m, chunks v) -> one list of actions for each worker.

Stage s is chunk s // p of worker s % p, and there are p v stages; zb_v alone has 2 p, of which stage s is on worker
min(s, 2 p - 1 - s). A worker's forward and backward passes come in one
order each; a schedule says how the two are put together. For each worker i:

    naive        each micro-batch goes forward through all stages, and back, before the next one begins
    gpipe        all forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965)
    1f1b         p - 1 - i forward passes, then one forward and one backward in turn (Narayanan et al. 2019, PipeDream,
                 arXiv 1806.03377, with a flush): stage i keeps the activations of at most p - i micro-batches
    interleaved  1f1b over v chunks of the model on each worker (Narayanan et al. 2021, arXiv 2104.04473): the bubble is
                 v times smaller, and a step sends v times as many messages
    zb_h1        1f1b with the gradients of the weights apart, which fill the bubble (Qi et al. 2024, "Zero Bubble
                 Pipeline Parallelism", arXiv 2401.10241): no worker keeps more than 1f1b's first
    zb_v         two chunks a worker, down the workers and up again, so that the last stage is on the first worker,
                 which goes backward at once (ZB-V, the same paper, section 6): zb_h1's memory, and half its bubble

Bubbles as shares of the time of a step, where every stage takes T_F, T_B = T_I + T_W, and messages take no time:

    naive        (p - 1) / p
    gpipe, 1f1b  (p - 1) / (m + p - 1)
    interleaved  (p - 1) / (v m + p - 1), where p divides m
    zb_h1        b / (m (T_F + T_I + T_W) + b), b = (p - 1)(T_F + T_I - T_W), where m >= p, T_W <= T_I and T_W <= T_F
    zb_v         b / (3 m T + b), b = (p - 1) T / 2, where m >= 2 p - 1, and T_F = T_I = T_W = T of both chunks together

Deviation from GPipe's paper: backward takes the micro-batches in the order of forward, not in reverse, so that sums
come out as in gradient accumulation.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest

from ...conf.errors import ConfigError
from .actions import Action, Kind, Schedule

LONGEST = 2**20  # of micro-batches through chunks of stages, in a step: each is an entry of the schedule

BUBBLES = ("naive", "gpipe", "1f1b", "interleaved")  # whose share cost/step.py has in closed form


def check_length(stages: int, micro_batches: int, chunks: int) -> None:
    """Raises `ConfigError` for a step of more than `LONGEST` passes."""
    if stages * micro_batches * chunks > LONGEST:
        raise ConfigError(
            f"strategy.micro_batches={micro_batches}: makes a schedule of more than {LONGEST:,} passes, with "
            f"{stages} stages and strategy.chunks={chunks}. Choose fewer of them."
        )


def naive(workers: int, micro_batches: int, chunks: int = 1) -> Schedule:
    return [
        [Action(stage, kind, j) for j in range(micro_batches) for kind in ("F", "B")]
        for stage in _one_chunk("naive", workers, chunks)
    ]


def gpipe(workers: int, micro_batches: int, chunks: int = 1) -> Schedule:
    return [
        [*_passes(stage, "F", micro_batches), *_passes(stage, "B", micro_batches)]
        for stage in _one_chunk("gpipe", workers, chunks)
    ]


def one_forward_one_backward(workers: int, micro_batches: int, chunks: int = 1) -> Schedule:
    return [
        _multiplexed(_passes(stage, "F", micro_batches), _passes(stage, "B", micro_batches), workers - 1 - stage)
        for stage in _one_chunk("1f1b", workers, chunks)
    ]


def interleaved(workers: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Micro-batches go through a worker's chunks in rounds. Raises `ConfigError` where rounds are not of one size."""
    rounds = max(1, micro_batches // workers)
    each, rest = divmod(micro_batches, rounds)
    if rest:
        below, above = workers * rounds, workers * (rounds + 1)
        raise ConfigError(
            f"strategy.micro_batches={micro_batches}: strategy.schedule=interleaved takes them in {rounds} rounds of "
            f"one size among {workers} workers; the nearest that fit are {below} and {above}"
        )
    schedule: list[list[Action]] = []
    for rank in range(workers):
        forward: list[Action] = []
        backward: list[Action] = []
        for k in range(rounds):
            for chunk in range(chunks):
                batches = range(k * each, (k + 1) * each)
                forward += [Action(chunk * workers + rank, "F", j) for j in batches]
                backward += [Action((chunks - 1 - chunk) * workers + rank, "B", j) for j in batches]
        schedule.append(_multiplexed(forward, backward, (chunks - 1) * each + 2 * (workers - 1 - rank)))
    return schedule


def zb_h1(workers: int, micro_batches: int, chunks: int = 1) -> Schedule:
    schedule: list[list[Action]] = []
    for stage in _one_chunk("zb_h1", workers, chunks):
        row: list[Action] = []
        for action in _multiplexed(
            _passes(stage, "F", micro_batches), _passes(stage, "I", micro_batches), workers - 1 - stage
        ):
            row.append(action)
            # The later a stage, the fewer activations it has in flight, and the longer its weights' gradients may wait.
            if action.kind == "I" and action.micro_batch >= stage:
                row.append(Action(stage, "W", action.micro_batch - stage))
        done = sum(action.kind == "W" for action in row)
        schedule.append([*row, *_passes(stage, "W", micro_batches)[done:]])
    return schedule


def zb_v(workers: int, micro_batches: int, chunks: int = 2) -> Schedule:
    if chunks != 2:
        raise ConfigError(
            f"strategy.chunks={chunks}: strategy.schedule=zb_v gives each worker two chunks of the model, one on the "
            "way down and one on the way up. Choose strategy.chunks=2."
        )
    schedule: list[list[Action]] = []
    for i in range(workers):
        down, up = i, 2 * workers - 1 - i
        row: list[Action] = []
        done: Counter[tuple[int, Kind]] = Counter()

        def take(stage: int, *kinds: Kind, row: list[Action] = row, done: Counter[tuple[int, Kind]] = done) -> None:
            for kind in kinds:
                row.append(Action(stage, kind, done[stage, kind]))
                done[stage, kind] += 1

        most = max(micro_batches, 2 * workers - 1)  # as if there were enough to fill it; the others are left out below
        for _ in range(2 * (workers - i) - 1):
            take(down, "F")
        for _ in range(i):
            take(up, "F")
            take(down, "F")
        for _ in range(workers - i):
            take(up, "F", "I", "W")
        while done[up, "F"] < most:
            if done[down, "F"] < most:
                take(down, "F")
            take(down, "I", "W")
            take(up, "F", "I", "W")
        for _ in range(i):
            take(down, "I")
            take(up, "I")
        for _ in range(workers - i):
            take(down, "I", "W")
        for stage in (up, down):
            while done[stage, "W"] < most:
                take(stage, "W")
        schedule.append([action for action in row if action.micro_batch < micro_batches])
    return schedule


MakeSchedule = Callable[[int, int, int], Schedule]
SCHEDULES: dict[str, MakeSchedule] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
    "zb_v": zb_v,
}


def _passes(stage: int, kind: Kind, micro_batches: int) -> list[Action]:
    return [Action(stage, kind, j) for j in range(micro_batches)]


def _multiplexed(forward: Sequence[Action], backward: Sequence[Action], first: int) -> list[Action]:
    """`first` forward passes, then one forward and one backward in turn for as long as there are forward passes."""
    pairs = zip_longest(forward[first:], backward)
    return [*forward[:first], *(action for pair in pairs for action in pair if action is not None)]


def _one_chunk(name: str, workers: int, chunks: int) -> range:
    if chunks != 1:
        raise ConfigError(
            f"strategy.chunks={chunks}: strategy.schedule={name} gives each worker one chunk of the model. Choose "
            "strategy.chunks=1, or strategy.schedule=interleaved."
        )
    return range(workers)
