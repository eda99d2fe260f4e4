"""The messages among workers over time: some steps of a trace (engine/training/trace.py), as plain values for a
picture.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

STEPS = 2  # of the first worker, that are shown at least
COUNTS = (STEPS, 3, 4, 6, 8, 12, 16)  # and more, until all is seen
Plain = dict[str, Any]


def read(trace: str, whole: bool = False) -> Plain:
    """Parses a trace's text into {"modelled", "begin", "end", "lanes", "messages", "sums"}, times in microseconds.

    "lanes": [{"name", "spans": [{"start", "end", "kind", "name"}]}], kind compute, waiting or communication;
    "messages": [{"from", "to", "purpose", "left", "came"}] by lane, each an arrow of the trace; "sums":
    [{"name", "lanes", "at"}], collectives and what else several lanes took part in, with the last one's beginning.
    `whole`: all of the run. Else shown are the fewest of the first worker's steps, one after the other, in which there
    is one of all that is sent: each message and each sum that began in their time. The end is that of the steps, or
    the last message's arrival.
    """
    told = json.loads(trace)
    events = told["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in events if each.get("name") == "thread_name"}
    places = {rank: place for place, rank in enumerate(sorted(names))}
    spans = [each for each in events if each["ph"] == "X"]
    every = list(_messages(events, places))
    begin, over = (0.0, max(map(_end, spans), default=1.0))
    if not whole:
        begin, over = _window(spans, every, min(names, default=0))
    messages = [each for each in every if begin <= each["left"] < over]
    end = max([over, *(each["came"] for each in messages)])  # other workers may end their steps later
    lanes: list[Plain] = [{"name": names[rank], "spans": []} for rank in sorted(names)]
    sums: defaultdict[tuple[str, int], list[Plain]] = defaultdict(list)
    for each in spans:
        start, last = each["ts"], _end(each)
        if last > begin and start < end:
            lanes[places[each["tid"]]]["spans"].append(
                {"start": max(start, begin), "end": min(last, end), "kind": each["cat"], "name": each["name"]}
            )
        if _is_sum(each):
            sums[each["args"]["operation"], each["args"]["number"]].append(each)
    together = [
        {
            "name": some[0]["name"],
            "lanes": among,
            "at": max(each["ts"] for each in some),
        }
        for some in sums.values()
        if len(among := _among(some, places)) > 1 and begin <= max(each["ts"] for each in some) < over
    ]
    return {
        "modelled": told["otherData"]["clock"] == "modelled",
        "begin": begin,
        "end": end,
        "lanes": lanes,
        "messages": sorted(messages, key=lambda each: (each["left"], each["came"])),
        "sums": sorted(together, key=lambda each: each["at"]),
    }


def _among(some: list[Plain], places: dict[int, int]) -> list[int]:
    """Returns the lanes of a collective. Its last worker may not have waited for it at all."""
    ranks = {each["tid"] for each in some}.union(*(each["args"].get("among", ()) for each in some))
    return sorted(places[rank] for rank in ranks)


def _messages(events: list[Plain], places: dict[int, int]) -> Iterator[Plain]:
    left = {each["id"]: each for each in events if each["ph"] == "s"}
    for came in (each for each in events if each["ph"] == "f"):
        sent = left[came["id"]]
        yield {
            "from": places[sent["tid"]],
            "to": places[came["tid"]],
            "purpose": came["name"],
            "left": sent["ts"],
            "came": came["ts"],
        }


def _window(spans: list[Plain], messages: list[Plain], first: int) -> tuple[float, float]:
    """The fewest consecutive steps of the first worker, after its first one, in which all kinds of things happen."""
    own: dict[int, list[Plain]] = {}
    for each in spans:
        if each["tid"] == first and "step" in each["args"]:
            own.setdefault(each["args"]["step"], []).append(each)
    if not own:
        return (0.0, max((_end(each) for each in spans), default=1.0))
    steps = [
        (min(each["ts"] for each in own[number]), max(_end(each) for each in own[number])) for number in sorted(own)
    ]
    since = steps[min(1, len(steps) - 1)][0]
    happened = [(each["purpose"], each["left"]) for each in messages]
    happened += [(each["name"], each["ts"]) for each in spans if _is_sum(each)]
    wanted = {kind for kind, left in happened if left >= since}
    found = steps[-min(STEPS, len(steps)) :]
    most = -1
    for count in COUNTS:
        for i in range(min(1, len(steps) - 1), len(steps) - count + 1):
            begin, end = steps[i][0], steps[i + count - 1][1]
            kinds = {kind for kind, left in happened if begin <= left < end}
            if len(kinds) > most:
                most, found = len(kinds), steps[i : i + count]
            if kinds >= wanted:
                return begin, end
    return found[0][0], found[-1][1]


def _end(span: Plain) -> float:
    """Returns the end in microseconds, of which a trace has whole thousandths."""
    return round(span["ts"] + span["dur"], 3)


def _is_sum(each: Plain) -> bool:
    """Returns whether several workers take part in it and it is no message."""
    about = each["args"]
    return each["cat"] == "communication" and "operation" in about and not {"from", "to"} & about.keys()
