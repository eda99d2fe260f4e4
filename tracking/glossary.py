"""The meaning of the words in tables and messages, and of each column of a comparison: its unit, then its meaning."""

from ..conf.groups import SHOWN
from .columns import COLUMNS, MEMORY_KINDS

TERMS = {
    "worker": "one process, on one device, that trains; on a virtual cluster a thread that stands for one",
    "server": "a process beside the workers that holds weights for them and does not train",
    "rank": "the number of a worker or server: workers from 0 on, then servers; logs call either worker 2",
    "replica": "one full copy of the model in training: one worker, or several that it is cut over (client in FedAvg)",
    "stage": "the piece of a replica that one worker of strategy=pipeline holds: some of the model's layers",
    "shard": "the piece of the model's tensors, or of their gradients or optimizer state, that one replica keeps",
    "batch": "batch_size samples, what one replica takes in one step; pipelines and accumulate cut it in micro-batches",
    "step": "one batch of each replica and what follows from it: gradients, messages, an update",
    "staleness": "how many updates of others reached the weights between a replica's fetch and its push",
    "expert": "a replica that learns its own part of the data alone, and answers what is nearest to it (sync=routed)",
    "straggler": "a worker that is slower than the others",
    "baseline": "the run or mean of seeds that others are compared with",
    "choice": "a value of a group, such as ssp of sync: a YAML file that names a class and its parameters",
    "trial": "one point of a sweep, with the seeds that it is run with",
}
_OF_A_WORKER = "peak of the largest worker"
_RATIO = "ratio"
_SINCE = "; of a run that was resumed, since then"
MEANINGS: dict[str, tuple[str, str]] = {
    "run": ("", "the run's name, or that of runs that differ in their seed alone"),
    "front": (
        "",
        "* where no other run is better in all of --pareto's columns; with ~ where a time was disturbed",
    ),
    "status": ("", "completed, diverged, failed, pruned, interrupted, unfinished or damaged"),
    "modelled": ("", "whether times are those of a virtual cluster"),
    **{group.name: ("", group.meaning) for group in SHOWN},
    "workers": ("", "workers of all replicas together; servers are not among them"),
    "mesh": ("", "the workers of one replica, along each axis: stage 2 x tensor 2"),
    "servers": ("", "parameter servers beside the workers"),
    "effective_batch": (
        "samples",
        "the most that a replica took in one step, where the data gave less than batch_size",
    ),
    "n": ("", "completed runs that the row is the mean of"),
    "runs": ("", "the names of these runs"),
    "others": ("", "runs of the same configuration that did not complete and are not in the mean"),
    "throughput_samples_per_s": ("samples/s", "of all workers, without the first steps (measure.after) and evaluation"),
    "too_short": ("", "whether the run has too few steps, of those since it last went on, for its speed to be shown"),
    "updates_per_second": ("1/s", "throughput over batch_size: the gradients that all replicas compute in a second"),
    "step_ms": ("ms", "median time of a step"),
    "predicted_step_ms": ("ms", "time of a step as it was predicted before the run (prediction.json has its parts)"),
    "predicted_error": (
        "share",
        "predicted over measured time of a step, less 1: above 0, it was quicker than predicted",
    ),
    "compute_ms": ("ms", "the time of a step in which the worker was not blocked"),
    "communication_ms": (
        "ms",
        "the time of a step that was blocked after the last worker or server that takes part had begun",
    ),
    "waiting_ms": ("ms", "the time of a step that was blocked until the last worker or server that takes part began"),
    "disturbed": ("", "why times may be those of other programs on the machine: load, steal, the spread of steps"),
    "blocked": ("share", "communication and waiting, of a step's time over all workers; a pipeline's bubble is in it"),
    "device_peak_mib": (
        "MiB",
        "peak of what torch's allocator gave out on a GPU, of the worker or server with the most; none on a CPU",
    ),
    "peak_memory_mib": (
        "MiB",
        "peak of the largest process, worker or server, in the host's memory; nothing of a GPU is in it",
    ),
    **{
        f"{kind}_mib": (
            "MiB",
            f"{kind.replace('host_', '')}{' in the memory of the host' * kind.startswith('host_')}, {_OF_A_WORKER}",
        )
        for kind in MEMORY_KINDS
    },
    "other_mib": ("MiB", f"temporaries, gathered weights and the runtime, {_OF_A_WORKER}"),
    "bytes_per_step": ("bytes", f"payload that leaves a worker in one step, servers' answers included{_SINCE}"),
    "megabytes": ("10^6 bytes", f"payload that all workers and servers sent in the whole run{_SINCE}"),
    "messages": ("", f"messages of the whole run{_SINCE}"),
    "staleness_mean": ("updates", "mean number of others' updates between a replica's fetch and its push"),
    "staleness_max": ("updates", "the largest such number"),
    "dropped_gradients": ("", "gradients that arrived too late and were not used"),
    "lost_workers": ("", "workers that died while the others went on"),
    "left_rounds": ("", "rounds that clients left before they could deliver (sync.dropout), of all clients"),
    "given_up_rounds": ("", "rounds without effect, as too few clients came to their end (secure.threshold)"),
    "cut_share": (
        "share",
        "entries other than 0 of what clients brought that secure=bonawitz cut to secure.largest, or rounded to 0 by "
        f"secure.bits{_SINCE}",
    ),
    "compile_s": ("s", "in which the slowest worker compiled (compile=true); no step time or throughput counts it"),
    "worker_failures": ("", "failures of workers (failures=poisson, ...), modelled; where each stops all, of the run"),
    "lost_work_s": ("s", "work that failures threw away, modelled, of all workers together"),
    "downtime_s": ("s", "in which workers that had failed, or stopped with these, were away, modelled, all together"),
    "checkpoint_s": (
        "s",
        "in which workers wrote checkpoints to go back to, modelled, all together",
    ),
    "goodput": ("share", "modelled seconds of workers that failures, restarts and checkpoints did not take"),
    "skipped_steps": ("", "steps of precision=fp16 that changed no weight, as a gradient overflowed; worker 0's"),
    "consensus_distance": ("", "distance of the replicas' weights from their mean, at the last evaluation"),
    "noise_scale": (
        "samples",
        "the gradient noise scale at the last step that it was measured in (callbacks=noise_scale): about the batch at "
        "which training takes twice the steps, and twice the samples, that it takes at least",
    ),
    "weights_kept": ("", "weights that adapt=pruned has not taken out, of those that it may, at the end"),
    "backdoor_success": (
        "share",
        "test samples of other classes that the model gives the label of attack=backdoor with its patch on them",
    ),
    "model_bytes": ("bytes", "the trained model where it is put to use, packed if `adapt` packs its weights"),
    "epsilon": (
        "",
        "what a run with privacy=dp_sgd or dp_fedavg would have spent at its delta if each batch (or round) had been "
        "drawn at random, as partition=poisson draws batches: the figure of most papers. Where batches are shuffled it "
        "is smaller than what holds for the run (docs/privacy.md)",
    ),
    "epsilon_as_dealt": (
        "",
        "what the run has spent at its delta with batches (or rounds) as they were dealt, which is the figure to rely "
        "on: the smaller, the less its model gives away (docs/privacy.md)",
    ),
    "loss": ("nats", "mean cross-entropy (or the loss of another task) on the test split, at the last evaluation"),
    "accuracy": ("share", "right predictions on the test split, at the last evaluation"),
    "robust_accuracy": (
        "share",
        "right on the test split, also when evaluate.attack changes its samples by at most evaluate.eps, at the last "
        "evaluation",
    ),
    "target_reached": (
        "share",
        "predictions of other classes that evaluate.attack led to evaluate.target, at the last evaluation",
    ),
    "client_mean": ("share", "mean over clients of the accuracy on their own test samples (callbacks=by_client)"),
    "client_worst": (
        "share",
        "accuracy on their own test samples of the tenth of clients for whom it is worst (callbacks=by_client)",
    ),
    "client_spread": ("share", "standard deviation over clients of the accuracy on their own test samples"),
    "personal_mean": (
        "share",
        "mean over clients of it once each has fine-tuned the model (callbacks.by_client.steps)",
    ),
    "personal_worst": ("share", "the same of the tenth of clients for whom it is worst"),
    "personal_spread": ("share", "standard deviation over clients of the same"),
    "r2": (
        "",
        "R^2 on the test split, at the last evaluation: 1 is perfect, 0 what the mean of the targets gives; of "
        "task=reconstruction the share of the variance that is explained, 0 what the mean of the samples gives",
    ),
    "purity": (
        "share",
        "test samples that have the most frequent label of their cluster, at the last evaluation (callbacks=[purity])",
    ),
    "time_to_accuracy_s": ("s", "training time until the test accuracy (or R^2) first reached target_accuracy"),
    "epochs_to_accuracy": ("epochs", "passes over the data until the target was reached, by the run's evaluations"),
    "rounds_to_accuracy": ("", "steps until the target was reached over sync.period, rounded up"),
    "steps_to_accuracy": ("", "steps until the target was reached, by the run's evaluations"),
    "time_per_pass_s": ("s", "time to accuracy over epochs to accuracy: what one pass over the data takes"),
    "dollars": ("US$", "rent of the machines for the whole training: hours x hosts x hardware.machine.price_per_hour"),
    "speedup_throughput": (_RATIO, "throughput over that of the baseline"),
    "speedup_time_to_accuracy": (_RATIO, "the baseline's time to accuracy over this one's"),
    "no_speedup": ("", "why there is no speed-up, or none of the time to accuracy"),
    "bytes_ratio": (_RATIO, "bytes sent in a step over those of the baseline"),
    "memory_ratio": (
        _RATIO,
        "peak memory over that of the baseline: of GPUs where one of the two has one, else of hosts",
    ),
    "dollars_ratio": (_RATIO, "dollars over those of the baseline"),
    "why": ("", "why a run has not completed"),
}


def glossary() -> list[list[str]]:
    """A row for each column of a comparison: its title, its name in JSON and CSV, its unit, its meaning."""
    return [[column.title, column.key, *MEANINGS[column.key]] for column in COLUMNS]
