"""The process that speaks with Ray, for one attempt; without a command it only asks what the cluster has.

    python -m paceline.engine.jobs.ray_driver JSON

Ends when all workers have ended: 0 if each of them ended with 0.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

from ..base.parent_death import die_with_parent

LOOK = 0.2  # seconds between two looks at the workers
NOT_REACHED, TOO_LARGE, NO_ROOM, LOST = 3, 2, 4, 4  # exit statuses


class WorkersOfNode:
    """The workers of one bundle, as children of the actor's process. They end with it."""

    def start(self, node: int, told: dict[str, Any]) -> None:
        """Start the workers of the node with this number."""
        each = told["workers_per_node"]
        self._children: list[subprocess.Popen[bytes]] = []
        for local in range(each):
            place = {"RANK": node * each + local, "WORLD_SIZE": told["nodes"] * each}
            place |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": each, "MASTER_ADDR": "", "MASTER_PORT": 0}
            variables = {key: str(value) for key, value in place.items()} | told["variables"]
            self._children.append(
                subprocess.Popen(
                    told["command"],
                    cwd=told["folder"],
                    env=os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=lambda: die_with_parent(signal.SIGKILL),
                )
            )

    def statuses(self) -> list[int | None]:
        """Returns the exit statuses; None for each worker that goes on."""
        return [child.poll() for child in self._children]

    def stop(self) -> None:
        """Ask the workers to save and stop."""
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()


def main(told: dict[str, Any]) -> int:
    """Run the workers, or look whether they fit; returns the exit status."""
    if "command" in told:
        die_with_parent(signal.SIGKILL)  # and its actors with it
    ray = import_module("ray")
    try:
        ray.init(address=told["address"], log_to_driver=False, logging_level="error", namespace="paceline")
    except (ConnectionError, RuntimeError, ValueError) as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        print(f"launcher.address={told['address']}: no Ray cluster answers ({words[0]})")
        return NOT_REACHED
    try:
        return _run(ray, told) if "command" in told else _look(ray, told)
    finally:
        ray.shutdown()


def _look(ray: Any, told: dict[str, Any]) -> int:
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    fits = [all(node.get(key, 0) >= amount for key, amount in told["bundle"].items()) for node in nodes]
    wanted = ", ".join(f"{amount} {key}" for key, amount in told["bundle"].items())
    if told["spread"] and sum(fits) < told["nodes"]:
        print(
            f"launcher.nodes={told['nodes']}: the cluster has {sum(fits)} nodes with {wanted}, of {len(nodes)}. Choose "
            "fewer nodes, fewer workers_per_node, or launcher.spread=false."
        )
        return TOO_LARGE
    rooms = [min(int(node.get(key, 0) // amount) for key, amount in told["bundle"].items()) for node in nodes]
    if sum(rooms) < told["nodes"]:
        print(f"launcher.nodes={told['nodes']}: the cluster has room for {sum(rooms)} times {wanted}. Choose fewer.")
        return TOO_LARGE
    return 0


def _run(ray: Any, told: dict[str, Any]) -> int:
    groups, strategies = import_module("ray.util.placement_group"), import_module("ray.util.scheduling_strategies")
    strategy = "STRICT_SPREAD" if told["spread"] else "PACK"
    group = groups.placement_group([told["bundle"]] * told["nodes"], strategy=strategy)
    try:
        ray.get(group.ready(), timeout=told["patience"])
    except ray.exceptions.GetTimeoutError:
        print(f"Ray gave no room in {told['patience']:g} s", file=sys.stderr, flush=True)
        groups.remove_placement_group(group)
        return NO_ROOM
    actor = ray.remote(WorkersOfNode)
    actors: list[Any] = []
    bundle = told["bundle"]
    for node in range(told["nodes"]):
        where = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": where}
        actors.append(actor.options(max_restarts=0, **options).remote())
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        ray.get([each.start.remote(node, told) for node, each in enumerate(actors)])
        return _watch(ray, actors, asked)
    finally:
        groups.remove_placement_group(group)


def _watch(ray: Any, actors: list[Any], asked: list[int]) -> int:
    """Look at the workers until all have ended. An actor that died has lost its workers; the others notice."""
    lost: set[int] = set()
    passed_on = False
    ended: dict[int, list[int]] = {}
    while len(ended) + len(lost) < len(actors):
        passes = bool(asked) and not passed_on  # one answer for all actors: the signal may come amid a look
        for node, each in enumerate(actors):
            if node in lost or node in ended:
                continue
            try:
                if passes:
                    ray.get(each.stop.remote())
                statuses = ray.get(each.statuses.remote())
            except ray.exceptions.RayActorError as error:
                print(f"actor {node} was lost: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
                lost.add(node)
                continue
            if None not in statuses:
                ended[node] = statuses
        passed_on |= passes
        time.sleep(LOOK)
    statuses = [status for each in ended.values() for status in each]
    return LOST if lost else next((abs(status) for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
