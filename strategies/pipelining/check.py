"""Checks the actions of a schedule: the results that each reads, the messages between workers, and deadlocks."""

from collections.abc import Iterator, Sequence

from ...conf.errors import ConfigError
from .actions import Action, Schedule


def check(schedule: Schedule, stages: int, micro_batches: int, flush: bool = True) -> None:
    """Checks that every micro-batch goes forward and backward through every stage once, and no worker waits forever.

    `flush`: the update follows the last action; else every gradient is in some update. Raises `ConfigError`, which
    names the worker, the action, and what it waits for.
    """
    _check_actions(schedule, stages, micro_batches, flush)
    add_messages(schedule)
    given = {action for row in schedule for action in row}
    for stage in range(stages):
        for j in range(micro_batches):
            forward, both, inputs, weights = (Action(stage, kind, j) in given for kind in ("F", "B", "I", "W"))
            if not forward:
                raise ConfigError(f"no worker ever runs {stage}F{j}")
            if not both and not (inputs and weights):
                missing = f"{stage}W{j}" if inputs else f"{stage}B{j}, nor {stage}I{j} and {stage}W{j}"
                raise ConfigError(f"no worker ever runs {missing}: the gradient would lack micro-batch {j}")
    if not flush:
        _check_updates(schedule)


def _check_updates(schedule: Schedule) -> None:
    """The last backward pass of a stage is before its last update."""
    for worker, row in enumerate(schedule):
        waiting: dict[int, Action] = {}
        for action in row:
            if action.kind in ("B", "W"):
                waiting[action.stage] = action
            elif action.kind == "U":
                waiting.pop(action.stage, None)
        for action in waiting.values():
            raise ConfigError(f"worker {worker} at {action}: no update of stage {action.stage} comes after it")


def _check_actions(schedule: Schedule, stages: int, micro_batches: int, flush: bool) -> None:
    """Each is known, on the worker of its stage, and there once."""
    holders: dict[int, int] = {}
    seen: set[Action] = set()
    for worker, row in enumerate(schedule):
        if not row:
            raise ConfigError(f"worker {worker} has nothing to do")
        for action in row:
            if action.kind not in (("F", "B", "I", "W") if flush else ("F", "B", "I", "W", "U")):
                raise ConfigError(
                    f"worker {worker} at {action}: a schedule with a flush is of F, B, I and W; messages are added, "
                    "and the update follows the last action (strategy.schedule=pipedream updates in between)"
                )
            if action.stage >= stages or action.micro_batch >= micro_batches:
                raise ConfigError(
                    f"worker {worker} at {action}: there are {stages} stages and {micro_batches} micro-batches, "
                    "counted from 0"
                )
            holder = holders.setdefault(action.stage, worker)
            if holder != worker:
                raise ConfigError(f"worker {worker} at {action}: worker {holder} has stage {action.stage}")
            whole = action._replace(kind="B")
            doubled = action in seen or (action.kind in ("I", "W") and whole in seen)
            if doubled or (action.kind == "B" and {action._replace(kind="I"), action._replace(kind="W")} & seen):
                raise ConfigError(f"worker {worker} at {action}: that was done before")
            seen.add(action)


def placement(schedule: Schedule) -> list[int]:
    """The worker of each stage."""
    holders = {action.stage: worker for worker, row in enumerate(schedule) for action in row}
    return [holders[stage] for stage in range(len(holders))]


def reads(action: Action, stages: int) -> Iterator[Action]:
    """Yields the actions that must be done before this one, where B stands for I as well."""
    stage, kind, j = action
    if kind == "F" and stage > 0:
        yield Action(stage - 1, "F", j)
    if kind in ("B", "I"):
        yield Action(stage, "F", j)
        if stage < stages - 1:
            yield Action(stage + 1, "B", j)
    if kind == "W":
        yield Action(stage, "I", j)
    if kind == "U":
        yield Action(stage, "B", j)


def does(action: Action) -> Iterator[Action]:
    """Yields the actions that are done with this one, and for which others may wait."""
    yield action
    if action.kind == "I":
        yield action._replace(kind="B")  # to the stage before it the gradient of the inputs is all there is


def message(action: Action, stages: int) -> tuple[Action, Action] | None:
    """Returns the send and the receive of the tensor that an action makes for another stage."""
    stage, kind, j = action
    if kind == "F" and stage < stages - 1:
        return Action(stage, "SEND_F", j), Action(stage + 1, "RECV_F", j)
    if kind in ("B", "I") and stage > 0:
        return Action(stage, "SEND_B", j), Action(stage - 1, "RECV_B", j)
    return None


def add_messages(schedule: Schedule) -> Schedule:
    """The schedule with its sends and receives, for those who begin to receive at once and wait where they read.

    All workers go through their lists together. Whoever comes to a send places the receive in its receiver's list, at
    the place that the receiver has come to. So each receives in the order in which the other sends, and a receive is
    never before something that its message needs: they cannot wait for one another. (`_add_send_recv` of
    torch.distributed.pipelining.) Raises `ConfigError` where the actions themselves do.
    """
    stages = 1 + max(action.stage for row in schedule for action in row)
    holders = {action.stage: worker for worker, row in enumerate(schedule) for action in row}
    complete: list[list[Action]] = [[] for _ in schedule]
    at = [0] * len(schedule)
    done: set[Action] = set()
    progress = True
    while progress:
        progress = False
        for worker, row in enumerate(schedule):
            if at[worker] == len(row) or not done.issuperset(reads(row[at[worker]], stages)):
                continue
            action = row[at[worker]]
            complete[worker].append(action)
            done.update(does(action))
            both = message(action, stages)
            receiver = None if both is None else holders.get(both[1].stage)
            if both is not None and receiver is not None and receiver != worker:
                complete[worker].append(both[0])
                complete[receiver].append(both[1])
            at[worker] += 1
            progress = True
    if any(at[worker] < len(row) for worker, row in enumerate(schedule)):
        raise ConfigError(_stuck(schedule, at, done, stages))
    return complete


def _stuck(schedule: Schedule, at: Sequence[int], done: set[Action], stages: int) -> str:
    """Returns where each stuck worker waits, and for which action; first an action that no worker ever runs."""
    ever = {each for row in schedule for action in row for each in does(action)}
    waits: list[str] = []
    for worker, row in enumerate(schedule):
        if at[worker] == len(row):
            continue
        action = row[at[worker]]
        missing = next(each for each in reads(action, stages) if each not in done)
        if missing not in ever:
            return (
                f"worker {worker} waits forever at {action}: it reads what {missing} makes, which no worker ever runs"
            )
        own = " of its own, which comes later" if missing in row else ""
        waits.append(f"worker {worker} at {action} for {missing}{own}")
    return f"it deadlocks: these wait forever: {'; '.join(waits)}"
