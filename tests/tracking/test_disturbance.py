"""Figures of the operating system tell of other programs, and comparisons and verdicts heed them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from some_runs import recorded

from paceline.engine.base import machine
from paceline.tracking.compare import ComparisonRequest, render, rows, table
from paceline.tracking.disturbance import ProcessUse, disturbed, is_timed, loads, note_on
from paceline.tracking.report.verdict import verdicts
from paceline.tracking.run_data import RunData, Swept

QUIET = ProcessUse(
    host="a", process=1, seconds=10.0, own=9.5, switches=20, busy=19.4, stolen=0.0, all=20.0, load=2.2, cores=2
)
EVEN = [0.1] * 20
SPREAD = [0.1] * 15 + [0.4] * 5


def told(*uses: ProcessUse, steps: list[float] = EVEN) -> str | None:
    return disturbed(loads(uses, steps))


def two(**changes: Any) -> tuple[ProcessUse, ProcessUse]:
    """Two workers on two cores."""
    return replace(QUIET, **changes), replace(QUIET, process=2, **changes)


def test_a_machine_that_does_nothing_else_disturbs_nothing() -> None:
    assert told(*two()) is None
    assert told(*two(), steps=SPREAD) is None  # the run itself may do that
    crowd = [replace(QUIET, process=i, own=4.9, switches=5000, load=4.1) for i in range(4)]
    assert told(*crowd) is None  # four workers on two cores disturb each other
    assert told() is None


def test_programs_that_take_the_cores_are_told() -> None:
    assert told(*two(own=5.0, switches=900)) == "other programs kept 0.9 of 2 cores busy"
    assert told(*two(own=5.0, switches=10)) is None  # each process has a core of its own
    assert told(*two(own=5.0, switches=900, busy=12.0)) is None  # a core was left
    assert told(*two(own=5.0, switches=900, busy=None)) is None  # the system does not say
    assert told(*two(own=0.4, seconds=0.5, switches=900)) is None  # too short to tell


def test_steal_load_and_spread_are_told() -> None:
    assert told(*two(stolen=2.4)) == "the hypervisor took 12% of the processor time (steal)"
    assert told(*two(load=21.0)) == "the load average was 21 on 2 cores"
    assert told(*two(load=5.0)) is None and told(*two(load=None)) is None
    spread = told(*two(own=8.5, switches=300), steps=SPREAD)
    assert spread is not None and "a tenth of the steps took 4.0 times the median" in spread


def test_the_host_is_named_where_there_are_several() -> None:
    assert told(*two(), *two(host="b", load=30.0)) == "the load average was 30 on 2 cores on b"


def test_the_figures_of_this_machine_are_read() -> None:
    machine.begin()
    sum(i * i for i in range(100_000))
    use = ProcessUse(**machine.used())
    assert use.seconds > 0 and use.own > 0 and use.cores > 0
    assert use.all is None or use.busy is None or use.all + 0.1 >= use.busy >= 0  # in ticks of 10 ms


def test_a_machine_without_proc_is_measured_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: "nonsense")
    machine.begin()
    assert ProcessUse(**machine.used()).busy is None


def busy(name: str, seed: int = 0, **changes: Any) -> RunData:
    return recorded(name, summary={"disturbed": "the load average was 20 on 2 cores", "seed": seed} | changes)


def test_a_row_a_speed_up_and_the_note_say_so() -> None:
    runs = [recorded("base"), busy("loud", throughput=32000.0)]
    found = rows(runs, baseline="base")
    text = render(found)
    assert "disturbed" in text.splitlines()[0] and "~2.00x" in text.splitlines()[2]
    assert "~" not in text.splitlines()[1]
    assert note_on(found) == (
        "other programs disturbed the times of loud (the load average was 20 on 2 cores). Speed-ups with ~ may be "
        "theirs. Repeat them while nothing else runs."
    )
    blurred = rows(runs, baseline="loud")
    assert blurred[0]["disturbed"] == "its baseline was disturbed" and "~" in render(blurred)
    assert note_on(rows([recorded("base")])) == "" and "disturbed" not in render(rows([recorded("base")]))


def swept(name: str, sync: str, seed: int, *, loud: bool) -> RunData:
    summary = {"seed": seed, "time_to_accuracy": (1.0 if sync == "bsp" else 5.0) * (1 + seed / 100)}
    run = recorded(name, config={"seed": seed}, summary=summary | ({"disturbed": "steal"} if loud else {}))
    return replace(run, swept=Swept("s", 0 if sync == "bsp" else 1, seed, {"sync": sync}))


def test_a_verdict_is_withheld() -> None:
    names = [(f"{sync}-{seed}", sync, seed) for sync in ("bsp", "asp") for seed in range(3)]
    (quiet,) = verdicts([swept(*each, loud=False) for each in names])
    assert "Soonest: sync=bsp" in quiet and "disturbed" not in quiet
    (loud,) = verdicts([swept(*each, loud=each[1] == "asp" and each[2] == 1) for each in names])
    assert "None is named the soonest. Other programs disturbed the times of sync=asp." in loud
    assert "Soonest" not in loud


def test_of_seeds_one_that_was_disturbed_is_enough() -> None:
    found, _ = table([recorded("a", config={"seed": 0}), busy("b", 1)], ComparisonRequest())
    assert any(row["disturbed"] for row in found)


def test_what_depends_on_the_machine() -> None:
    assert is_timed("throughput") and is_timed("time_to_accuracy_s") and not is_timed("accuracy")
    assert is_timed("step_time/median") and is_timed("seconds") and not is_timed("wire/messages")


def fronts(*runs: RunData, columns: tuple[str, ...]) -> tuple[dict[str, str | None], str]:
    """Returns each run's mark, and the note below the table."""
    found, _ = table([*runs], ComparisonRequest(group=False, pareto=columns))
    return {row["run"]: row["front"] for row in found}, note_on(found)


def test_marks_of_the_front_say_that_a_time_was_disturbed() -> None:
    fast, slow = (recorded(name, summary={"throughput": rate}) for name, rate in (("fast", 300.0), ("slow", 100.0)))
    assert fronts(fast, slow, columns=("throughput",)) == ({"fast": "*", "slow": None}, "")
    loud = busy("loud", throughput=200.0)
    marks, note = fronts(fast, slow, loud, columns=("throughput",))
    assert marks == {"fast": "~*", "slow": None, "loud": "~"}
    assert "Marks of the front with ~ may be theirs." in note
    marks, note = fronts(fast, slow, loud, columns=("accuracy",))
    assert set(marks.values()) == {"*"} and "with ~" not in note
