"""The mesh of a plan: where each rank is, what it holds, and what it sends along each axis in a step."""

from typing import TYPE_CHECKING, Any

from .output import aligned

if TYPE_CHECKING:
    from ..engine.planning.planned import PartPlan, Plan

LINES = 8  # of a table; JSON has all


def raw_mesh(plan: "Plan") -> list[dict[str, Any]]:
    """Returns the mesh's values for each worker: bytes, and bytes a step. It is empty if each replica is one part and
    only a sync mode sends.
    """
    return [_of(plan, rank) for rank in range(plan.layout.workers)] if is_shown(plan) else []


def is_shown(plan: "Plan") -> bool:
    return plan.layout.parts > 1 or bool(plan.strategy.traits.across_replicas)


def _of(plan: "Plan", rank: int) -> dict[str, Any]:
    from ..strategies.core.protocols import CutsSamples

    parts, mesh, strategy = plan.layout.parts, plan.layout.mesh, plan.strategy
    part = plan.parts[rank % parts]
    sends: list[dict[str, Any]] = [
        {
            "axis": axis,
            "by": "strategy",
            "bytes": part.along[axis],
            "among": mesh.along(rank, axis),
            "to": _to(plan, rank, axis),
        }
        for axis, size in mesh.axes.items()
        if size > 1 and axis in part.along
    ]
    if plan.layout.replicas > 1 or plan.layout.servers:
        among = mesh.along(rank, "replica")
        sends.append({"axis": "replica", "by": "sync", "bytes": _outside(part), "among": among, "to": None})
    return {
        "rank": rank,
        "at": mesh.position(rank),
        "of_each_sample": strategy.of_each_sample(rank % parts) if isinstance(strategy, CutsSamples) else None,
        "layers": list(part.layers),
        "parameters": part.parameters,
        "parameter_bytes": part.held_in_parameters,
        "is_cut": part.is_cut,
        "share": part.parameters / max(1, sum(each.own for each in plan.parts)),
        "sends": sends,
    }


def _to(plan: "Plan", rank: int, axis: str) -> list[int] | None:
    """The ranks that it sends to; None: all along the axis send among themselves."""
    places = plan.parts[rank % plan.layout.parts].to.get(axis)
    among = plan.layout.mesh.along(rank, axis)
    return None if places is None else [among[place] for place in places]


def _outside(part: "PartPlan") -> float | None:
    """Returns the bytes that the sync mode sends; None: they cannot be known beforehand."""
    return None if part.worker is None else sum(part.worker.values()) - sum(part.within.values())


def drawn_mesh(plan: "Plan") -> list[str]:
    from ..tracking.compare import human_bytes

    workers = plan.layout.workers if is_shown(plan) else 0
    rows = [_of(plan, rank) for rank in range(min(workers, LINES))]
    table = [["rank", "at", "holds", "entries", "parameters", "sends in a step"]]
    for row in rows:
        table.append(
            [
                str(row["rank"]),
                ", ".join(f"{axis} {at}" for axis, at in row["at"].items()),
                _held(plan, row),
                f"{row['parameters']:,}",
                human_bytes(row["parameter_bytes"]),
                "; ".join(_sent(plan, send) for send in row["sends"]),
            ]
        )
    left = workers - LINES
    return [*aligned(table, numbers_from=6), *([f"... {left:,} more ranks: --format json has all"] if left > 0 else [])]


def _held(plan: "Plan", row: dict[str, Any]) -> str:
    if plan.layout.mesh.axes.get("stage", 1) == 1:
        model = "the whole model" if row["share"] == 1 else f"{row['share']:.1%} of the model"
        return f"{row['of_each_sample']} of each sample, {model}" if row["of_each_sample"] else model
    part = plan.parts[row["rank"] % plan.layout.parts]
    held = ", ".join(" .. ".join(dict.fromkeys([run[0], run[-1]])) for run in part.runs)
    if (pieces := plan.layout.mesh.axes.get("tensor", 1)) == 1:
        return held
    return f"1/{pieces} of what is cut in {held}" if part.is_cut else f"{held}, whole"


def _sent(plan: "Plan", send: dict[str, Any]) -> str:
    from ..tracking.compare import human_bytes

    size = "varies" if send["bytes"] is None else human_bytes(send["bytes"])
    if send["axis"] == "replica" and send["by"] == "sync" and plan.layout.servers:
        return f"replica: {size} to servers"
    if send["to"] is not None:
        return f"{send['axis']}: {size} to {_ranks(send['to'], ' and ')}"
    what = (
        f" ({plan.strategy.traits.across_replicas})" if send["axis"] == "replica" and send["by"] == "strategy" else ""
    )
    return f"{send['axis']}: {size} among {_ranks(send['among'], ', ')}{what}"


def _ranks(ranks: list[int], between: str) -> str:
    return between.join(map(str, ranks)) if len(ranks) <= 4 else f"{len(ranks)} ranks"
