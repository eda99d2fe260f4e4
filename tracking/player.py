"""One document for the animated picture of a small run: who sends what to whom, and what each holds, over time.

It is made of a trace (engine/training/trace.py) and of samples (engine/features/watching.py), or of the recording of a
collective. tracking/drawn/player.py draws it, and so does the script beside that file.

Times are microseconds of the virtual clock since the beginning; a document that is not "timed" has steps of a second.
Lists in place of names keep it short:

    about     a sentence: what is left out
    lanes     [{"name", "kind"}]: worker or server
    spans     [[lane, start, end, kind]]: kind is an index of KINDS
    messages  [[from, to, left, came, purpose, bytes]]: lanes, and an index of "purposes"; bytes may be null
    sums      [[at, name, lanes]]
    held      [{"name", "kind", "samples": [[lane, at, ...]]}]: number, cells, point or rows, as watching.py has them.
              Numbers may have "within": the most that lanes which go on are ahead of the last one. Points may have
              "ties": springs tie all lanes to it
    curves    [{"name", "samples": [[at, value]]}]
    moments   [[at, text]]: where a step of the player ends, and what happens there
"""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from . import lanes as traced
from .compare import human_bytes

_PASS = re.compile(r"(?P<stage>\d+)(?P<kind>[FBIW])(?P<micro_batch>\d+)")  # as pipelines name them
KINDS = ("compute", "communication", "waiting")
LANES = 32  # are drawn
MOST_BYTES = 200_000  # of a document as JSON
MOST_MOMENTS = 400
SAID = 4  # messages of a step in words
Plain = dict[str, Any]


def of_run(title: str, trace: str, samples: Plain) -> Plain:
    """Returns the document of a run. What does not fit is left out from the end, and `about` says so."""
    told = traced.read(trace, whole=True)
    names = [row["name"] for row in told["lanes"]]
    lane_of = {int(name.split()[1]): place for place, name in enumerate(names)}
    began = json.loads(trace)["otherData"]["began"]
    origin = told["begin"] + 1e6 * began  # of the document, on the virtual clock

    def at(seconds: float) -> float:
        return round(max(1e6 * seconds - origin, 0.0), 2)

    purposes = list(dict.fromkeys(each["purpose"] for each in told["messages"]))
    sizes = _sizes([[at(when), *rest] for when, *rest in samples["sent"]], lane_of)
    begin = told["begin"]
    document = {
        "title": title,
        "timed": True,
        "about": "",
        "end": round(told["end"] - begin, 2),
        "lanes": [{"name": name, "kind": name.split()[0]} for name in names],
        "purposes": purposes,
        "spans": [
            [lane, round(span["start"] - begin, 2), round(span["end"] - begin, 2), KINDS.index(span["kind"])]
            for lane, row in enumerate(told["lanes"])
            for span in row["spans"]
        ],
        "messages": [
            [
                each["from"],
                each["to"],
                round(each["left"] - begin, 2),
                round(each["came"] - begin, 2),
                purposes.index(each["purpose"]),
                sizes(each["from"], each["to"], each["purpose"], each["left"] - begin),
            ]
            for each in told["messages"]
        ],
        "sums": [[round(each["at"] - begin, 2), each["name"], each["lanes"]] for each in told["sums"]],
        "held": [
            {**track, "samples": [[lane_of[rank], at(when), *_short(rest)] for rank, when, *rest in track["samples"]]}
            for track in samples["held"]
        ]
        + _micro_batches(trace, lane_of),
        "curves": [
            {**curve, "samples": [[at(when), _short(value)] for when, value in curve["samples"]]}
            for curve in samples["curves"]
        ],
    }
    return _fitting(document)


def of_sum(recording: Plain) -> Plain:
    """Returns the document of a collective's sum. A step takes a second. `recording`: as cli/collective.py has it."""
    hosts, steps = recording["hosts"], recording["steps"]
    several = 1 < len({*hosts}) < len(hosts)
    lanes = [f"worker {rank}" + f" (host {host})" * several for rank, host in enumerate(hosts)]
    purposes = list(dict.fromkeys(step["name"] or "message" for step in steps))
    second = 1e6
    messages: list[list[Any]] = []
    moments: list[list[Any]] = [[0.0, "Each worker has its own values: 1 worker's in each chunk."]]
    first = [[rank, 0.0, ["1"] * len(hosts), [round(1 / len(hosts), 3)] * len(hosts)] for rank in range(len(hosts))]
    cells: list[list[Any]] = first
    for number, step in enumerate(steps):
        name, over = step["name"] or "message", (number + 1) * second
        said: list[str] = []
        for each in step["messages"]:
            messages.append([each["from"], each["to"], number * second, over, purposes.index(name), None])
            done = "adds" if each["adds"] else "takes over"
            chunks = ", ".join(map(str, each["chunks"]))
            said.append(f"{each['to']} {done} chunk{'s' * (len(each['chunks']) > 1)} {chunks} of {each['from']}")
        for rank, row in enumerate(step["after"]):
            counts = [len(values) for values in row]
            cells.append([rank, over, [str(count) for count in counts], [round(n / len(hosts), 3) for n in counts]])
        more = f"; {len(said) - SAID} more" if len(said) > SAID else ""
        moments.append([over, f"Step {number + 1} of {len(steps)}, {name}: worker {'; '.join(said[:SAID])}{more}."])
    return {
        "title": f"{recording['collective']}: a sum among {len(hosts)} workers",
        "timed": False,
        "about": " ".join(recording.get("chosen", [])),
        "end": len(steps) * second,
        "lanes": [{"name": name, "kind": "worker"} for name in lanes],
        "purposes": purposes,
        "spans": [],
        "messages": messages,
        "sums": [],
        "held": [{"name": "workers whose values are in each chunk", "kind": "cells", "samples": cells}],
        "curves": [],
        "moments": moments,
    }


def too_long(document: Plain) -> str:
    """Returns the reason why a sum is not played, which has no meaning without its end; "" where it fits."""
    length, workers = len(json.dumps(document, separators=(",", ":"))), len(document["lanes"])
    if length <= MOST_BYTES:
        return ""
    return (
        f"the sum of {workers} workers has {length / 1e3:,.0f} kB of data, and a player at most "
        f"{MOST_BYTES / 1e3:.0f}. Choose fewer hardware.workers."
    )


# -- micro-batches


def _micro_batches(trace: str, lane_of: dict[int, int]) -> list[Plain]:
    """Returns the micro-batches that each stage holds between their forward and their backward pass, as cells.

    `3:v2` is micro-batch 3, whose forward pass read version 2 of the weights: the number of updates made of them.
    """
    events = (each for each in json.loads(trace)["traceEvents"] if each["ph"] == "X" and each["cat"] == "compute")
    passes: defaultdict[int, dict[tuple[str, str, str, int], tuple[float, int]]] = defaultdict(dict)
    for each in events:
        if found := _PASS.fullmatch(each["name"]):
            about = each["args"]
            key = found["stage"], found["kind"], found["micro_batch"], about["step"]
            # a pass may be in pieces, of which the last one counts
            passes[lane_of[each["tid"]]][key] = each["ts"] + each["dur"], about.get("version", about["step"] - 1)
    samples: list[list[Any]] = []
    for lane, made in passes.items():
        stages = {stage for stage, *_ in made}
        last = "W" if any(kind == "W" for _, kind, *_ in made) else "B"
        slots: dict[tuple[str, str], int] = {}
        texts: dict[int, str] = {}
        states: list[tuple[float, dict[int, str]]] = [(0.0, {})]
        for (stage, kind, micro_batch, _), (end, version) in sorted(made.items(), key=lambda each: each[1][0]):
            key = stage, micro_batch
            if kind == "F":
                slots[key] = next(slot for slot in range(len(slots) + 1) if slot not in slots.values())
                name = micro_batch if len(stages) == 1 else f"{stage}.{micro_batch}"
                texts[slots[key]] = f"{name}:v{version}"
            elif kind == last and key in slots:
                del texts[slots.pop(key)]
            states.append((end, dict(texts)))
        count = 1 + max((slot for _, state in states for slot in state), default=0)
        for end, state in states:
            cells = [state.get(slot, "") for slot in range(count)]
            samples.append([lane, round(end, 2), cells, [float(bool(text)) for text in cells]])
    name = "micro-batch:version of its weights"
    return [{"name": name, "kind": "cells", "samples": samples}] if samples else []


# -- sizes


def _sizes(sent: list[list[Any]], lane_of: dict[int, int]) -> Callable[[int, int, str, float], int | None]:
    """Returns a function that finds the bytes of a message. It is asked for messages in the order in which they left.

    A server's message may have left before it is shown: it has the size of the last one by then.
    """
    found: defaultdict[tuple[int, int, str], list[tuple[float, int]]] = defaultdict(list)
    for when, source, destination, purpose, nbytes in sorted(sent, key=lambda each: each[0]):
        found[lane_of[source], lane_of[destination], purpose or "message"].append((when, nbytes))

    def size(source: int, destination: int, purpose: str, left: float) -> int | None:
        known = found[source, destination, purpose]
        for place, (when, nbytes) in enumerate(known):
            if abs(when - left) <= 0.02:  # times are rounded
                del known[place]
                return nbytes
            if when > left:
                break
        earlier = [nbytes for when, nbytes in known if when < left]
        return earlier[-1] if earlier else None

    return size


def _short(value: Any) -> Any:
    """Returns the value with four digits of each number that is no whole one."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return [_short(each) for each in value] if isinstance(value, list) else value


# -- what fits


def _fitting(document: Plain) -> Plain:
    """Returns the first lanes, and as much time of the beginning, as may be drawn, with its moments."""
    whole, count = document["end"], len(document["lanes"])
    servers = sum(lane["kind"] == "server" for lane in document["lanes"])
    kept = [*range(min(count - servers, max(LANES - servers, 1))), *range(count - servers, count)][:LANES]
    document = _of_lanes(document, kept)
    found = document | {"moments": _moments(document)}
    end = whole
    while len(json.dumps(found, separators=(",", ":"))) > MOST_BYTES:
        end *= 0.85
        found = _until(document, round(end, 2))
        found["moments"] = _moments(found)
    said = [f"the first {end / 1e3:.3g} ms of {whole / 1e3:.3g} ms"] if end < whole else []
    said += [f"{len(kept)} of {count} workers and servers"] if len(kept) < count else []
    return found | {"about": f"Shown are {' and '.join(said)}." if said else ""}


def _of_lanes(document: Plain, kept: list[int]) -> Plain:
    if len(kept) == len(document["lanes"]):
        return document
    new = {lane: place for place, lane in enumerate(kept)}
    return document | {
        "lanes": [document["lanes"][lane] for lane in kept],
        "spans": [[new[lane], *rest] for lane, *rest in document["spans"] if lane in new],
        "messages": [[new[a], new[b], *rest] for a, b, *rest in document["messages"] if a in new and b in new],
        "sums": [[at, name, [new[each] for each in of if each in new]] for at, name, of in document["sums"]],
        "held": [
            {**track, "samples": [[new[lane], *rest] for lane, *rest in track["samples"] if lane in new]}
            for track in document["held"]
        ],
    }


def _until(document: Plain, end: float) -> Plain:
    return document | {
        "end": end,
        "spans": [[lane, start, min(over, end), kind] for lane, start, over, kind in document["spans"] if start < end],
        "messages": [each for each in document["messages"] if each[2] < end],
        "sums": [each for each in document["sums"] if each[0] < end],
        "held": [
            {**track, "samples": [each for each in track["samples"] if each[1] <= end]} for track in document["held"]
        ],
        "curves": [
            {**curve, "samples": [each for each in curve["samples"] if each[0] <= end]} for curve in document["curves"]
        ],
    }


# -- what happens


def _moments(document: Plain) -> list[list[Any]]:
    """Returns the ends of steps, the sums and the arrivals of messages; of too many, arrivals are left out evenly."""
    names, end = [lane["name"] for lane in document["lanes"]], document["end"]
    found = [(at, f"{name} among {len(of)} workers.") for at, name, of in document["sums"]]
    found += _ends_of_steps(document)
    arrivals = [
        (came, f"{names[to]} has got {document['purposes'][purpose]} of {names[source]}{_of_size(nbytes)}.")
        for source, to, _, came, purpose, nbytes in document["messages"]
        if came <= end
    ]
    most = max(MOST_MOMENTS - len(found), 0)
    if arrivals and most:
        every = -(-len(arrivals) // most)
        found += arrivals[every - 1 :: every]
    texts: defaultdict[float, list[str]] = defaultdict(list)
    texts[0.0].append("The run begins.")
    for at, text in sorted(found):
        texts[at].append(text)
    return [[at, " ".join([*_some(said), *_curves(document, at)])] for at, said in sorted(texts.items())]


def _some(said: list[str]) -> list[str]:
    return said if len(said) <= 3 else [*said[:2], f"{len(said) - 2} more."]


def _curves(document: Plain, at: float) -> list[str]:
    values = ((curve["name"], value_at(curve["samples"], at)) for curve in document["curves"])
    return [f"The {name} is {value:.3g}." for name, value in values if value is not None]


def _of_size(nbytes: int | None) -> str:
    return "" if nbytes is None else f" ({human_bytes(nbytes)})"


def _ends_of_steps(document: Plain) -> list[tuple[float, str]]:
    """Returns a sentence for each new clock, with the bound that it has reached."""
    found: defaultdict[tuple[float, str], list[int]] = defaultdict(list)
    for track in document["held"]:
        if track["name"] != "clock":
            continue
        clocks = {lane: 0 for lane, *_ in track["samples"]}
        for lane, at, clock in track["samples"]:
            clocks[lane] = clock
            if clock > 0:
                text = f"at clock {clock:g}{_bound(clock, min(clocks.values()), track.get('within'))}."
                found[at, text].append(lane)
    return [(at, f"{among(document, lanes)} {text}") for (at, text), lanes in found.items()]


def among(document: Plain, lanes: list[int]) -> str:
    """Returns a sentence's beginning: worker 3 is, workers 0, 1, 4 are."""
    if len(lanes) == 1:
        return f"{document['lanes'][lanes[0]]['name']} is"
    lanes = sorted(lanes)
    whole = lanes == list(range(lanes[0], lanes[-1] + 1)) and len(lanes) > 2
    return f"workers {f'{lanes[0]} to {lanes[-1]}' if whole else ', '.join(map(str, lanes))} are"


def _bound(clock: float, slowest: float, within: float | None) -> str:
    if within is None or clock - slowest < within:
        return ""
    reached = f", the slowest at {slowest:g}: bound {within:g} "
    return reached + ("reached" if clock - slowest == within else "passed, it waits")


def value_at(samples: list[list[Any]], at: float) -> float | None:
    """Returns the last value by then of [[at, value]], in order; None before the first."""
    place = bisect_right(samples, at, key=lambda each: each[0]) - 1
    return samples[place][1] if place >= 0 else None
