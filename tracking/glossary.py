"""What each column of a comparison means, in one line: its unit, then its meaning."""

from .columns import COLUMNS, MEMORY_KINDS

_OF_A_WORKER = "peak of the largest worker"
_RATIO = "ratio"
MEANINGS: dict[str, tuple[str, str]] = {
    "run": ("", "the run's name, or that of runs that differ in their seed alone"),
    "front": ("", "* where no other run is better in all of --pareto's columns"),
    "status": ("", "completed, diverged, failed, pruned, interrupted, unfinished or damaged"),
    "modelled": ("", "whether times are those of a virtual cluster"),
    "model": ("", "the choice of model"),
    "data": ("", "the choice of data set"),
    "strategy": ("", "how one replica of the model is laid over workers"),
    "sync": ("", "how replicas agree"),
    "partition": ("", "how samples are dealt to replicas"),
    "stragglers": ("", "the delays that were added to workers"),
    "workers": ("", "workers that train; servers are not among them"),
    "servers": ("", "parameter servers beside the workers"),
    "effective_batch": (
        "samples",
        "the most that a replica took in one step, where the data gave less than batch_size",
    ),
    "n": ("", "completed runs that the row is the mean of"),
    "runs": ("", "the names of these runs"),
    "others": ("", "runs of the same configuration that did not complete and are not in the mean"),
    "throughput_samples_per_s": ("samples/s", "of all workers, without the first steps (measure.after) and evaluation"),
    "too_short": ("", "whether the run has too few steps for its speed to be shown"),
    "step_ms": ("ms", "median time of a step"),
    "compute_ms": ("ms", "the part of a step in which the worker was not blocked"),
    "communication_ms": ("ms", "the part of a step that was blocked after the last participant had begun"),
    "waiting_ms": ("ms", "the part of a step that was blocked until the last participant began"),
    "peak_memory_mib": ("MiB", "peak of the largest process, worker or server"),
    **{
        f"{kind}_mib": (
            "MiB",
            f"{kind.replace('host_', '')}{' in the memory of the host' * kind.startswith('host_')}, {_OF_A_WORKER}",
        )
        for kind in MEMORY_KINDS
    },
    "other_mib": ("MiB", f"temporaries, gathered weights and the runtime, {_OF_A_WORKER}"),
    "bytes_per_step": ("bytes", "payload that leaves a worker in one step, servers' answers included"),
    "messages": ("", "messages of the whole run"),
    "staleness_mean": ("updates", "mean number of others' updates between a worker's fetch and its push"),
    "staleness_max": ("updates", "the largest such number"),
    "dropped_gradients": ("", "gradients that arrived too late and were not used"),
    "lost_workers": ("", "workers that died while the others went on"),
    "consensus_distance": ("", "distance of the replicas' weights from their mean, at the last evaluation"),
    "loss": ("nats", "mean cross-entropy on the test split, at the last evaluation"),
    "accuracy": ("share", "right predictions on the test split, at the last evaluation"),
    "time_to_accuracy_s": ("s", "training time until the test accuracy first reached target_accuracy"),
    "dollars": ("US$", "price of the machines until target_accuracy, where hardware has one"),
    "speedup_throughput": (_RATIO, "throughput over that of the baseline"),
    "speedup_time_to_accuracy": (_RATIO, "the baseline's time to accuracy over this one's"),
    "bytes_ratio": (_RATIO, "bytes sent in a step over those of the baseline"),
    "memory_ratio": (_RATIO, "peak memory over that of the baseline"),
    "dollars_ratio": (_RATIO, "dollars over those of the baseline"),
    "why": ("", "why a run has not completed"),
}


def glossary() -> list[list[str]]:
    """A row for each column of a comparison: its title, its name in JSON and CSV, its unit, its meaning."""
    return [[column.title, column.key, *MEANINGS[column.key]] for column in COLUMNS]
