"""Aggregates the rows of workers into one vector, and forges the rows of Byzantine workers.

Rows of the weighted mean can be added up on their way (`streaming`); any other rule, and an attack by workers that know
the honest rows, needs all rows in one place: on a server, or under bsp on every worker, which all compute the same.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..comm import MessageError
from ..conf.errors import ConfigError
from ..conf.notes import Note
from ..strategies.core.errors import NotFiniteError, TooFewClientsError
from ..strategies.core.held import HeldRows
from ..strategies.core.state import State
from .aggregate import Aggregator, Mean
from .attack import Attack, Honest, Seen
from .compress import Compressor
from .rank_order import RankOrderedSum
from .seeded import generator

LARGEST = 1e140  # entries: rows of float64 may be longer, and their squares infinite


class Aggregation:
    """`plain`: rows are what they should be and the rule is the mean, which is plain training."""

    def __init__(self, aggregate: Aggregator | None, attack: Attack | None) -> None:
        """Uses the mean if `aggregate` is None, and no attack if `attack` is None."""
        self.aggregate, self.attack = aggregate or Mean(), attack or Honest()
        self._unread: dict[int, MessageError] = {}  # by replica, of the rows that are joined next
        self.streaming = self.aggregate.traits.streaming and not self.attack.colludes
        self.plain = self.streaming and not self.attack.forges
        self._see: Callable[[HeldRows], None] | None = None

    def watch(self, see: Callable[[HeldRows], None]) -> None:
        """Calls `see` with a copy of the rows of each aggregation from now on, unless training is plain."""
        self._see = None if self.plain else see

    @property
    def unpredicted(self) -> Note | str:
        """Returns why the time to join rows is not modelled, but where all rows go to all workers; "" for the mean."""
        if self.plain:
            return ""
        by = "attack" if isinstance(self.aggregate, Mean) else "aggregate"
        return Note((by,), "the time that it takes on a server, or in a round, is not modelled; under sync=bsp it is")

    def check(self, replicas: int, rows: int | None = None, leave: bool = False) -> None:
        """`rows`, `leave`: as `notes` has them. Raises `ConfigError`."""
        self.attack.check(replicas)
        n = replicas if rows is None else rows
        if (n < replicas or leave) and self.aggregate.first is not None:
            raise ConfigError(
                f"aggregate.trusted={self.aggregate.first}: not all of the {replicas} replicas are in each round, and "
                "this one must be. Choose sync.fraction=1, sync.sampling=uniform and sync.dropout=0, or another "
                "aggregate."
            )
        self.aggregate.check(n)

    def check_left(self, rows: int, lost: int) -> None:
        """Raises `TooFewClientsError` where lost workers leave so few rows that the given f exceeds the rule's bound.

        `rows`: the most that there can be from now on.
        """
        rule = self.aggregate
        if lost and rule.traits.robust and rule.f is not None and rule.withstands(rows) < rule.f:
            raise TooFewClientsError(
                f"aggregate.f={rule.f}: {lost} workers were lost, and the rule needs {rule.traits.bound} where "
                f"n={rows} rows are left. Choose more hardware.workers, or aggregate.f=null, which is less with fewer "
                "rows."
            )

    def check_not_alone(self, replicas: int) -> None:
        """Checks that a single replica has the mean and no attack. Raises `ConfigError`."""
        if replicas == 1 and not self.plain:
            raise ConfigError(
                "one replica alone sends its gradient to nobody. Choose more hardware.workers, or "
                "aggregate=mean and attack=none.",
                about=(
                    "aggregate",
                    "attack",
                ),
            )

    def notes(
        self,
        compress: Compressor,
        replicas: int,
        rows: int | None = None,
        leave: bool = False,
        all_together: bool = True,
    ) -> list[Note | str]:
        """Returns what may surprise; see `Sync.notes`.

        Args:
            rows: so many replicas are joined at a time; None: all.
            leave: there are fewer in a round that some leave, or are drawn for more than once.
            all_together: the rows of all are joined in one place.
        """
        found: list[Note | str] = []
        n = replicas if rows is None else rows
        lying, most = len(self.attack.byzantine(replicas)), self.aggregate.withstands(n)
        if n < replicas and min(lying, n) > most:
            found.append(
                f"attack.workers={self.attack.workers}: {min(lying, n)} of the {n} replicas of a round may lie, and "
                f"this aggregate is made for {most} of {n} at most: training may go anywhere"
            )
        elif lying and leave:
            found.append(
                Note(
                    ("aggregate",),
                    f"is made for {most} of {n} rows that lie; a round that replicas leave, or are drawn for twice, "
                    "has fewer rows, of which as many may lie: training may go anywhere",
                )
            )
        elif lying > most and all_together:
            found.append(
                f"attack.workers={self.attack.workers}: {lying} of {replicas} replicas lie, and this aggregate is made "
                f"for {most} at most: training may go anywhere"
            )
        if self.aggregate.traits.robust and self.aggregate.f is None and not lying and most == 0:
            of_round, fraction = (" of a round", " or a larger sync.fraction") if n < replicas else ("", "")
            found.append(
                Note(
                    ("aggregate",),
                    f"of {n} {'row' if n == 1 else 'rows'}{of_round} it withstands none that lie. Choose more "
                    f"hardware.workers{fraction}.",
                )
            )
        if not lying and not isinstance(self.attack, Honest):
            found.append(f"attack.workers={self.attack.workers}: nobody lies")
        if not self.aggregate.traits.streaming and compress.traits.sparse:
            found.append(
                Note(
                    ("compress", "aggregate"),
                    "each worker sends other entries, so that of most entries most rows are 0, and so is what a median "
                    "makes of them; compress=none, fp16 or bf16 goes with it",
                )
            )
        return found

    def sent(self, own: Tensor, replica: int, replicas: int, step: int) -> Tensor:
        """Returns the row that this replica sends in this step, [d], for the row that it should send, [d]."""
        if (
            self.attack.colludes
            or step < self.attack.from_step
            or replica not in (byzantine := self.attack.byzantine(replicas))
        ):
            return own
        return self._forged(own, Seen(replicas, len(byzantine), replica, step))

    def _forged(self, own: Tensor, seen: Seen) -> Tensor:
        """Checks what the attack returns, as a user's may return anything: others read its bytes as `own`'s."""
        row = self.attack.forge(own, seen)
        return _checked(row, own.shape, f"{_name(self.attack)}.forge", f"a row {list(own.shape)}").to(own.dtype)

    def read(self, replica: int, row: Tensor, receive: Callable[[], object]) -> None:
        """Lets `receive` fill `row`, [d], with what this replica sent.

        A rule that withstands liars takes a message that cannot be read for a row of NaN: it is left out, and counts
        against f. Raises `MessageError` under any other rule, and where the replica is trusted.
        """
        rule = self.aggregate
        try:
            receive()
        except MessageError as error:
            if not (rule.traits.robust or rule.copies > 1) or replica == rule.trusted:
                raise
            row.fill_(torch.nan)
            self._unread[replica] = error

    def join(
        self,
        rows: Mapping[int, Tensor],
        weights: Mapping[int, float],
        replicas: int,
        step: int,
        at_a_time: int | None = None,
    ) -> Tensor:
        """Aggregates copies of the rows as `join_in_place` does.

        Args:
            rows: [d], by replica.
            weights: The samples behind each row, or their share.
            replicas: The number of replicas.
            step: The step of the run.
            at_a_time: See `join_in_place`.
        """
        stacked = torch.stack([rows[replica] for replica in sorted(rows)])
        return self.join_in_place(stacked, sorted(rows), weights, replicas, step, at_a_time)

    def join_in_place(
        self,
        rows: Tensor,
        of: Sequence[int],
        weights: Mapping[int, float],
        replicas: int,
        step: int,
        at_a_time: int | None = None,
    ) -> Tensor:
        """[n, d], which are written over and never copied, of these replicas in ascending order, and by replica the
        samples behind its row or their share; rows with none are left out -> [d].

        `at_a_time`: of so many replicas there are rows where each has samples; None: of all.

        Raises `NotFiniteError` where more rows are not finite than the rule withstands.
        """
        rule = self.aggregate
        kept = [i for i, replica in enumerate(of) if weights[replica] > 0]
        given, rows = [of[i] for i in kept], _moved_up(rows, kept)
        if rule.first in given:
            place = given.index(rule.first)
            _move_to_front(rows, place)
            given.insert(0, given.pop(place))
        self._forge(rows, given, replicas, step)
        weighed = torch.tensor([weights[replica] for replica in given], dtype=torch.float64, device=rows.device)
        if rule.copies > 1:
            weighed = _by_group(weighed, given, rule.copies)
            counted = sorted(rule.decoded(rows, given, step))
            self._check_unread([given[i] for i in counted])
            rows, weighed, given = _moved_up(rows, counted), weighed[counted], [given[i] for i in counted]
        return self._noted(rows, weighed, given, at_a_time or replicas, replicas, step)

    def _check_unread(self, counted: Sequence[int]) -> None:
        """Raises the `MessageError` of a replica that counts. What could not be read is forgotten."""
        unread, self._unread = self._unread, {}
        for replica in counted:
            if replica in unread:
                raise unread[replica]

    def join_near(self, rows: Tensor, of: Sequence[int], replicas: int, step: int) -> Tensor:
        """Aggregates one worker's rows, [n, d], into one update, [d]. Overwrites the rows. Raises `NotFiniteError`.

        The rows are the differences of these replicas' weights from the worker's own: its own first, which is zero,
        then its neighbours' in ascending order. Colluding workers know the honest rows among these, and do not lie to
        each other.
        """
        given = list(of)
        if given[0] not in self.attack.byzantine(replicas):
            self._forge(rows, given, replicas, step)
        alike = torch.ones(len(given), dtype=torch.float64, device=rows.device)
        return self._noted(rows, alike, given, len(given), replicas, step)

    def _noted(self, stacked: Tensor, weighed: Tensor, given: list[int], rows: int, replicas: int, step: int) -> Tensor:
        """Aggregates as `_made` does, and shows the finite rows to the watcher."""
        seen = None if self._see is None else stacked.clone()
        made = self._made(stacked, weighed, given, rows, step)
        if self._see is not None and seen is not None:
            finite = _finite(seen).nonzero().flatten().tolist()
            of = tuple(given[i] for i in finite)
            self._see(HeldRows(seen[finite], of, made, self.attack.byzantine(replicas)))
        return made

    def _made(self, stacked: Tensor, weighed: Tensor, given: list[int], rows: int, step: int) -> Tensor:
        """[n, d] and [n], of these replicas -> [d]. `rows`: as many as there are where each has samples."""
        rule = self.aggregate
        if not rule.traits.robust:
            self._unread.clear()
            return self._joined(stacked, weighed, 0)
        if rule.first is not None and rule.first not in given:
            raise NotFiniteError(f"replica {rule.first}, which is trusted, has no samples in step {step} to go by")
        f = min(rule.withstands(rows), len(given))
        finite = _finite(stacked)
        if removed := len(given) - int(finite.sum()):
            bad = [replica for replica, good in zip(given, finite.tolist(), strict=True) if not good]
            if removed > f or rule.first in bad:
                self._check_unread(bad)
                raise NotFiniteError(
                    f"what replicas {', '.join(map(str, bad))} sent in step {step} is not finite, and this aggregate "
                    f"of {rows} withstands {f} that lie; with nobody who lies, a smaller optimizer.lr may help"
                )
            self._unread.clear()
            stacked, weighed = _moved_up(stacked, finite.nonzero().flatten().tolist()), weighed[finite]
        left = max(min(f - removed, rule.before.most(len(stacked))), 0)  # fewer rows than planned: some had no samples
        mixed = rule.before.mix(stacked, left, generator(rule.seed, step))
        if mixed is not stacked:
            weighed = weighed.new_ones(len(mixed))
        f = max(min(left, rule.most(len(mixed))), 0)
        return self._joined(mixed, weighed, f)

    def _joined(self, rows: Tensor, weighed: Tensor, f: int) -> Tensor:
        vector, by = self.aggregate.aggregate(rows, weighed, f), f"{_name(self.aggregate)}.aggregate"
        return _checked(vector, rows.shape[1:], by, f"rows {list(rows.shape)}")

    def _forge(self, stacked: Tensor, given: list[int], replicas: int, step: int) -> None:
        """Replaces the rows of colluding workers in place."""
        if not self.attack.colludes or step < self.attack.from_step:
            return
        byzantine = self.attack.byzantine(replicas)
        lying = [i for i, replica in enumerate(given) if replica in byzantine]
        honest = [i for i, replica in enumerate(given) if replica not in byzantine]
        if lying and honest:
            seen = Seen(replicas, len(byzantine), given[lying[0]], step, stacked[honest])
            stacked[lying] = self._forged(stacked[lying[0]], seen)

    def onto(self, total: Tensor, replicas: int) -> "RankOrderedSum | Rows":
        """Returns an object that takes one row after another and aggregates them into `total`, [d] and zero."""
        return RankOrderedSum(total) if self.streaming else Rows(total, self, replicas)

    def rows_held(self, replicas: int) -> int:
        """Returns the rows for which the object that `onto` returns holds memory, all the time."""
        return 0 if self.streaming else replicas

    def state_dict(self) -> State:
        """Returns the state of the rule; {} if there is none."""
        return self.aggregate.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.aggregate.load_state_dict(state)


def _checked(vector: object, shape: torch.Size, by: str, given: str) -> Tensor:
    """Checks the type and shape of the vector that `by` returned, as a user's may return anything. Returns it."""
    if isinstance(vector, Tensor) and vector.shape == shape:
        return vector
    gave = f"a tensor {list(vector.shape)}" if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
    raise ValueError(f"{by} returned {gave} for {given}; must be a tensor {list(shape)}")


def _name(choice: object) -> str:
    return f"{type(choice).__module__}.{type(choice).__qualname__}"


def _moved_up(rows: Tensor, kept: Sequence[int]) -> Tensor:
    """[n, d] -> the rows `kept`, in ascending order, moved to the first places of the same memory."""
    for place, i in enumerate(kept):
        if place != i:
            rows[place] = rows[i]
    return rows[: len(kept)]


def _move_to_front(rows: Tensor, place: int) -> None:
    """[n, d], in place: the row at `place` becomes the first one, and those before it follow it."""
    if place > 0:
        first = rows[place].clone()
        for i in range(place, 0, -1):
            rows[i] = rows[i - 1]
        rows[0] = first


def _by_group(weights: Tensor, replicas: Sequence[int], copies: int) -> Tensor:
    """[n] -> [n]: of each replica, the median of its group's weights, which are alike but for what liars say."""
    groups = torch.tensor([replica // copies for replica in replicas], device=weights.device)
    return torch.stack([weights[groups == group].median() for group in groups])


def _finite(rows: Tensor) -> Tensor:
    """[n, d] -> [n]: whether all entries are, and their squares will be in float64."""
    smallest, largest = (each.double() for each in torch.aminmax(rows, dim=1))  # NaN if one is
    return (smallest > -LARGEST) & (largest < LARGEST)


class Rows:
    """Rows that come in any order and are joined once all are there: as `RankOrderedSum`, for any rule."""

    def __init__(self, total: Tensor, aggregation: Aggregation, replicas: int) -> None:
        """`total`: [d], for the result."""
        self.total, self._aggregation, self._replicas = total, aggregation, replicas
        self._rows = total.new_empty(replicas, len(total))  # by rank
        self._weights: dict[int, float] = {}

    @property
    def ranks(self) -> set[int]:
        return set(self._weights)

    def add(self, rank: int, weight: float, row: Tensor) -> None:
        """`row` may be used again after that."""
        self._rows[rank], self._weights[rank] = row, weight

    def close(self, step: int) -> Tensor:
        """[d]; at least one row was given."""
        weights = {rank: self._weights.get(rank, 0.0) for rank in range(self._replicas)}
        return self.total.copy_(
            self._aggregation.join_in_place(self._rows, list(weights), weights, self._replicas, step)
        )

    def clear(self) -> None:
        self._weights.clear()

    def buffers(self) -> list[Tensor]:
        return [self._rows]
