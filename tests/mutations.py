"""`make mutations`: guarded lines, each broken once in a copy of the tree, and whether the tests that guard it fail.

`python tests/mutations.py local_sgd ledger` breaks those alone whose file or whose tests have one of the words. The
copy is of the working tree; nothing outside of it is changed. First the tests must pass there, unbroken. Exit status 1:
a broken line survived; 2: this list is wrong (a text is no longer there, a selection finds no tests or fails unbroken).
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "advise",
    "batches",
    "cli",
    "comm",
    "compat",
    "conf",
    "cost",
    "engine",
    "exchange",
    "strategies",
    "sweep",
    "tasks",
    "tracking",
    "verify",
    "wrap",
)
SECONDS = 400  # that the tests of one line may take
FAILED, EMPTY = 1, 5  # pytest's exit status when a test failed, and when no test was chosen


@dataclass(frozen=True)
class Mutation:
    """`old` is once in `file`, and `new` takes its place. `tests`: what pytest is given; some of them must fail."""

    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    # -- what strangers' eyes found
    Mutation(
        "comm/connecting.py",
        "board.close()  # its thread",
        "pass  # its thread",
        "tests/comm/test_process_failures.py -k lives_on",
    ),
    Mutation(
        "tasks/data/images.py",
        'getchannel("A").getextrema()[0] < OPAQUE',
        'getchannel("A").getextrema()[1] < OPAQUE',
        "tests/tasks/test_own_files.py -k transparent",
    ),
    Mutation(
        "tracking/files.py",
        "size = 1 + len(event.value) // TEXT",
        "size = 1",
        "tests/engine/test_kept_choices.py -k stands_for_much",
    ),
    Mutation(
        "wrap/run.py",
        "except Exception as failure:",
        "except ScriptError as failure:",
        "tests/wrap/test_wrap.py -k has_an_end",
    ),
    # -- what other processes say of themselves
    Mutation(
        "engine/launch/torchrun.py",
        "if first.get(key) != own.get(key)",
        "if False",
        "tests/engine/test_launchers.py -k different_configurations",
    ),
    Mutation(
        "exchange/deliveries.py",
        "        if told < 0:",
        "        if False:",
        "tests/strategies/test_false_words.py -k under_the_mean",
    ),
    Mutation(
        "exchange/stepping.py",
        "if share > 1 + ROUNDING",
        "if False",
        "tests/strategies/test_false_words.py -k 'more_than_all and mean' -m 'not slow'",
    ),
    # -- compiled passes
    Mutation(
        "engine/training/meters.py",
        "        start += self._compiled() - compiled",
        "        start += 0.0",
        "tests/engine/test_compiling.py -k takes_no_time",
    ),
    Mutation(
        "engine/features/compiling.py",
        "str(private(Path(folder).absolute()))",
        "str(Path(folder).absolute())",
        "tests/engine/test_compiling.py -k nobody_else",
    ),
    Mutation(
        "engine/features/compiling.py",
        "        buffer.copy_(before)",
        "        pass",
        "tests/engine/test_compiling.py -k each_size",
    ),
    # -- nccl
    Mutation(
        "engine/training/trace.py",
        "            profiler.step()\n",
        "            pass\n",
        "tests/engine/test_trace_streams.py -m slow",
    ),
    Mutation(
        "comm/torch_world.py",
        "launched, then, message=bool(way))",
        "launched, then, message=False)",
        "tests/comm/test_nccl.py -k torchs_pipelines",
    ),
    Mutation(
        "comm/process.py",
        "            self._poll(work.is_completed, what)\n            self.blocked",
        "            self.blocked",
        "tests/comm/test_nccl.py -k dead_peer",
    ),
    Mutation(
        "comm/process.py",
        "            self._worker.groups.abort()\n            raise\n",
        "            raise\n",
        "tests/comm/test_nccl.py -k 'dead_peer or does_not_come'",
    ),
    Mutation(
        "comm/process.py",
        "                if (for_group or late) and (dead",
        "                if late and (dead",
        "tests/comm/test_nccl.py -k dead_peer",
    ),
    Mutation(
        "comm/process.py",
        "end - seconds_between(mark, last) for mark",
        "end for mark",
        "tests/comm/test_nccl.py -k between_its_events",
    ),
    Mutation(
        "comm/torch_world.py",
        "            comm.wait_for_work(work, self._what, since, message=self._message)\n",
        "            work.wait()\n",
        "tests/comm/test_nccl.py -k dead_peer",
    ),
    Mutation(
        "strategies/torch_ddp.py",
        "            self.comm.wait_for_futures()",
        "            pass",
        "tests/comm/test_nccl.py -k measured_by_events",
    ),
    Mutation(
        "comm/groups.py",
        "    return not thread.is_alive()",
        "    return True",
        "tests/comm/test_nccl.py -k does_not_connect",
    ),
    Mutation(
        "compat/process_groups.py",
        "        os.environ.setdefault(variable, value)",
        "        pass",
        "tests/comm/test_nccl.py -k watchdog",
    ),
    Mutation(
        "engine/training/work.py",
        "        raise lack_of_gpu(error, assignment.predicted.memory) from error",
        "        raise",
        "tests/engine/test_failures.py -k whose_gpu_is_full",
    ),
    # -- data of one's own
    Mutation(
        "tasks/data/parts.py",
        "    if missing:",
        "    if False:",
        "tests/tasks/test_names.py -k 'columns_of_a_test_file or arrays_of'",
    ),
    Mutation(
        "tasks/data/table.py",
        "values.astype(column.dtype) != column",
        "values.astype(column.dtype) > column",
        "tests/tasks/test_damaged_data.py -k float64_would_round",
    ),
    Mutation(
        "tasks/data/table.py",
        "(values >= EXACT)",
        "(values > EXACT)",
        "tests/tasks/test_damaged_data.py -k column_of_fractions",
    ),
    Mutation(
        "tasks/data/table.py",
        "folded(former) != folded(text)",
        "folded(former) != folded(former)",
        "tests/tasks/test_data_targets.py -k in_two_ways",
    ),
    Mutation(
        "tasks/data/table.py",
        "compute.equal(found.cast(column.type), column)",
        "compute.equal(column, column)",
        "tests/tasks/test_names.py -k training_table_changes",
    ),
    Mutation(
        "tasks/data/table.py",
        "ignore_empty_lines=not lone",
        "ignore_empty_lines=True",
        "tests/tasks/test_data_targets.py -k empty_line",
    ),
    Mutation(
        "tasks/data/table.py",
        "is_null(nan_is_null=True)\n        if types",
        "is_null()\n        if types",
        "tests/tasks/test_data_targets.py -k is_nan",
    ),
    Mutation(
        "tracking/files.py",
        "if count > 1:",
        "if count > 2:",
        "tests/tracking/test_files.py -k there_twice",
    ),
    Mutation(
        "strategies/memory/offloaded_step.py",
        "self._fetched_in_place.enter_context(with_tensors(layer, given))",
        "with_tensors(layer, given)",
        "tests/strategies/test_offload.py -k computed_again_reads",
    ),
    Mutation(
        "strategies/offload.py",
        "    finally:\n        offloaded.restore()",
        "    finally:\n        pass",
        "tests/strategies/test_offload.py -k failure_in_backward",
    ),
    Mutation(
        "tracking/files.py",
        "if plain and _OTHER_NUMBER.fullmatch(event.value):",
        "if False:",
        "tests/engine/test_kept_choices.py -k as_it_looks",
    ),
    Mutation(
        "engine/config/config_file.py",
        "if count > 1]",
        "if count > 2]",
        "tests/engine/test_config_file.py -k 'sets or staleness'",
    ),
    Mutation(
        "engine/config/choice_files.py",
        "if ours.is_file() and ours.read_bytes() != read_bytes(file):",
        "if False:",
        "tests/engine/test_kept_choices.py -k as_it_looks",
    ),
    Mutation(
        "compat/omegaconf.py",
        "if _left.get() < 0:",
        "if False:",
        "tests/compat/test_omegaconf.py -k bounded_inside",
    ),
    Mutation(
        "engine/launch/launching.py",
        "is_one = layout.world_size > 1 and",
        "is_one = False and",
        "tests/engine/test_engine_faults.py -k refusal_of_one -m fault",
    ),
    Mutation(
        "wrap/gradients.py",
        "torch.arange(1, ROW + 1, device=sums.device)",
        "1",
        "tests/wrap/test_steps.py -k noise_is",
    ),
    Mutation(
        "cli/diff.py",
        "if not run.config and run.damage:",
        "if False:",
        "tests/cli/test_cli_diff.py -k own_status",
    ),
    Mutation(
        "tracking/configurations.py",
        "if parsed.keys() & configuration.keys():",
        "if False:",
        "tests/tracking/test_files.py -k there_twice",
    ),
    Mutation(
        "tasks/data/parts.py",
        "    if more:",
        "    if False:",
        "tests/tasks/test_names.py -k 'columns_of_a_test_file or arrays_of'",
    ),
    Mutation(
        "tasks/data/parts.py",
        "if answers and set(found) != set(targets):",
        "if False:",
        "tests/tasks/test_data_targets.py -k among_the_inputs",
    ),
    Mutation(
        "tasks/data/table.py",
        "strings_can_be_null=True",
        "strings_can_be_null=False",
        "tests/tasks/test_data_targets.py -k empty_label",
    ),
    Mutation(
        "tasks/data/table.py",
        "kind, size = self._kind(whole.schema), whole.num_rows",
        "size = whole.num_rows",
        "tests/tasks/test_data_targets.py -k whole_column",
    ),
    Mutation(
        "tasks/data/table.py",
        "types = {} if of_targets is None else {target: of_targets}",
        "types = {}",
        "tests/tasks/test_names.py -k classes_of_a_test_table",
    ),
    Mutation(
        "tasks/data/table.py",
        "csv.ReadOptions(use_threads=False)",
        "csv.ReadOptions(use_threads=True)",
        "tests/tasks/test_damaged_data.py -k no_thread",
    ),
    Mutation(
        "tasks/data/hugging_face.py",
        "if of_train and of_test and of_train != of_test:",
        "if False:",
        "tests/tasks/test_names.py -k other_orders",
    ),
    Mutation(
        "tasks/data/hugging_face.py",
        'return getattr(_innermost(feature), "names", None)',
        'return getattr(feature, "names", None)',
        "tests/tasks/test_values_kept.py -k compared_by_name",
    ),
    Mutation(
        "tasks/data/hugging_face.py",
        "if name != key:",
        "if False:",
        "tests/tasks/test_values_kept.py -k asked_of_a_data_set",
    ),
    Mutation(
        "tasks/data/parts.py",
        "if (train.dtype == torch.uint8) != (test.dtype == torch.uint8):",
        "if False:",
        "tests/tasks/test_values_kept.py -k taken_for_each_other",
    ),
    Mutation(
        "tasks/data/parts.py",
        "    if not kept:",
        "    if False:",
        "tests/tasks/test_values_kept.py -k would_lose_values",
    ),
    Mutation(
        "tasks/data/parts.py",
        "    if test.shape != train.shape:",
        "    if False:",
        "tests/tasks/test_values_kept.py -k another_shape",
    ),
    Mutation(
        "tasks/columns.py",
        "if len(rows) and tuple(values.shape[1:]) != tuple(shape):",
        "if False:",
        "tests/tasks/test_values_kept.py -k further_down",
    ),
    Mutation(
        "tasks/items.py",
        "(found.to(values.dtype) != values) |",
        "values.isnan() |",
        "tests/tasks/test_values_kept.py -k no_whole_number",
    ),
    Mutation(
        "tasks/items.py",
        "found.isinf() & ~values.isinf()",
        "found.isnan() & ~values.isnan()",
        "tests/tasks/test_values_kept.py -k float32_cannot_hold",
    ),
    Mutation(
        "tasks/data/svmlight.py",
        "strange = np.flatnonzero(~np.isfinite(matrix.data))",
        "strange = np.flatnonzero(np.isnan(matrix.data))",
        "tests/tasks/test_sparse_data.py -k not_finite",
    ),
    Mutation(
        "tasks/data/torch_dataset.py",
        "if None not in told and told[0] != told[1]:",
        "if False:",
        "tests/tasks/test_names.py -k other_classes",
    ),
    Mutation(
        "tasks/data/mapped.py",
        "if any(size < 0 for size in shape):",
        "if False:",
        "tests/tasks/test_damaged_data.py -k headers_of_npy",
    ),
    Mutation(
        "tasks/checks.py",
        "if isinstance(split, Columns) and not split.counts:",
        "if False:",
        "tests/tasks/test_arrays.py -k all_0",
    ),
    Mutation(
        "tasks/contents.py",
        "shown = name if name.isprintable() and name and name == name.strip() else ascii(name)",
        "shown = name",
        "tests/tasks/test_contents.py -k terminal",
    ),
    # -- variables that a launcher sets
    Mutation(
        "engine/base/started.py",
        "not int(rank) < int(size) or ",
        "",
        "tests/engine/test_launchers.py -k no_launcher_sets",
    ),
    # -- GPUs of a sweep's trials
    Mutation(
        "sweep/sweeper.py",
        "            given, self._idle = tuple(self._idle[:devices]), self._idle[devices:]",
        "            given = tuple(self._idle[:devices])",
        "tests/sweep/test_room.py -k own",
    ),
    # -- generations of a torchrun job
    Mutation(
        "engine/api/generations.py",
        "    if stored.plain != config or",
        "    if",
        "tests/engine/test_stored.py -k newest_checkpoint",
    ),
    Mutation(
        "comm/rendezvous.py",
        "            if _answers(Endpoint(NAME, told.host, int(word), key), told.rank):",
        "            if True:",
        "tests/comm/test_rendezvous.py -k generation_that_has_ended",
    ),
    # -- a frozen worker that nobody waits for
    Mutation(
        "comm/board.py",
        "        if frozen := sorted(silent - self._have_left):",
        "        if frozen := []:",
        "tests/comm/test_board.py -k nobody_waits_for",
    ),
    # -- accusations of secure sums
    Mutation(
        "exchange/secure/protocol.py",
        "if u == client or u not in self.shares or public_of(opening.secret) != self.keys[client].seal:",
        "if u == client or u not in self.shares:",
        "tests/strategies/test_secure_protocol.py -k accuses_falsely",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        'self._enough(opened.keys() & self._held.keys(), "opened their shares")',
        "assert opened",
        "tests/strategies/test_secure_protocol.py -k masks_a_vector_before",
    ),
    # -- rows that cannot be read
    Mutation(
        "exchange/joining.py",
        "            row.fill_(torch.nan)\n            self._unread[replica] = error",
        "            self._unread[replica] = error",
        "tests/strategies/test_unreadable_rows.py -k 'spoilt_row_counts or is_sound' -m 'not slow'",
    ),
    Mutation(
        "comm/sockets.py",
        "if message is not None and not message.refused:",
        "if message is not None:",
        "tests/strategies/test_unreadable_rows.py -k is_sound",
    ),
    # -- several hosts and GPUs
    Mutation(
        "comm/connecting.py",
        'for kind in ("pid", "mnt", "user", "time")]',
        'for kind in ("mnt", "user", "time")]',
        "tests/comm/test_hosts.py -k containers",
    ),
    Mutation(
        "comm/store.py",
        "            if time.monotonic() + RETRY > deadline:",
        "            if True:",
        "tests/comm/test_rendezvous.py -k before_worker_0",
    ),
    Mutation(
        "engine/planning/resuming.py",
        "    if manifest.workers not in (None, plan.layout.workers):",
        "    if False:",
        "tests/engine/test_stored.py -k torchrun",
    ),
    Mutation(
        "engine/fabrics/kinds.py",
        "        return len(range(first, min(first + self._local[1], layout.workers)))",
        "        return layout.workers",
        "tests/engine/test_devices.py",
    ),
    # -- users' own models
    Mutation(
        "strategies/pipelining/chunks.py",
        "self.__paceline_blocks__ = [list(chunk) for chunk in chunks]",
        "self.__paceline_blocks__ = self.weights = [list(chunk) for chunk in chunks]",
        "tests/strategies/test_blocks.py -k no_name",
    ),
    Mutation(
        "tasks/base.py",
        "return tensor[index].clone() if isinstance(index, slice) else tensor[index]",
        "return tensor[index]",
        "tests/tasks/test_tasks_losses.py -k 'copy or in_place'",
    ),
    Mutation(
        "tasks/evaluation.py",
        "if unknown is not None or not math.isfinite(loss):",
        "if False:",
        "tests/tasks/test_tasks_losses.py -k 'nan or infinite'",
    ),
    Mutation(
        "engine/training/evaluations.py",
        "if not math.isfinite(result.score):",
        "if False:",
        "tests/engine/test_own_models.py -k nan",
    ),
    Mutation(
        "engine/base/trained.py",
        "                view.copy_(each.data)\n",
        "",
        "tests/wrap/test_steps.py -k other_memory",
    ),
    Mutation(
        "wrap/gradients.py",
        "        self._check_settings(every[:, 2].tolist(), step)\n",
        "",
        "tests/wrap/test_steps.py -k 'apart and other_rate'",
    ),
    Mutation(
        "wrap/gradients.py",
        "        if is_compared(step):\n            self.compare_weights(step - 1)\n",
        "",
        "tests/wrap/test_steps.py -k 'apart and other_weights'",
    ),
    Mutation(
        "strategies/sync/bsp.py",
        "bucket.views[i].detach()",
        "bucket.views[i]",
        "tests/wrap/test_gradients.py -k moved",
    ),
    Mutation(
        "wrap/run.py",
        "        self.gradients.compare_weights(self.steps)  # the script",
        "        # the script",
        "tests/wrap/test_steps.py -k 'apart and at_its_end'",
    ),
    Mutation(
        "engine/base/trained.py",
        "            if each.requires_grad:\n                raise",
        "            if False:\n                raise",
        "tests/engine/test_own_models.py tests/wrap/test_wrap.py -k 'thawed and ends'",
    ),
    Mutation(
        "engine/training/loop.py",
        "job.trained.check(step)",
        "pass",
        "tests/engine/test_own_models.py -k changes_what",
    ),
    Mutation(
        "strategies/sync/bsp.py",
        "unused = {i for i, each in enumerate(self._params) if not each.requires_grad}",
        "unused = set[int]()",
        "tests/engine/test_own_models.py -k thawed_in",
    ),
    Mutation(
        "engine/config/looking.py",
        "if level is Tried.REAL or not isinstance(error, NotTakenError):",
        "if True:",
        "tests/engine/test_own_models.py -k 'has_a_plan and item'",
    ),
    Mutation(
        "engine/config/looking.py",
        "if strategy.privacy is None and not strategy.needs_shapes and strategy.parts == 1:",
        "if True:",
        "tests/engine/test_own_models.py -k computes_shapes",
    ),
    Mutation(
        "advise/plans.py",
        "except Exception as error:",
        "except ValueError as error:",
        "tests/advise/test_advise_modes.py -k fails",
    ),
    # -- the ends of runs
    Mutation(
        "engine/training/evaluations.py",
        "others = [replica for replica in asked if replica == own or self._has_completed(replica)]",
        "others = asked",
        "tests/engine/test_engine_faults.py -k 'fastest_worker and asp' -m fault",
    ),
    Mutation(
        "engine/planning/resuming.py",
        "if epsilon is not None and not asks_the_same:",
        "if False:",
        "tests/engine/test_engine_runs.py -k noise_that_was_chosen -m slow",
    ),
    Mutation(
        "engine/planning/resuming.py",
        "(asks_the_same if plan.steps is None else plan.steps == made)",
        "plan.steps == made",
        "tests/engine/test_engine_runs.py -k clients_own",
    ),
    Mutation(
        "exchange/joining.py",
        "return rows[: len(kept)]",
        "return rows[list(kept)]",
        "tests/strategies/test_joining.py -k memory_in_which",
    ),
    Mutation(
        "exchange/joining.py",
        "_move_to_front(rows, place)",
        "pass",
        "tests/strategies/test_joining.py -k memory_in_which",
    ),
    Mutation(
        "exchange/joining.py",
        "return 0 if self.streaming else replicas",
        "return 0",
        "tests/engine/test_memory_account.py -k 'servers_hold and parameter_server and median' -m slow",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "participation=replace(self.participation, fraction=1.0)",
        "participation=self.participation",
        "tests/strategies/test_many_clients.py -k 'algorithm_1 and some'",
    ),
    Mutation(
        "exchange/participation.py",
        "(after is None or at <= after)",
        "(after is None or at < after)",
        "tests/strategies/test_federated_clients.py -k 'papers and dropout and median'",
    ),
    Mutation(
        "exchange/deliveries.py",
        "place = of.index(client)",
        "place = len(self._delivered)",
        "tests/strategies/test_federated_clients.py -k 'papers and median'",
    ),
    Mutation(
        "engine/features/rates.py",
        "return min(experiment.batch_size * replicas, samples)",
        "return experiment.batch_size * replicas",
        "tests/engine/test_rates.py -k 'no_more_samples or full_batches'",
    ),
    Mutation(
        "engine/training/worker.py",
        "sync.steps_per_epoch, len(parts.load()[0]))",
        "sync.steps_per_epoch, 2**31)",
        "tests/engine/test_rates.py -k full_batches",
    ),
    Mutation(
        "engine/callbacks/by_client.py",
        "if given is not None and self.steps == 0:",
        "if self.only is not None and self.steps == 0:",
        "tests/engine/test_by_client.py -k refused",
    ),
    Mutation(
        "engine/config/moved.py",
        "return next((now + target.removeprefix(then)",
        "return next((now + target",
        "tests/engine/test_moved.py",
    ),
    Mutation(
        "exchange/deliveries.py",
        "if not self._weights.isfinite().all():",
        "if False:",
        "tests/strategies/test_fedavg.py -k delivers_nan",
    ),
    Mutation(
        "exchange/secure/fixed_point.py",
        "if not x.isfinite().all():",
        "if False:",
        "tests/strategies/test_secure_protocol.py -k not_finite",
    ),
    Mutation(
        "exchange/joining.py",
        "if n < replicas and min(lying, n) > most:",
        "if False:",
        "tests/strategies/test_federated_clients.py -k may_hold_more_liars",
    ),
    Mutation(
        "exchange/federated.py",
        "if client.controls or client.counts:",
        "if False:",
        "tests/strategies/test_federated_clients.py -k where_it_is_hidden",
    ),
    Mutation(
        "advise/modes.py",
        'return collective == "auto" or (collective == "shared_memory" and in_memory)',
        "return False",
        "tests/advise/test_advise_modes.py -k listed_once",
    ),
    # -- refusals
    Mutation(
        "engine/config/presets.py",
        "lacking = {key for key in its if key not in own} & _keys_of(group)",
        "lacking = {key for key in its if key not in own}",
        "tests/engine/test_compose.py -k left_to_the_class",
    ),
    Mutation(
        "engine/config/presets.py",
        'left = [f"{group}.{key}" for key in its if key in lacking and f"{group}.{key}" not in given]',
        'left = [f"{group}.{key}" for key in its if key in lacking]',
        "tests/engine/test_compose.py -k taken_out",
    ),
    Mutation(
        "engine/config/presets.py",
        "if isinstance(preset, list) and len(preset) > 1:",
        "if False:",
        "tests/engine/test_compose.py -k describes_no_single_run",
    ),
    Mutation(
        "engine/base/refusals.py",
        "            refused.append(error)",
        "            raise error",
        "tests/strategies/test_routed.py -k told_at_once",
    ),
    Mutation(
        "engine/launch/launching.py",
        "if is_refused and not started:",
        "if False:",
        "tests/engine/test_iterating.py -k only_the_data_show",
    ),
    Mutation(
        "engine/base/failures.py",
        "if text and exit_code_of(error) == ConfigError.exit_code:",
        "if False:",
        "tests/engine/test_iterating.py -k only_the_data_show",
    ),
    Mutation(
        "engine/features/pegasos.py",
        "refuse(_resized(experiment, chosen, of_groups))",
        "pass",
        "tests/strategies/test_pegasos.py -k 'refused_by_name and clip'",
    ),
    Mutation(
        "engine/features/lying.py",
        "    if experts:",
        "    if False:",
        "tests/engine/test_poisoning.py -k no_rule_looks",
    ),
    Mutation(
        "engine/features/adversary.py",
        'check_furthest(GROUP, "eps", made.threat.eps, made.threat.norm.name, spec)',
        "pass",
        "tests/engine/test_adversarial_training.py -k 'cannot_be_is_refused and l2'",
    ),
    Mutation(
        "exchange/joining.py",
        "if self.aggregate.robust and self.aggregate.f is None and not lying and most == 0:",
        "if False:",
        "tests/strategies/test_joining.py -k may_surprise",
    ),
    Mutation(
        "engine/features/private.py",
        "if found.noise == 0:",
        "if False:",
        "tests/strategies/test_dp_sgd.py -k hides_nothing",
    ),
    # -- routed experts
    Mutation(
        "strategies/sync/routed.py",
        "far.masked_fill(~self.living, torch.inf).argmin(1)",
        "far.argmin(1)",
        "tests/strategies/test_routed.py -k in_a_plain_loop",
    ),
    Mutation(
        "strategies/sync/routed.py",
        "torch.cat(answers)[torch.cat(rows).argsort()]",
        "torch.cat(answers)",
        "tests/strategies/test_routed.py -k in_a_plain_loop",
    ),
    Mutation(
        "strategies/sync/routed.py",
        'compute_mode="donot_use_mm_for_euclid_dist"',
        'compute_mode="use_mm_for_euclid_dist"',
        "tests/strategies/test_routed.py -k still_told_apart",
    ),
    Mutation(
        "strategies/sync/routed.py",
        'if state["expert"] == self.comm.rank:',
        "if True:",
        "tests/strategies/test_routed.py -k 'saved_nothing and virtual'",
    ),
    Mutation(
        "engine/features/experts.py",
        "if centres is None or not torch.equal(state[CENTRES], centres):",
        "if centres is None:",
        "tests/strategies/test_routed.py -k experts_of_other_parts",
    ),
    Mutation(
        "engine/features/experts.py",
        'if json.loads(board.read(f"parts/{chief}", chief)) != digest.hexdigest():',
        "if False:",
        "tests/strategies/test_routed.py -k have_made_other_parts",
    ),
    Mutation(
        "engine/features/experts.py",
        "if not partitioner.owns:",
        "if False:",
        "tests/strategies/test_routed.py -k refused_by_name",
    ),
    Mutation(
        "engine/training/outcome.py",
        'if spec.targets != "labels" or spec.target_shape or job.train.targets is None:',
        "if False:",
        "tests/strategies/test_routed.py -k no_labels_to_count",
    ),
    Mutation(
        "engine/features/weights.py",
        "if found != replicas:",
        "if False:",
        "tests/strategies/test_routed.py -k cannot_be_taken",
    ),
    Mutation(
        "tasks/clusters.py",
        "return sum(size > before for size in sizes_of(samples, replicas))",
        "return replicas",
        "tests/tasks/test_clusters.py -k known_beforehand",
    ),
    Mutation(
        "tasks/clusters.py",
        "counts < each + (larger < extra)",
        "counts < each + (extra > 0)",
        "tests/tasks/test_clusters.py -k one_size",
    ),
    Mutation(
        "tasks/clusters.py",
        'furthest_first = members[np.argsort(-far[members, part], kind="stable")]',
        "furthest_first = members",
        "tests/tasks/test_clusters.py -k papers_loop",
    ),
    Mutation(
        "tasks/clusters.py",
        'most[np.argsort(-counts, kind="stable")] = sizes_of(samples, parts)',
        "most[:] = sizes_of(samples, parts)",
        "tests/tasks/test_clusters.py -k papers_loop",
    ),
    # -- what does nothing, or more than one may think, is said
    Mutation(
        "advise/race.py",
        "failed |= {way.name for way in left} - set(measured)",
        "pass",
        "tests/cli/test_cli_advise.py -k runs_all_fail",
    ),
    Mutation(
        "cli/advise_race.py",
        "if len(alone) == 1:",
        "if False:",
        "tests/cli/test_cli_advise.py -k only_way",
    ),
    Mutation(
        "engine/training/meters.py",
        "for start, end, _ in report.measured if end > start]",
        "for start, end, _ in report.measured]",
        "tests/engine/test_meters.py -k take_no_time",
    ),
    Mutation(
        "engine/features/robustness.py",
        "for eps in chosen.curve or ():",
        "for eps in ():",
        "tests/engine/test_robustness.py -k means_nothing",
    ),
    Mutation(
        "strategies/adapt/pruned.py",
        "if useful < self.rounds:",
        "if False:",
        "tests/strategies/test_pruned.py -k cannot_be_pruned",
    ),
    Mutation(
        "exchange/secure/deliveries.py",
        "if left < needed:",
        "if False:",
        "tests/strategies/test_secure.py -k too_few_clients_left -m fault",
    ),
    Mutation(
        "tasks/clusters.py",
        'if passes is not None and method != "balanced":',
        "if False:",
        "tests/tasks/test_clusters.py -k passes_are_of",
    ),
    Mutation(
        "engine/features/untaken.py",
        'check_pair(named["strategy"], named["sync"], strategy, sync)',
        "pass",
        "tests/engine/test_given.py -k in_that_place",
    ),
    Mutation(
        "engine/features/lying.py",
        'if "attack" not in given.taken(type(parts.sync)):',
        "if False:",
        "tests/engine/test_poisoning.py -k says_that_liars",
    ),
    Mutation(
        "engine/features/robustness.py",
        "if eps > furthest:",
        "if False:",
        "tests/engine/test_robustness.py -k means_nothing",
    ),
    Mutation(
        "exchange/joining.py",
        "if (n < replicas or leave) and self.aggregate.first is not None:",
        "if False:",
        "tests/strategies/test_federated_clients.py -k the_bound_of_a_rule",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "self.joining.check(world.replicas, *self._rows_of_a_round(world))",
        "self.joining.check(world.replicas)",
        "tests/strategies/test_federated_clients.py -k the_bound_of_a_rule",
    ),
    Mutation(
        "exchange/client/fedprox.py",
        'most = 2 * (1 + rho) / (1 + 2 * rho if group.get("nesterov") else 1)',
        "most = 2 * (1 + rho)",
        "tests/strategies/test_federated_clients.py -k the_pull",
    ),
    Mutation(
        "strategies/core/privacy.py",
        "if noise is not None and epsilon is not None:",
        "if False:",
        "tests/strategies/test_dp_sgd.py -k beside_an_epsilon",
    ),
    Mutation(
        "exchange/privacy/dp_fedavg.py",
        "return self.clip - rounding",
        "return self.clip",
        "tests/strategies/test_secure.py -k no_longer_than_c",
    ),
    Mutation(
        "exchange/secure/deliveries.py",
        "way, samples = self._privacy.clipped(way, self._comm.rank, number, rounding), 1",
        "way = self._privacy.clipped(way, self._comm.rank, number, rounding)",
        "tests/strategies/test_secure.py -k hidden_as_by_a_server",
    ),
    Mutation(
        "exchange/secure/fixed_point.py",
        "return int(told.sum()), int((cut & told).sum())",
        "return int(told.sum()), int((large > self.largest).sum())",
        "tests/strategies/test_secure_protocol.py -k rounded_to_nothing",
    ),
    Mutation(
        "exchange/server_shards.py",
        'state = held["optimizer"] if len(shards) == 1 else max(states)',
        'state = held["optimizer"]',
        "tests/engine/test_memory_account.py -k servers_hold",
    ),
    # -- attacks on inputs
    Mutation(
        "tasks/adversarial/threat.py",
        "return (x + d).clamp(self.low, self.high)",
        "return x + d",
        "tests/tasks/test_adversarial.py -k within_the_range",
    ),
    Mutation(
        "tasks/adversarial/threat.py",
        "d = self.norm.project(changed - x, self.radius)",
        "d = changed - x",
        "tests/tasks/test_adversarial.py -k 'within_the_range or loop'",
    ),
    Mutation(
        "tasks/adversarial/threat.py",
        "return self.eps * (self.high - self.low)",
        "return self.eps",
        "tests/tasks/test_adversarial.py -k within_the_range",
    ),
    Mutation(
        "tasks/adversarial/attacks.py",
        "torch.autograd.grad(-total if towards else total, [x])",
        "torch.autograd.grad(total, [x])",
        "tests/tasks/test_adversarial.py -k leads_to_its_target",
    ),
    Mutation(
        "tasks/adversarial/attacks.py",
        "    model.eval()\n",
        "",
        "tests/tasks/test_adversarial.py -k in_evaluation_and_leaves",
    ),
    Mutation(
        "tasks/adversarial/robust.py",
        "worst = torch.minimum(worst, _of_samples((found == y) * weights))",
        "worst = _of_samples((found == y) * weights)",
        "tests/tasks/test_adversarial.py -k 'no_restart_misleads or by_their_pixels'",
    ),
    Mutation(
        "engine/features/adversary.py",
        "(self.seed, batch.step)",
        "(self.seed,)",
        "tests/engine/test_adversarial_training.py -k 'plain_loop_in_torch_bit_for_bit and pgd'",
    ),
    Mutation(
        "engine/fabrics/compute.py",
        "self._comm.elapse(passes * (cost.forward + cost.to_input) * self._factor)",
        "pass",
        "tests/engine/test_adversarial_training.py -k modelled_clock -m slow",
    ),
    # -- whose data are hidden, and sums that are seen alone
    Mutation(
        "exchange/privacy/clipping.py",
        "clip / (1 + ROUNDING) / norms",
        "clip / norms",
        "tests/strategies/test_dp_sgd.py -k last_bit",
    ),
    Mutation(
        "exchange/privacy/per_sample.py",
        "(batch.counted / batch.total) ** 0.5",
        "1.0",
        "tests/strategies/test_dp_sgd.py -k sigma_clip",
    ),
    Mutation(
        "exchange/privacy/per_sample.py",
        "total /= batch.counted",
        "total /= max(batch.size, 1)",
        "tests/strategies/test_poisson_batches.py -k 'plain_loop_with_noise'",
    ),
    Mutation(
        "strategies/core/batch.py",
        "return self.expected / self.total",
        "return self.size / self.total",
        "tests/strategies/test_poisson_batches.py -k 'noise_of_both and sync2'",
    ),
    Mutation(
        "strategies/core/batch.py",
        "return self.expected * self.size / self.of if self.of else self.expected",
        "return self.expected",
        "tests/strategies/test_poisson_batches.py -k micro_batches",
    ),
    Mutation(
        "strategies/whole.py",
        "if batch.size == 0 and batch.expected is None:",
        "if batch.size == 0:",
        "tests/strategies/test_poisson_batches.py -k whatever_was_drawn",
    ),
    Mutation(
        "strategies/core/accumulation.py",
        "micro.size / batch.size if batch.size else 1.0",
        "micro.size / max(batch.size, 1)",
        "tests/strategies/test_poisson_batches.py -k whatever_was_drawn",
    ),
    Mutation(
        "tasks/poisson.py",
        "size = rng.binomial(samples, expected / samples)",
        "size = expected",
        "tests/tasks/test_poisson.py -k 'binomial or each_other'",
    ),
    Mutation(
        "tasks/poisson.py",
        "spawn_key=(_BY_CHANCE, step)",
        "spawn_key=(_BY_CHANCE, step // 2)",
        "tests/tasks/test_poisson.py -k 'steps_do_not_depend'",
    ),
    Mutation(
        "engine/features/private.py",
        "None if partitioner.draws else -(-made // steps_per_epoch)",
        "-(-made // steps_per_epoch)",
        "tests/strategies/test_poisson_batches.py -k 'spends_and_holds'",
    ),
    Mutation(
        "engine/features/private.py",
        "    if spec.weights:",
        "    if False:",
        "tests/strategies/test_dp_sgd.py -k 'count_by_weights'",
    ),
    Mutation(
        "exchange/privacy/accountant.py",
        "_epsilon(1.0, privacy.noise, budget.passes",
        "_epsilon(budget.rate, privacy.noise, budget.passes",
        "tests/strategies/test_dp_sgd.py -k once_an_epoch",
    ),
    Mutation(
        "exchange/privacy/dp_fedavg.py",
        "div_(sampled)",
        "div_(len(ways))",
        "tests/strategies/test_dp_fedavg.py -k over_those_sampled",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "if both := {*seeds} & {*keys}:",
        "if both := {*seeds} & {*seeds} - {*seeds}:",
        "tests/strategies/test_secure_protocol.py -k both_shares",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "total - between if gone > u else total + between",
        "total + between if gone > u else total - between",
        "tests/strategies/test_secure_protocol.py -k sent_a_vector_bit_for_bit",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "_hash(share) != self.shares[v].hashes[client][place]",
        "not share",
        "tests/strategies/test_secure_protocol.py -k gives_wrongly",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        'return b"check" + _said(number, *sorted(masked))',
        'return b"check" + _said(number)',
        "tests/strategies/test_secure_protocol.py -k different_lists",
    ),
    # -- averages of weights, and the noise of gradients
    Mutation(
        "strategies/averages/ema.py", "return 1 - decay", "return decay", "tests/engine/test_averages.py -k bit_for_bit"
    ),
    Mutation(
        "strategies/averages/swa.py", "return 1 / n", "return 0.5", "tests/engine/test_averages.py -k bit_for_bit"
    ),
    Mutation(
        "engine/features/averaging.py",
        'own if self._sync.averages == "own" else self._sync.consensus()',
        "own",
        "tests/engine/test_averages.py -k first_replica_averages",
    ),
    Mutation(
        "engine/features/averaging.py",
        'if self._sync.averages != "own" or self._sync.comm.size == 1:',
        "if True:",
        "tests/engine/test_averages.py -k mean_of_their_averages",
    ),
    Mutation(
        "engine/features/averaging.py",
        "if not self._sync.synchronous and step > 0:",
        "if False:",
        "tests/engine/test_averages.py -k first_replica_averages",
    ),
    Mutation(
        "engine/features/averaging.py",
        "if self.count == 0:",
        "if False:",
        "tests/engine/test_averages.py -k before_anything_counts",
    ),
    Mutation(
        "engine/callbacks/noise_scale.py",
        "square = (batch * big - b * small) / (batch - b)",
        "square = big",
        "tests/engine/test_noise_scale.py -k without_bias",
    ),
    Mutation(
        "engine/features/gradient_norms.py",
        "with comm.ledger.aside(), ",
        "with ",
        "tests/engine/test_noise_scale.py -k sends_nothing_more",
    ),
    Mutation(
        "strategies/core/sync.py",
        "if self.before_step is not None:",
        "if self.before_step is not None and self.clip is None:",
        "tests/engine/test_noise_scale.py -k before_clipping",
    ),
    # -- data that are read when they are wanted
    Mutation(
        "tasks/items.py",
        "draw((drawn * 1_000_003 + number) % 2**63)",
        "draw(number)",
        "tests/engine/test_feed.py -k same_batches",
    ),
    Mutation(
        "engine/training/feed.py",
        "sampler=range(first, self._steps)",
        "sampler=range(0, self._steps)",
        "tests/engine/test_feed.py -k same_batches",
    ),
    Mutation(
        "tasks/columns.py",
        "else self._numbers[index]",
        "else numbered(index, self._size)",
        "tests/tasks/test_arrays.py -k written",
    ),
    # -- a roofline
    Mutation(
        "tracking/figures/against.py",
        'return "share" if key in MEANINGS and MEANINGS[key][0] == "share" else ""',
        'return "share" if key == "accuracy" else ""',
        "tests/tracking/test_figures.py -k every_share",
    ),
    Mutation(
        "tracking/report/document.py",
        "order = [*FIRST_COLUMNS, *(name for name in differ if name not in FIRST_COLUMNS)]",
        "order = [*FIRST_COLUMNS]",
        "tests/tracking/test_report_parts.py -k compared_stands",
    ),
    Mutation(
        "tracking/drawn/roofline.py",
        "return min(self.peak, intensity * self.bandwidth)",
        "return max(self.peak, intensity * self.bandwidth)",
        "tests/tracking/test_report_svg.py -k ridge",
    ),
    # -- what a run spent, and what would help it
    Mutation(
        "engine/api/changes.py",
        "speedup = 1 / (1 - min(share, 0.99))",
        "speedup = 1 + share",
        "tests/cli/test_cli_explain_run.py -k at_most_what_it_is_against",
    ),
    Mutation(
        "engine/api/changes.py",
        "shares.waiting if shares.straggler is None else 0.0",
        "shares.waiting",
        "tests/cli/test_cli_explain_run.py -k straggler -m slow",
    ),
    # -- pictures
    Mutation(
        "tracking/drawn/steps.py",
        "waits > WAITED * steps",
        "True",
        "tests/tracking/test_report_svg.py -k straggler",
    ),
    Mutation(
        "tracking/drawn/topologies.py",
        "return max(measured,",
        "return min(measured,",
        "tests/tracking/test_report_svg.py -k ringed",
    ),
    Mutation(
        "comm/timeline.py",
        "free = max(free, op.end)",
        "pass",
        "tests/comm/test_timeline.py -k hides_once",
    ),
    # -- several inputs, and weights
    Mutation(
        "engine/training/loop.py",
        "if job.sync.synchronous:",
        "if False:",
        "tests/engine/test_several_inputs.py -k weighted",
    ),
    Mutation(
        "tasks/losses/base.py",
        '(losses * targets.tensors["weights"].to(losses.dtype)).mean()',
        "losses.mean()",
        "tests/engine/test_several_inputs.py -k weighted",
    ),
    Mutation(
        "batches/fields.py",
        "    return module(*positional, **named)",
        "    return module(*positional, *named.values())",
        "tests/engine/test_several_inputs.py -k positional",
    ),
    # -- a report that is served
    Mutation(
        "tracking/report/serve.py",
        'if self.headers.get_all("Host", []) not in',
        'if self.headers.get_all("Host", []) in',
        "tests/tracking/test_report_serve.py",
    ),
    Mutation(
        "tracking/report/serve.py",
        "if secrets.compare_digest(path, asked.encode()):",
        "if path.endswith(asked.encode()[-6:]):",
        "tests/tracking/test_report_serve.py",
    ),
    Mutation(
        "tracking/report/serve.py",
        "if self._kept[0] != now:",
        "if not self._kept[1]:",
        "tests/tracking/test_report_serve.py",
    ),
    # -- what stops a sweep or a race
    Mutation(
        "sweep/lacking.py",
        "        except LACKS:\n            raise",
        "        except LACKS:\n            continue",
        "tests/cli/test_cli_sweep.py -k missing",
    ),
    Mutation(
        "cli/sweep.py", "if resume and has_more(opened.study):", "if False:", "tests/cli/test_cli_sweep.py -k missing"
    ),
    Mutation(
        "cli/advise_race.py",
        "    except KeyboardInterrupt:\n        pass\n",
        "    except ZeroDivisionError:\n        pass\n",
        "tests/cli/test_cli_advise.py -k says_how_to_go_on",
    ),
    Mutation(
        "cli/watch_sweep.py",
        "any(run.state in OVER for",
        "any(run.state == 'died' for",
        "tests/cli/test_cli_watch.py -k ends_as_its_runs",
    ),
    # -- how fast it goes
    Mutation(
        "tracking/progress.py",
        "sum(samples for samples, _ in self._steps) / seconds",
        "self._steps[-1][0] / self._steps[-1][1]",
        "tests/tracking/test_progress.py -k the_speed_is",
    ),
    # -- configurations side by side
    Mutation(
        "tracking/sources.py",
        "if is_configuration(name, root):",
        "if False:",
        "tests/cli/test_cli_diff.py -k configures_nothing",
    ),
    Mutation(
        "tracking/sources.py",
        "summary = summaries.configured(config, swept.parameters if swept else {}) | summary",
        "pass",
        "tests/tracking/test_sources.py -k keeps_its_choices",
    ),
    Mutation(
        "engine/api/session.py",
        'status = "interrupted"',
        'status = "failed"',
        "tests/engine/test_signals.py -k python_drops",
    ),
    Mutation(
        "tracking/pictures.py",
        "    if not figures:\n        return []\n",
        "",
        "tests/cli/test_cli_compare.py -k pictures_of_runs_that_have_not",
    ),
    Mutation(
        "engine/base/failures.py",
        "if text.startswith(ONE_SAMPLE)",
        "if False",
        "tests/engine/test_failures.py -k one_sample",
    ),
    Mutation(
        "tasks/data/files.py",
        'if not file.name.startswith(".")',
        "if True",
        "tests/tasks/test_arrays.py -k hidden_files",
    ),
    Mutation(
        "tasks/data/svmlight.py",
        "_check_fits(path, unpacked)\n                based",
        "based",
        "tests/tasks/test_sparse_data.py -k fit_into_memory",
    ),
    # -- what wrap refuses
    Mutation(
        "wrap/refusals.py",
        "if error is not self.refusal:",
        "if self.refusal is None:",
        "tests/wrap/test_wrap.py -k nobody_catches",
    ),
    Mutation(
        "wrap/stopping.py",
        'return hasattr(sys, "ps1") or bool(sys.flags.interactive)',
        "return bool(sys.flags.interactive)",
        "tests/wrap/test_wrap.py -k interactive",
    ),
    Mutation("wrap/run.py", "            share_state(model, group)\n", "", "tests/wrap/test_alike.py -k begin_with"),
    Mutation(
        "wrap/stopping.py",
        "if os.getpid() != self._process:  # a forked child, such as",
        "if False:  # a forked child, such as",
        "tests/wrap/test_ends.py -k forked_child_leaves_ctrl_c",
    ),
    # -- Ctrl-C in a script
    Mutation(
        "wrap/gradients.py",
        "changed = self._kept != self._seen()",
        "changed = False",
        "tests/wrap/test_gradients.py -k refuses_changed",
    ),
    Mutation(
        "wrap/run.py",
        "return os.getpid() == self._process",
        "return True",
        "tests/wrap/test_ends.py -k forked",
    ),
    Mutation(
        "strategies/sync/bsp.py",
        "        self._finish()\n        return Finished.MEAN",
        "        return Finished.MEAN",
        "tests/wrap/test_gradients.py -k 'whole_batch or every_mode'",
    ),
    Mutation(
        "wrap/gradients.py",
        "for each, _ in self._held:\n                each.grad = hidden(each, self._refuse)\n",
        "for each, _ in self._held:\n                pass\n",
        "tests/wrap/test_steps.py -k clipping",
    ),
    Mutation(
        "wrap/gradients.py",
        "                if differs:",
        "                if False:",
        "tests/wrap/test_steps.py -k noise_is",
    ),
    Mutation(
        "wrap/gradients.py",
        "        self._check_skips(every[:, 0].tolist(), step)\n",
        "",
        "tests/wrap/test_steps.py -k alone_skips_is",
    ),
    Mutation(
        "wrap/gradients.py",
        "if self.finished not in (None, Finished.OWN) and not self._passing:",
        "if False:",
        "tests/wrap/test_steps.py -k plain_backward",
    ),
    Mutation(
        "wrap/gradients.py",
        "if isinstance(gradient, Hidden) or bool(gradient.any()):",
        "if False:",
        "tests/wrap/test_steps.py -k add_up",
    ),
    Mutation("wrap/run.py", "            self._end(reason)\n", "", "tests/wrap/test_wrap.py -k asked_to_stop"),
    Mutation(
        "wrap/stopping.py",
        "        self.let_go()\n        if os.getpid()",
        "        if os.getpid()",
        "tests/wrap/test_wrap.py -k second_raises",
    ),
    # -- keys that are no choices
    Mutation(
        "cli/explain.py",
        "if instead := about(what, config_dir):",
        "if False:",
        "tests/cli/test_cli_explain.py -k refused",
    ),
    # -- other trackers
    Mutation(
        "tracking/sinks.py",
        "if why := failure(tracker):",
        "if (why := failure(tracker)) and False:",
        "tests/tracking/test_trackers.py -k cannot_be_imported -m slow",
    ),
    Mutation("tracking/helper.py", '"config": redact(config),', '"config": config,', "tests/tracking/test_trackers.py"),
    Mutation(
        "tracking/tensorboard.py",
        "purge = again + 1 if isinstance(again, int) else None",
        "purge = None",
        "tests/tracking/test_trackers.py",
    ),
    # -- while a run goes on
    Mutation(
        "engine/training/meters.py",
        "if samples == 0 and self._exchanged() == exchanged:",
        "if False:",
        "tests/engine/test_gauges.py -k without_samples",
    ),
    Mutation(
        "engine/training/meters.py",
        "if samples == 0 and self._exchanged() == exchanged:",
        "if samples == 0:",
        "tests/engine/test_gauges.py -k without_samples",
    ),
    Mutation(
        "engine/training/meters.py",
        "self.blocked += self._comm.timeline.blocked - blocked",
        "self.blocked += self._comm.timeline.blocked",
        "tests/engine/test_gauges.py",
    ),
    Mutation(
        "engine/training/meters.py",
        "if any(report.jumped for report in replicas):",
        "if False:",
        "tests/engine/test_meters.py -k take_turns",
    ),
    Mutation(
        "engine/training/loop.py",
        "job.meter.jump(step - done)",
        "pass",
        "tests/engine/test_virtual_runs.py -k quarter_of_the_clients",
    ),
    Mutation(
        "engine/training/gauges.py",
        'if beat != self._beats.get(rank, (b"", 0.0))[0]:',
        "if True:",
        "tests/engine/test_gauges.py",
    ),
    Mutation("tracking/live.py", "each.now.part == own.now.part", "True", "tests/tracking/test_live.py"),
    Mutation(
        "tracking/state.py",
        'in ("end", "resume", "start")',
        'in ("end",)',
        "tests/tracking/test_live.py",
    ),
    Mutation(
        "tracking/view.py",
        "        return False\n",
        "        return super().show_cursor(show)\n",
        "tests/tracking/test_progress.py",
    ),
    # -- configurations to share
    Mutation(
        "engine/config/compose.py",
        'return path == group or path.startswith((f"{section}.", f"{group}/"))',
        "return path == group",
        "tests/engine/test_config_file.py",
    ),
    Mutation(
        "engine/config/config_file.py",
        "if key in keys_in(self.told) and key not in keys_in(self.given):",
        "if key in keys_in(self.told):",
        "tests/cli/test_cli_diff.py tests/engine/test_config_file.py",
    ),
    Mutation(
        "engine/config/overrides.py",
        "typed += as_described(group, **mine[group])",
        "typed.append(f'{group}={choices[group]}')",
        "tests/engine/test_overrides.py tests/engine/test_config_file.py",
    ),
    Mutation(
        "engine/config/described.py",
        "if knob not in apart",
        "if True",
        "tests/engine/test_config_file.py",
    ),
    Mutation("engine/config/repeat.py", "if word.isprintable():", "if True:", "tests/engine/test_config_file.py"),
    Mutation(
        "tracking/difference.py",
        "return self.second - self.first",
        "return self.first - self.second",
        "tests/tracking/test_difference.py",
    ),
    # -- what a choice does
    Mutation(
        "tracking/lanes.py",
        'if begin <= each["left"] < over]',
        'if begin <= each["left"] and each["came"] < over]',
        "tests/cli/test_cli_explain.py -k as_many_messages_of_each",
    ),
    Mutation(
        "engine/config/explained.py",
        'kind = named or ("rule" if found["what"] else "what")',
        'kind = named or "what"',
        "tests/engine/test_explained.py -k taken_apart",
    ),
    # -- verify
    Mutation(
        "verify/reference.py",
        "MARGIN * max(errors[name], usual * scales[name])",
        "MARGIN * errors[name]",
        "tests/verify/test_verify_tolerance.py",
    ),
    Mutation(
        "verify/judge.py",
        "if not each.share <= 1]",
        "if each.what != 'gradient' and not each.share <= 1]",
        "tests/verify/test_verify_runs.py -k wrong_sum",
    ),
    Mutation(
        "verify/judge.py",
        "    if seen.disagree is not None:",
        "    if False:",
        "tests/verify/test_verify_runs.py -k should_agree -m slow",
    ),
    Mutation(
        "engine/training/witness.py",
        "sum(n * loss for n, loss in told) / samples",
        "told[0][1]",
        "tests/verify/test_verify_runs.py -k passes_with_all",
    ),
    Mutation(
        "verify/check.py",
        "for j in replicas]) for step",
        "for j in [0]]) for step",
        "tests/verify/test_verify_runs.py -k not_weighed -m slow",
    ),
    Mutation(
        "verify/check.py",
        "check_found(only, todo)",
        "check_found([], todo)",
        "tests/verify/test_verify_runs.py -k refused_at_once",
    ),
    Mutation(
        "verify/ways.py",
        'if group in NO_WAYS and group != "clip":',
        'if group in NO_WAYS[:1] and group != "clip":',
        "tests/verify/test_verify_runs.py -k refused_at_once",
    ),
    Mutation(
        "wrap/shares.py",
        "start = rank * each + min(rank, extra)",
        "start = rank * each",
        "tests/wrap/test_wrap.py -k 'shares_follow or share_out'",
    ),
    Mutation(
        "wrap/run.py",
        "mine = self._count(batch) if own[0] else 0",
        "mine = own[0]",
        "tests/wrap/test_wrap.py -k unmasked",
    ),
    Mutation(
        "wrap/run.py",
        "                self._compare(drawn)\n            yield",
        "                pass\n            yield",
        "tests/wrap/test_alike.py tests/wrap/test_wrap.py -k different_orders",
    ),
    Mutation(
        "cli/init.py",
        "if path.exists() or path.is_symlink()]",
        "if False]",
        "tests/cli/test_cli_init.py -k nothing_is_written",
    ),
    Mutation(
        "cli/verify.py",
        '        return FAILED\n    if "not run"',
        '        return 0\n    if "not run"',
        "tests/cli/test_cli_verify.py -k wrong_sum",
    ),
    # -- what training takes
    Mutation(
        "cost/training_time.py",
        "(FORWARD if recompute else 0)",
        "(BACKWARD if recompute else 0)",
        "tests/cost/test_training_time.py",
    ),
    Mutation(
        "cost/training_time.py",
        "/ (devices * flops)",
        "/ flops",
        "tests/cost/test_training_time.py",
    ),
    Mutation(
        "cost/training_time.py",
        "ceil(devices / a_machine)",
        "devices // a_machine",
        "tests/cost/test_training_time.py",
    ),
    Mutation(
        "cost/purchase.py",
        "return price * depreciation + running",
        "return price * depreciation",
        "tests/cost/test_purchase.py",
    ),
    Mutation(
        "cost/purchase.py",
        "return price_per_hour * HOURS * occupancy",
        "return price_per_hour * HOURS",
        "tests/cost/test_purchase.py",
    ),
    Mutation(
        "cost/purchase.py",
        "return owning / renting * occupancy",
        "return owning / renting",
        "tests/cost/test_purchase.py",
    ),
    Mutation(
        "cost/interruptions.py",
        "(1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint",
        "(1 + sqrt(ratio) / 3 + ratio / 9)",
        "tests/cost/test_interruptions.py",
    ),
    Mutation(
        "cost/interruptions.py",
        "exp(restart / between) * expm1",
        "(1 + restart / between) * expm1",
        "tests/cost/test_interruptions.py",
    ),
    Mutation(
        "cost/interruptions.py",
        "if checkpoint >= 2 * between:",
        "if False:",
        "tests/cost/test_interruptions.py",
    ),
    Mutation(
        "cost/energy.py",
        "* utilisation * pue / 1000",
        "* pue / 1000",
        "tests/cost/test_energy.py",
    ),
    Mutation(
        "cost/rules.py",
        "if not math.isfinite(value) or",
        "if",
        "tests/cost/test_training_time.py",
    ),
    Mutation(
        "engine/config/parameters.py",
        'model, _ = on_meta(lambda: build("model", experiment.model, nn.Module, allowed, {"spec": data.spec}))',
        'model = build("model", experiment.model, nn.Module, allowed, {"spec": data.spec})',
        "tests/cli/test_cli_cost.py -k allocated",
    ),
    Mutation(
        "cli/cost_choices.py",
        '_at(choice.knobs(), key.split(".")) == value',
        "True",
        "tests/cli/test_cli_cost.py -k overrides_is_given",
    ),
    # -- how workers reach each other
    Mutation(
        "comm/ledger.py",
        "return Fraction(2 * (size - 1) * payload, size)",
        "return Fraction(2 * payload, 1)",
        "tests/comm/test_ledger.py",
    ),
    Mutation(
        "comm/ledger.py",
        "if distance < step and distance + step < size:",
        "if distance < step:",
        "tests/comm/test_ledger.py",
    ),
    Mutation(
        "comm/ledger.py",
        "before, self._aside = self._aside, aside",
        "before = self._aside",
        "tests/comm/test_ledger.py",
    ),
    Mutation(
        "comm/handshake.py",
        'if not hmac.compare_digest(proof, self._own.proof("caller", rank, stranger.nonce, nonce)):',
        "if not proof:",
        "tests/comm/test_handshake.py",
    ),
    Mutation(
        "comm/handshake.py",
        'if not hmac.compare_digest(_read(sock, PROOF, deadline), to.proof("callee", rank, callees, callers)):',
        "if not _read(sock, PROOF, deadline):",
        "tests/comm/test_handshake.py",
    ),
    Mutation(
        "comm/mutex.py",
        "if status == errno.EOWNERDEAD:",
        "if status == -1:",
        "tests/comm/test_process_mutex.py",
    ),
    # -- pipelines
    Mutation(
        "strategies/pipelining/split_backward.py",
        "if len(ends) != len(set(ends)):",
        "if False:",
        "tests/strategies/test_pipeline.py -k 'every_schedule_is and virtual and zb_h1'",
    ),
    Mutation(
        "strategies/pipelining/check.py",
        "complete[receiver].append(both[1])",
        "complete[receiver].insert(0, both[1])",
        "tests/strategies/test_schedules.py -k messages",
    ),
    Mutation(
        "strategies/pipelining/check.py",
        "if missing not in ever:",
        "if False:",
        "tests/strategies/test_schedules.py -k never_sent",
    ),
    Mutation(
        "strategies/pipelining/schedules.py",
        'if action.kind == "I" and action.micro_batch >= stage:',
        'if action.kind == "I":',
        "tests/strategies/test_schedules.py -k zb_h1",
    ),
    Mutation(
        "strategies/pipelining/chunks.py",
        "input = input.clone()  # its gradient is wanted, and recomputing begins with what it was",
        "pass",
        "tests/strategies/test_pipeline.py -k in_place",
    ),
    Mutation(
        "strategies/tensor_parallel/find.py",
        "                    if is_module:",
        "                    if True:",
        "tests/strategies/test_hybrid.py -k traced",
    ),
    Mutation(
        "strategies/hybrid_stages.py",
        "found.append(kinds_of(stage, degree, vocabulary=own, whole=shared))",
        "found.append(kinds_of(stage, degree, vocabulary=own))",
        "tests/strategies/test_hybrid_tokens.py -k whole_on_both",
    ),
    Mutation(
        "strategies/tensor_parallel/sequence.py",
        "name not in tied and ",
        "",
        "tests/strategies/test_tensor_sequence.py -k other_degrees -m slow",
    ),
    Mutation(
        "strategies/tensor_parallel/draws.py",
        'may have ended in between."""\n        self._common = self._fresh = None',
        'may have ended in between."""\n        self.leave(torch.device("cpu"))',
        "tests/strategies/test_hybrid_tokens.py -k drop_what_they_dropped -m slow",
    ),
    Mutation(
        "sweep/quiet.py",
        "if _within == 0:\n                _silence.__exit__",
        "if True:\n                _silence.__exit__",
        "tests/sweep/test_sweep_quiet.py",
    ),
    Mutation(
        "strategies/pipelining/updates.py",
        "if oldest <= self.newest:",
        "if oldest < self.newest:",
        "tests/strategies/test_pipedream.py -m slow -k fewer",
    ),
    Mutation(
        "strategies/pipelining/ties.py",
        "group.all_reduce(weight.grad).wait()",
        "pass",
        "tests/strategies/test_ties.py -m slow -k replicas",
    ),
    Mutation(
        "strategies/external/deepspeed_stages.py",
        "return loss if self._weight == 1 else loss * self._weight",
        "return loss",
        "tests/strategies/test_pipelines_of_deepspeed.py -m slow -k uneven_and_empty",
    ),
    Mutation(
        "strategies/external/deepspeed_stages.py",
        "for holder in holders:",
        "for holder in ():",
        "tests/strategies/test_pipelines_of_deepspeed.py -m slow -k two_of_three",
    ),
    Mutation(
        "strategies/external/deepspeed_stages.py",
        "between_steps + gradients)",
        "gradients)",
        "tests/strategies/test_pipelines_of_deepspeed.py -k joined",
    ),
    Mutation(
        "compat/deepspeed_pipeline.py",
        "engine.first_output_send, engine.pipe_recv_buf = False, entering",
        "pass",
        "tests/compat/test_deepspeed_pipeline.py -m slow",
    ),
    Mutation(
        "strategies/pipelining/simulate.py",
        "most = max(most, held(now))",
        "most = max(most, len(row))",
        "tests/engine/test_pipeline_runs.py -k in_flight",
    ),
    Mutation(
        "strategies/pipelining/simulate.py",
        "held(now) + again((stage, j), now)",
        "held(now)",
        "tests/engine/test_pipeline_activations.py",
    ),
    Mutation(
        "strategies/pipeline.py",
        "self._restricted[micro_batches] = joined(row, own)",
        "self._restricted[micro_batches] = row",
        "tests/engine/test_pipeline_activations.py -k zb_h1",
    ),
    Mutation(
        "strategies/pipelining/cut.py",
        "kept * in_flight[stage]",
        "kept",
        "tests/strategies/test_cut.py -k largest_stage",
    ),
    Mutation(
        "strategies/pipelining/cut.py",
        "requires_grad_(x.requires_grad)",
        "requires_grad_(i > 0 and x.is_floating_point())",
        "tests/strategies/test_cut.py -m slow -k three_stages",
    ),
    Mutation(
        "strategies/core/balance.py",
        "return before + price(i) if weight(part, i, j) <= heaviest else inf",
        "return before + price(i)",
        "tests/strategies/test_cut.py -k cheapest",
    ),
    # -- slabs of images
    Mutation(
        "strategies/domains/group.py",
        "own(self._gradient, self._halo, rows).add_(received)",
        "own(self._gradient, self._halo, rows)",
        "tests/strategies/test_domain.py -k 'each_kind and virtual'",
    ),
    Mutation(
        "strategies/domains/rows.py",
        "return first * self.stride - self.padding, last + 1",
        "return first * self.stride - self.padding, last",
        "tests/strategies/test_domain.py -k half_of_k",
    ),
    Mutation(
        "strategies/domains/look.py",
        "elif func not in ELEMENTWISE:",
        "elif func is None:",
        "tests/strategies/test_domain.py -k refused_by_its_name",
    ),
    Mutation(
        "strategies/domains/norms.py",
        "squares = ((all_vars + (all_means - total).square()) * shares).sum(0)",
        "squares = (all_vars * shares).sum(0)",
        "tests/strategies/test_domain.py -k 'each_kind and virtual'",
    ),
    Mutation(
        "strategies/domains/replicas.py",
        "shares = counts / counts.sum()  # n_j / n",
        "shares = torch.ones_like(counts) / len(counts)",
        "tests/strategies/test_joined_batch_norm.py -k counts_by_its_samples",
    ),
    Mutation(
        "strategies/domains/replicas.py",
        "weighted = gradients * (samples / total) if self.counts",
        "weighted = gradients / self.group.degree if self.counts",
        "tests/strategies/test_joined_batch_norm.py -k counts_by_its_samples",
    ),
    Mutation(
        "strategies/domains/replicas.py",
        "            row.zero_()",
        "            pass",
        "tests/strategies/test_joined_batch_norm.py -k counts_by_its_samples",
    ),
    Mutation(
        "comm/ledger.py",
        "                self._whole.count(primitive, payload)",
        "                pass",
        "tests/comm/test_ledger.py",
    ),
    Mutation(
        "engine/config/experiment.py",
        'return hardware | {"workers": hosts * per_host}',
        'return hardware | {"workers": per_host}',
        "tests/engine/test_experiment.py -k hosts",
    ),
    Mutation(
        "engine/config/experiment.py",
        "if ceil(workers / per_host) != hosts:",
        "if workers // per_host > hosts:",
        "tests/engine/test_experiment.py -k hosts",
    ),
    Mutation(
        "engine/base/memory.py",
        "self.tensor = tensor.detach()",
        "self.tensor = tensor",
        "tests/engine/test_memory_account.py -k let_go_of",
    ),
    # -- which way is best
    Mutation(
        "advise/accelerators.py",
        "device * (1 - BOUND) > limits.device",
        "device > 0.5 * limits.device",
        "tests/advise/test_advise_layouts.py -k does_not_fit",
    ),
    Mutation(
        "advise/memory.py",
        "return min(p - i, m), 1",
        "return m, 1",
        "tests/advise/test_advise_layouts.py -m slow",
    ),
    Mutation(
        "advise/ranking.py",
        "if not any(all(a <= b",
        "if not any(any(a <= b",
        "tests/advise/test_advise_layouts.py -k front",
    ),
    Mutation(
        "advise/limits.py",
        "/ 3600 * hosts * machine.price_per_hour",
        "/ 3600 * machine.price_per_hour",
        "tests/advise/test_advise_layouts.py -k cost_less -m slow",
    ),
    Mutation(
        "advise/race.py",
        "left = [way for way in left if way.name in kept]",
        "left = list(left)",
        "tests/advise/test_advise_race.py",
    ),
    Mutation(
        "sweep/define.py",
        "        if key in own:",
        "        if key in ():",
        "tests/advise/test_advise_race.py",
    ),
    Mutation(
        "tracking/intervals.py",
        "return self.low is not None and self.low > self._same",
        "return self.low is not None and self.estimate > self._same",
        "tests/advise/test_advise_race.py",
    ),
    Mutation(
        "sweep/definition.py",
        "chosen = [*listed.get(str(point.get(WAY)), ())] if listed else []",
        "chosen: list[str] = []",
        "tests/advise/test_advise_race.py",
    ),
    # -- how a run is described, planned and gone on with
    Mutation(
        "engine/config/compose.py",
        "config, choices = copy.deepcopy(usual.config), dict(usual.choices)",
        "config, choices = usual.config, dict(usual.choices)",
        "tests/engine/test_kept_choices.py",
    ),
    Mutation(
        "engine/config/compose.py",
        'raise ConfigError(f"{text}: hydra\'s own settings are not part of an experiment")',
        "pass",
        "tests/engine/test_compose.py -k describes_no_single_run",
    ),
    Mutation(
        "engine/config/compose.py",
        "@no_resolvers()\ndef compose(",
        "def compose(",
        "tests/engine/test_compose.py -k 'resolver or secret'",
    ),
    Mutation(
        "tracking/files.py",
        'if "*" in plain or len(plain) > most or _may_be_deep(plain):',
        'if "<*" in plain or _may_be_deep(plain):',
        "tests/tracking/test_files.py -k aliases",
    ),
    Mutation(
        "engine/config/compose.py",
        'with initialize_config_module("paceline.conf", version_base="1.3"), files_checked(check_file):',
        'with initialize_config_module("paceline.conf", version_base="1.3"):',
        "tests/engine/test_kept_choices.py -k brings_in",
    ),
    Mutation(
        "tasks/data/images.py",
        "image.open(opened, formats=tuple(FORMATS)) as picture",
        "image.open(opened) as picture",
        "tests/tasks/test_own_files.py -k no_suffix_names",
    ),
    Mutation(
        "tasks/data/images.py",
        "tags.get(BITS_PER_SAMPLE, (16,))[0]",
        "16",
        "tests/tasks/test_own_files.py -k by_its_bits",
    ),
    Mutation(
        "tasks/data/images.py",
        "return 1 - values if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else values",
        "return values",
        "tests/tasks/test_own_files.py -k by_its_bits",
    ),
    Mutation(
        "wrap/run.py",
        "        self.gradients.hide_others()\n",
        "",
        "tests/wrap/test_steps.py -k second_optimizer",
    ),
    Mutation(
        "engine/base/failures.py",
        "text = hide_known(str(error))",
        "text = str(error)",
        "tests/engine/test_failures.py -k secret",
    ),
    Mutation(
        "sweep/definition.py",
        "if _may_be_secret(text) and tells_secret(text):",
        "if False:",
        "tests/sweep/test_sweep_definition.py -k secret",
    ),
    Mutation(
        "tasks/data/images.py",
        "        _turn_upright(picture)\n",
        "",
        "tests/tasks/test_own_files.py -k camera",
    ),
    Mutation(
        "tasks/data/images.py",
        'picture.info.get("transparency", -1)',
        "-1",
        "tests/tasks/test_own_files.py -k 16_bits",
    ),
    Mutation(
        "tasks/data/images.py",
        "seen[real] = folder",
        "pass",
        "tests/tasks/test_own_files.py -k linked_folder",
    ),
    Mutation(
        "tasks/data/images.py",
        'getattr(picture, "is_animated", False)',
        "False",
        "tests/tasks/test_own_files.py -k several_frames",
    ),
    Mutation(
        "tasks/data/images.py",
        'if picture.mode == "I" or picture.mode.startswith("I;16"):',
        'if picture.mode == "I":',
        "tests/tasks/test_own_files.py -k 16_bits",
    ),
    Mutation(
        "engine/config/receivers.py",
        'if value is not None and f"tracking.{key}" not in keys and own.get(key) != value:',
        'if value is not None and f"tracking.{key}" not in keys and own.get(key) == value:',
        "tests/engine/test_receivers.py",
    ),
    Mutation(
        "engine/config/targets.py",
        'if not any(target.startswith(f"{module}.") for module in modules):',
        "if not target:",
        "tests/engine/test_targets.py",
    ),
    Mutation(
        "engine/fabrics/layout.py",
        "if rest or replicas == 0:",
        "if replicas == 0:",
        "tests/engine/test_layout_and_plan.py",
    ),
    Mutation(
        "engine/base/stop.py",
        "if step < self._look:",
        "if step < 0:",
        "tests/engine/test_stop_agreement.py",
    ),
    Mutation(
        "engine/base/stop.py",
        "        if self._alone:",
        "        if False:",
        "tests/engine/test_stop_agreement.py",
    ),
    Mutation(
        "engine/training/dates.py",
        "ranks = range(layout.parts if self._sync.weights_agree else layout.workers)",
        "ranks = range(layout.parts)",
        "tests/engine/test_dates.py",
    ),
    Mutation(
        "engine/training/dates.py",
        "known = max(moment, self._sync.made_at)",
        "known = moment",
        "tests/engine/test_dates.py",
    ),
    Mutation(
        "engine/base/checkpoint.py",
        "if sha256(data) != expected:",
        "if not data:",
        "tests/engine/test_checkpoint.py",
    ),
    Mutation(
        "engine/config/stored.py",
        'if verdict == "changed":',
        'if verdict == "no such verdict":',
        "tests/engine/test_stored.py",
    ),
    # -- how workers train one model together
    Mutation(
        "exchange/clocks.py",
        "self.going.remove(worker)\n            self._standing_at[self._clock[worker]] -= 1",
        "self.going.remove(worker)",
        "tests/strategies/test_ssp.py -k 'not process'",
    ),
    Mutation(
        "exchange/buckets.py",
        "if buckets[-1] and held + sizes[i] > limit:",
        "if buckets[-1] and held > limit:",
        "tests/strategies/test_buckets.py",
    ),
    Mutation(
        "exchange/topology.py",
        "return Neighbours([(worker + hop) % size for hop in hops], [(worker - hop) % size for hop in hops])",
        "return Neighbours([(worker + hop) % size for hop in hops], [(worker + hop) % size for hop in hops])",
        "tests/strategies/test_topology.py",
    ),
    Mutation(
        "strategies/core/state.py",
        'name = f"{len(tensors)}{path}"',
        "name = path",
        "tests/strategies/test_state.py",
    ),
    Mutation(
        "strategies/sync/local_sgd.py",
        "x.mul_(self._own / self._all)",
        "x.mul_(1 / self.comm.size)",
        "tests/strategies/test_local_sgd.py -k 'virtual and not digits'",
    ),
    Mutation(
        "strategies/sync/local_sgd.py",
        "self._own = self._all = 0\n\n    def _average",
        "\n\n    def _average",
        "tests/strategies/test_local_sgd.py -k 'virtual and not digits'",
    ),
    Mutation(
        "strategies/sync/gossip.py",
        "a = 1 / (1 + len(near.of))",
        "a = 1 / 2",
        "tests/strategies/test_gossip.py -k virtual",
    ),
    Mutation(
        "strategies/sync/push_sum.py",
        "self._w += its_w",
        "pass",
        "tests/strategies/test_push_sum.py -k virtual",
    ),
    Mutation(
        "strategies/sync/easgd.py",
        "self._centre.add_(self._pulls)",
        "self._centre.add_(self._replica.pull)",
        "tests/strategies/test_easgd.py -k 'virtual and not digits'",
    ),
    Mutation(
        "strategies/sync/ssp.py",
        "self.bound = inf if staleness is None else staleness  # s",
        "self.bound = inf  # s",
        "tests/strategies/test_ssp.py -k 'not process'",
    ),
    Mutation(
        "exchange/pushing.py",
        "self.accrued.zero_()\n        self.owes = False",
        "self.owes = False",
        "tests/strategies/test_downpour.py -k 'not process'",
    ),
    Mutation(
        "exchange/serving.py",
        "self.going.discard(error.rank)",
        "pass",
        "tests/strategies/test_serving.py",
    ),
    Mutation(
        "strategies/sync/parameter_server.py",
        "len(self._waiting) == len(serving.going)",
        "len(self._waiting) == serving.workers - 1",
        "tests/strategies/test_servers.py -k 'virtual and not digits'",
    ),
    Mutation(
        "exchange/deliveries.py",
        "self._weights.add_(delivery.weights, alpha=counts[k] / n)",
        "self._weights.add_(delivery.weights, alpha=1 / len(self._delivered))",
        "tests/strategies/test_fedavg.py -k 'virtual and not digits'",
    ),
    Mutation(
        "strategies/sync/fedbuff.py",
        "alpha=(1 + tau) ** -self.discount",
        "alpha=(1 + tau) ** -1.0",
        "tests/strategies/test_fedbuff.py -k 'algorithm_1 and virtual'",
    ),
    Mutation(
        "strategies/sync/fedbuff.py",
        "self._fetched[client] = self._version",
        "self._fetched[client] = self._version - 1",
        "tests/strategies/test_fedbuff.py -k is_fedavg",
    ),
    Mutation(
        "strategies/sync/fedbuff.py",
        'self._count, self._version = saved["count"], saved["version"]',
        'self._count, self._version = 0, saved["version"]',
        "tests/strategies/test_fedbuff.py -k 'saved_bit_for_bit and virtual'",
    ),
    Mutation(
        "exchange/in_turn.py",
        "self._sum.add_(self._weights - self._w, alpha=self._n_k)",
        "self._sum.add_(self._weights - self._w, alpha=1)",
        "tests/strategies/test_many_clients.py -k algorithm_1",
    ),
    Mutation(
        "exchange/in_turn.py",
        "return sorted(self.sampled(number))[place], number * a_turn + own",
        "return sorted(self.sampled(number))[place], own",
        "tests/strategies/test_many_clients.py -k 'each_sampled or algorithm_1'",
    ),
    Mutation(
        "strategies/sync/gossip.py",
        'worker={"send": sent * world.often(self.period)},',
        'worker={"send": sent},',
        "tests/strategies/test_gossip.py -k 'virtual or bytes or cost'",
    ),
    Mutation(
        "strategies/sync/sparta.py",
        "default_rng((seed, round))",
        "default_rng((seed, 0))",
        "tests/strategies/test_sparta.py -k 'another_in_each_round'",
    ),
    Mutation(
        "strategies/sync/sparta.py",
        "x.mul_(1 / self.comm.size)",
        "pass",
        "tests/strategies/test_sparta.py -k 'the_mean_stays'",
    ),
    Mutation(
        "strategies/sync/noloco.py",
        ".add_(self._way, alpha=self.outer_momentum)",
        "",
        "tests/strategies/test_noloco.py -k 'heavy_ball'",
    ),
    Mutation(
        "strategies/sync/noloco.py",
        "x.add_(self._slow, alpha=self.pull - self.outer_lr)",
        "pass",
        "tests/strategies/test_noloco.py -k 'depend_on_the_pull'",
    ),
    Mutation(
        "strategies/sync/streaming_diloco.py",
        "fragment.arrives = self._t + self.delay",
        "fragment.arrives = self._t",
        "tests/strategies/test_streaming_diloco.py -k 'schedule and virtual'",
    ),
    Mutation(
        "strategies/sync/streaming_diloco.py",
        "fragment.way.mul_(fragment.own / fragment.all)",
        "fragment.way.mul_(1 / self.comm.size)",
        "tests/strategies/test_streaming_diloco.py -k 'schedule and virtual'",
    ),
    Mutation(
        "strategies/sync/dion.py",
        "alpha=-(1 - self.momentum))",
        "alpha=-1)",
        "tests/strategies/test_dion.py -k 'that_has_all_samples and virtual'",
    ),
    Mutation(
        "strategies/sync/dion.py",
        "found = norms > 100 * torch.finfo(norms.dtype).eps * norms.max()",
        "found = norms > -1",
        "tests/strategies/test_dion.py -k nothing_but_rounding",
    ),
    Mutation(
        "strategies/sync/dion.py",
        "return [[x for x in parameters if x.dim() != 2]]",
        "return [parameters]",
        "tests/engine/test_memory_account.py -k 'virtual_cluster_memory and dion'",
    ),
    Mutation(
        "strategies/external/deepspeed_memory.py",
        "-(-entries // replicas) if stage == 3 else entries for entries in frozen",
        "0 for entries in frozen",
        "tests/engine/test_memory_account.py -k frozen_weights",
    ),
    Mutation(
        "strategies/sync/onebit_adam.py",
        "return self._t < self.warmup or self.comm.size == 1",
        "return self._t < self.warmup - 1 or self.comm.size == 1",
        "tests/strategies/test_onebit_adam.py -k 'warm_up_it_is_bsp and virtual'",
    ),
    Mutation(
        "strategies/sync/onebit_adam.py",
        "root = (v / (1 - beta2**self.warmup)).sqrt_()",
        "root = v.div_(1 - beta2**self.warmup).sqrt()",
        "tests/strategies/test_onebit_adam.py -k 'variance_stays'",
    ),
    Mutation(
        "strategies/tensor.py",
        'check_elementwise(optimizer, "strategy=tensor", "strategy=data_parallel")',
        "pass",
        "tests/strategies/test_muon.py -k 'cut_up and tensor'",
    ),
    Mutation(
        "strategies/optimizers/lars.py",
        "g_norm + beta * w_norm)",
        "g_norm)",
        "tests/strategies/test_large_batches.py -k 'plain_loop and LARS'",
    ),
    Mutation(
        "strategies/optimizers/lars.py",
        "foreach.addcmul_(v, w, scalars(rate * beta, w))",
        "foreach.addcmul_(v, w, scalars(rate, w))",
        "tests/strategies/test_large_batches.py -k 'plain_loop and LARS'",
    ),
    Mutation(
        "strategies/optimizers/lamb.py",
        "ratio = or_one(*norms(x, r))",
        "ratio = or_one(*norms(x, m))",
        "tests/strategies/test_large_batches.py -k 'plain_loop and LAMB'",
    ),
    Mutation(
        "engine/api/small_run.py",
        'return any(each.partition("=")[0] == group and each != choice for each in further)',
        "return False",
        "tests/cli/test_cli_explain.py -k never_takes_its_place -m slow",
    ),
    Mutation(
        "strategies/optimizers/pegasos.py",
        'group["t"] += 1',
        'group["t"] = 1',
        "tests/strategies/test_pegasos.py -k papers_loop",
    ),
    Mutation(
        "strategies/optimizers/pegasos.py",
        "shrink = (1 / (decay**0.5 * norms(w))).clamp(max=1)",
        "shrink = (1 / (decay**0.5 * norms(w).norm())).clamp(max=1)",
        "tests/strategies/test_pegasos.py -k papers_loop",
    ),
    Mutation(
        "strategies/optimizers/pegasos.py",
        "for each in w]).sum(dim=0).sqrt()",
        "for each in w[:1]]).sum(dim=0).sqrt()",
        "tests/strategies/test_pegasos.py -k papers_loop",
    ),
    Mutation(
        "engine/features/pegasos.py",
        "    if sync.servers:",
        "    if False:",
        "tests/strategies/test_pegasos.py -k 'refused_by_name and asp'",
    ),
    Mutation(
        "engine/features/pegasos.py",
        'or getattr(strategy, "zero_optimizer", False):',
        "or False:",
        "tests/strategies/test_pegasos.py -k 'refused_by_name and torch_zero_optimizer'",
    ),
    Mutation(
        "strategies/optimizers/sgd_free_biases.py",
        '"weight_decay": 0.0}',
        '"weight_decay": weight_decay}',
        "tests/strategies/test_pegasos.py -k biases_alone",
    ),
    Mutation(
        "exchange/springs.py",
        'if rho is not None and any("lr" not in group for group in optimizer.param_groups):',
        "if False:",
        "tests/strategies/test_pegasos.py -k 'refused_by_name and rho'",
    ),
    Mutation(
        "tasks/losses/hinge.py",
        "return F.relu(1 - s * outputs)",
        "return F.relu(1 - s * outputs) * (s + 1)",
        "tests/tasks/test_tasks_losses.py -k one_against_the_rest",
    ),
    Mutation(
        "tasks/losses/squared_hinge.py",
        ".square().sum(dim=-1)",
        ".sum(dim=-1).square()",
        "tests/tasks/test_tasks_losses.py -k one_against_the_rest",
    ),
    Mutation(
        "tasks/partition.py",
        "return int(self._totals[step % self.steps_per_epoch])",
        "return self.replicas * self.size(step, 0)",
        "tests/engine/test_convex.py -k 'float64 and NaiveBSP and dirichlet'",
    ),
    Mutation(
        "strategies/optimizers/trust.py",
        "if not SAFE[0] < norm < SAFE[1]:",
        "if False:",
        "tests/strategies/test_large_batches.py -k loss_scale",
    ),
    Mutation(
        "strategies/optimizers/trust.py",
        "torch.where(numerator * denominator > 0, numerator / denominator, 1.0)",
        "numerator / denominator",
        "tests/strategies/test_large_batches.py -k zero_weights",
    ),
    Mutation(
        "exchange/elementwise.py",
        'if getattr(optimizer, "whole_tensors", False):',
        "if False:",
        "tests/strategies/test_large_batches.py -k tensors_are_cut_up",
    ),
    Mutation(
        "strategies/zero.py",
        "elif self._narrow:",
        "elif False:",
        "tests/strategies/test_large_batches.py -k 'tensors_are_cut_up and bf16' -m slow",
    ),
    Mutation(
        "strategies/core/accumulation.py",
        "self.weight, self._last = micro.size / batch.size if batch.size else 1.0, micro.last",
        "self.weight, self._last = 1 / self.micro_batches, micro.last",
        "tests/strategies/test_accumulation.py -k 'whole_batches_does and replicas'",
    ),
    Mutation(
        "strategies/core/accumulation.py",
        "before_backward(roots, last and self._last)",
        "before_backward(roots, last)",
        "tests/strategies/test_accumulation.py -k 'told_to_be_the_last'",
    ),
    Mutation(
        "strategies/core/accumulation.py",
        "count = len(sizes) if all_of_them else",
        "count =",
        "tests/strategies/test_accumulation.py -k 'evenly_as_can_be'",
    ),
    Mutation(
        "strategies/core/batch.py",
        "(self.size if self.of is None else self.of) / self.total",
        "self.size / self.total",
        "tests/strategies/test_accumulation.py -k 'evenly_as_can_be'",
    ),
    Mutation(
        "strategies/core/precision.py",
        'self.weigh = getattr(loss, "weigh", None)',
        "self.weigh = None",
        "tests/engine/test_together.py",
    ),
    Mutation(
        "strategies/tensor_parallel/vocabulary.py",
        "return weigh(cross_entropy(",
        "return (cross_entropy(",
        "tests/strategies/test_accumulation.py -k 'vocabulary'",
    ),
    Mutation(
        "engine/planning/make_plan.py",
        "inputs[: sizes[0]], targets[: sizes[0]], device)",
        "inputs, targets, device)",
        "tests/strategies/test_accumulation.py -k 'activations_of_one'",
    ),
    Mutation(
        "strategies/core/loss_scale.py",
        "        found = gradient * (1 / self.value)\n",
        "        found = gradient\n",
        "tests/strategies/test_precision.py -k scale_doubles",
    ),
    Mutation(
        "strategies/core/loss_scale.py",
        'self.among.all_reduce(self._flag, "max").wait()',
        "pass",
        "tests/strategies/test_precision.py -k one_replica_overflows",
    ),
    Mutation(
        "strategies/sync/bsp.py",
        "self._waits = self.scaled and not isinstance(self.compress, Dense)",
        "self._waits = False",
        "tests/strategies/test_precision.py -k never_given_an_overflow",
    ),
    Mutation(
        "engine/training/loop.py",
        "        job.sync.skip()\n",
        "        job.sync.update()\n",
        "tests/strategies/test_precision.py -k 'left_out_by_all and bsp and not compresses'",
    ),
    Mutation(
        "strategies/core/precision.py",
        "        if module.training:\n",
        "        if True:\n",
        "tests/strategies/test_precision.py -k evaluation_is_of_the_weights",
    ),
    Mutation(
        "strategies/core/schedule.py",
        'group["lr"] = rate * factor',
        'group["lr"] = rate',
        "tests/engine/test_rates.py -k schedules_rates",
    ),
    Mutation(
        "engine/training/loop.py",
        "job.sync.rate.factor(step % job.training))\n",
        "job.sync.rate.factor((step + 1) % job.training))\n",
        "tests/engine/test_rates.py -k schedules_rates",
    ),
    Mutation(
        "exchange/stepping.py",
        "self._rate.factor(int(self._seen + ROUNDING))",
        "self._rate.factor(self._version)",
        "tests/engine/test_rates.py -k seen_samples",
    ),
    Mutation(
        "engine/features/rates.py",
        "if parts.sync.synchronous and parts.sync.weights_agree:",
        "if True:",
        "tests/engine/test_rates.py -k scaling_rule",
    ),
    Mutation(
        "strategies/adapt/lora.py",
        "+ self.scale * (state[layer + B]",
        "+ (state[layer + B]",
        "tests/strategies/test_lora.py -k merged_equals",
    ),
    Mutation(
        "strategies/adapt/lora.py",
        "model.requires_grad_(False)",
        "model.requires_grad_(True)",
        "tests/strategies/test_lora.py -k bytes_of_its_factors",
    ),
    Mutation(
        "strategies/adapt/pruned.py",
        "return gradient if gone is None else gradient.masked_fill(gone, 0)",
        "return gradient",
        "tests/strategies/test_pruned.py -k zeros_stay",
    ),
    Mutation(
        "strategies/adapt/pruned.py",
        "self._weights[name].masked_fill_(gone, 0)",
        "self._weights[name].masked_fill(gone, 0)",
        "tests/strategies/test_pruned.py -k 'zeros_stay and muon'",
    ),
    Mutation(
        "strategies/adapt/pruned.py",
        "held.sync.load_state_dict(copy.deepcopy(self._fresh))",
        "copy.deepcopy(self._fresh)",
        "tests/strategies/test_pruned.py -k 'plain_loop and adam'",
    ),
    Mutation(
        "strategies/adapt/smallest.py",
        "ties = [float(each.sum()) if counts else 0.0 for",
        "ties = [float(each.sum()) for",
        "tests/strategies/test_pruned.py -k several_workers",
    ),
    Mutation(
        "exchange/compress/masked.py",
        "x.zero_().index_add_(0, kept, values)",
        "x.index_add_(0, kept, values)",
        "tests/strategies/test_pruned.py -k only_what_is_kept",
    ),
    Mutation(
        "engine/training/loop.py",
        "job.sync.rate.factor(step % job.training)",
        "job.sync.rate.factor(step)",
        "tests/strategies/test_pruned.py -k schedule_begins -m slow",
    ),
    Mutation(
        "strategies/adapt/quantized.py",
        "q = whole / levels * most",
        "q = whole * (most / levels)",
        "tests/strategies/test_quantized.py -k 'quantized_again and int4'",
    ),
    Mutation(
        "strategies/adapt/quantized.py",
        "size > 0.7 * _mean(",
        "size > 0.75 * _mean(",
        "tests/strategies/test_quantized.py -k by_hand",
    ),
    Mutation(
        "strategies/adapt/quantized.py",
        "dq = dq.where(within, 0.0)",
        "dq = dq.where(~within, 0.0)",
        "tests/strategies/test_quantized.py -k clipped",
    ),
    Mutation(
        "strategies/adapt/quantized.py",
        "quantized(w, self.kind) if name in self._names else w",
        "w",
        "tests/strategies/test_quantized.py -k 'plain_loops and int4'",
    ),
    Mutation(
        "engine/planning/build.py",
        'if adapt == "none":',
        "if True:",
        "tests/strategies/test_quantized.py -k wrong_knobs",
    ),
    Mutation(
        "strategies/adapt/pufferfish.py",
        "right = (u * signs)[:, :rank] * root, root[:, None] * (vt * signs.T)[:rank]",
        "right = (u * signs)[:, :rank] * root, root[:, None] * vt[:rank]",
        "tests/strategies/test_pufferfish.py -k nearest_matrix",
    ),
    Mutation(
        "strategies/adapt/pufferfish.py",
        "between = list(layers)[self.keep_first : -1]",
        "between = list(layers)[self.keep_first :]",
        "tests/strategies/test_pufferfish.py -k first_and_the_last",
    ),
    Mutation(
        "engine/planning/planned.py",
        "max(self.until - max(self.first, done), 0)",
        "self.until - self.first",
        "tests/strategies/test_pufferfish.py -k both_phases",
    ),
    Mutation(
        "engine/planning/make_plan.py",
        "_worlds(experiment, of_phase, steps_per_epoch, first, until)",
        "_worlds(experiment, of_phase, steps_per_epoch, 0, experiment.steps)",
        "tests/strategies/test_pufferfish.py -k own_steps",
    ),
    Mutation(
        "engine/training/loop.py",
        "if size > most:",
        "if most == 0:",
        "tests/strategies/test_pufferfish.py -k own_steps",
    ),
    Mutation(
        "engine/training/worker.py",
        "scale.load_state_dict(kept.scale)",
        "pass",
        "tests/strategies/test_pufferfish.py -k scale_of_the_loss",
    ),
    Mutation(
        "engine/training/work.py",
        "earlier.append(memory_of(worker, job.activations))",
        "pass",
        "tests/strategies/test_pufferfish.py -k plain_torch",
    ),
    Mutation(
        "engine/callbacks/at_target.py",
        "if not self.score >= self.target:",
        "if not self.score > self.target:",
        "tests/engine/test_callbacks.py -k reaches_the_target -m slow",
    ),
    Mutation(
        "exchange/clip/norm.py",
        "if counted is None or name in counted.names]",
        "]",
        "tests/strategies/test_clip.py -k 'trains_as_one_worker and pipeline and ByNorm'",
    ),
    Mutation(
        "exchange/clip/norm.py",
        "shared.among.all_reduce(square).wait()",
        "shared.among.barrier()",
        "tests/strategies/test_clip.py -k counted_once",
    ),
    Mutation(
        "exchange/clip/norm.py",
        "if not math.isfinite(self.norm):",
        "if False:",
        "tests/strategies/test_clip.py -k not_finite",
    ),
    Mutation(
        "exchange/clip/norm.py",
        "square /= shared.copies",
        "square /= 1",
        "tests/strategies/test_clip.py -k counted_once",
    ),
    Mutation(
        "engine/planning/make_plan.py",
        "return {**along, axis: [added(each, own) for each in along[axis]]}, over_axes",
        "return along, over_axes",
        "tests/strategies/test_clip.py -k 'measured_bytes and how0'",
    ),
    # -- the bytes of the run as it will be run
    Mutation(
        "strategies/core/cost.py",
        "begins = every if first is None else first",
        "begins = every",
        "tests/engine/test_planned_bytes.py -k every_few_steps",
    ),
    Mutation(
        "engine/planning/make_plan.py",
        "return (until - first, last * copies), (until - first - epochs, (replicas - last) * copies)",
        "return ()",
        "tests/engine/test_planned_bytes.py -k 'no_samples and push'",
    ),
    Mutation(
        "strategies/sync/streaming_diloco.py",
        "world.often(self.period, first_step(p, self.fragments, self.period)),",
        "world.often(self.period),",
        "tests/engine/test_planned_bytes.py -k streaming_diloco-sparseloco",
    ),
    Mutation(
        "strategies/sync/local_sgd.py",
        "world.often(self.period, self.switch_step + self.period)",
        "world.often(self.period)",
        "tests/engine/test_planned_bytes.py -k 'usual and post_local_sgd'",
    ),
    Mutation(
        "exchange/compress/dgc.py",
        "counts = range(min(messages, self.warmup))",
        "counts = range(0)",
        "tests/strategies/test_sparse_rules.py -k mean_of_its_messages",
    ),
    # -- what travels, how sums are made and rows are joined, and how a replica lies over workers
    Mutation(
        "exchange/compress/rounding.py",
        "return k, 0.5 + j.to(torch.float32) * 2**-23",
        "return k, 0.25 + j.to(torch.float32) * 2**-23",
        "tests/strategies/test_quantization.py -k simulation",
    ),
    Mutation(
        "exchange/compress/atomo.py",
        "left = s - i",
        "left = s",
        "tests/strategies/test_low_rank.py -k probabilities",
    ),
    Mutation(
        "exchange/compress/powersgd.py",
        "if bool(idle.any()):",
        "if False:",
        "tests/strategies/test_low_rank.py -k lower_rank",
    ),
    Mutation(
        "exchange/compress/onebit.py",
        "positive = count_of_rows(columns >= 0)",
        "positive = count_of_rows(columns > 0)",
        "tests/strategies/test_signs.py -k papers",
    ),
    Mutation(
        "comm/calls.py",
        "if not self._compared <= number < self._made:",
        "if True:",
        "tests/comm/test_calls.py -k after_some",
    ),
    Mutation(
        "comm/calls.py",
        "if len({*said}) > 1:",
        "if False:",
        "tests/comm/test_calls.py -k after_some",
    ),
    Mutation(
        "comm/calls.py",
        "at = past.find(past[-length:])",
        "at = past.rfind(past[-length:], 0, -1)",
        "tests/comm/test_calls.py -k like_the_present",
    ),
    Mutation(
        "comm/calls.py",
        "return self._calls[at % period if at < 0 else at]",
        "return self._calls[max(at, 0)]",
        "tests/comm/test_calls.py -k for_ever",
    ),
    Mutation(
        "comm/process.py",
        "lambda: is_over(work)):\n                self.check_alike(what)\n",
        "lambda: is_over(work)):\n                continue\n",
        "tests/comm/test_calls.py -k after_some",
    ),
    Mutation(
        "comm/private.py",
        "if others_may_write(found) and (last or not found.st_mode & stat.S_ISVTX):",
        "if last and others_may_write(found):",
        "tests/comm/test_private.py",
    ),
    Mutation(
        "comm/native/all_reduce.c",
        "if (at == 0 && !all_alike(g, job)) return UNLIKE;",
        "",
        "tests/comm/test_shared_sum.py -k 'another_tensor and NativeSum'",
    ),
    Mutation(
        "comm/native/all_reduce.c",
        "g->phases[r].entries != job->entries || g->phases[r].dtype != job->dtype",
        "g->phases[r].entries != job->entries",
        "tests/comm/test_shared_sum.py -k 'another_tensor and NativeSum'",
    ),
    Mutation(
        "comm/native/all_reduce.c",
        "if (at == 0) g->phases[rank].entries = job->entries,",
        "if (at == 0) g->phases[rank].entries = job->entries < most ? job->entries : most,",
        "tests/comm/test_shared_sum.py -k 'another_tensor and NativeSum'",
    ),
    Mutation(
        "comm/shared_sum.py",
        "        if is_first:\n            self._check_alike()",
        "        if is_first and self._workers > 2:\n            self._check_alike()",
        "tests/comm/test_shared_sum.py -k 'another_tensor and TorchSum'",
    ),
    Mutation(
        "comm/shared_sum.py",
        "TOLD.pack_into(self._memory, self._lines[self._rank], len(flat), DTYPES.index(flat.dtype))",
        "TOLD.pack_into(self._memory, self._lines[self._rank], len(flat), 0)",
        "tests/comm/test_shared_sum.py -k 'another_tensor and TorchSum'",
    ),
    Mutation(
        "comm/shared_sum.py",
        "if self._failed is not None and self._done < number:",
        "if self._failed is not None:",
        "tests/comm/test_shared_sum.py -k 'sums_before_that'",
    ),
    Mutation(
        "comm/process.py",
        "            if its != said[0]:\n",
        "            if not its:\n",
        "tests/comm/test_fabric_groups.py -k shares_another",
    ),
    Mutation(
        "comm/sockets.py",
        "if (message.length, message.kind) != (due, receive.kind):",
        "if message.length != due:",
        "tests/comm/test_sockets.py -k another_kind",
    ),
    Mutation(
        "exchange/collectives/ring.py",
        "mine = chunks[(rank - step - 1) % workers]",
        "mine = chunks[(rank - step) % workers]",
        "tests/strategies/test_collectives.py",
    ),
    Mutation(
        "exchange/collectives/base.py",
        "if flat.data_ptr() != self._tensor.data_ptr():",
        "if flat.data_ptr() == 0:",
        "tests/strategies/test_collectives.py",
    ),
    Mutation(
        "exchange/collectives/base.py",
        "return inside.latency + phase.sharing * phase.nbytes / inside.bandwidth",
        "return inside.latency + phase.nbytes / inside.bandwidth",
        "tests/strategies/test_collective_costs.py",
    ),
    Mutation(
        "exchange/collectives/tree.py",
        "for _, child in reversed(children(members.rank, members.size)):",
        "for _, child in children(members.rank, members.size):",
        "tests/strategies/test_collective_costs.py",
    ),
    Mutation(
        "exchange/collectives/recursive_doubling.py",
        "for i, other in enumerate(group):",
        "for i, other in enumerate(sorted(group, key=lambda each: each != members.rank)):",
        "tests/strategies/test_collectives.py",
    ),
    Mutation(
        "exchange/collectives/auto.py",
        "most = ALIKE * min(times.values())",
        "most = max(times.values())",
        "tests/strategies/test_collective_costs.py",
    ),
    Mutation(
        "exchange/collectives/auto.py",
        "most = ALIKE * min(times.values())",
        "most = min(times.values())",
        "tests/strategies/test_collective_costs.py",
    ),
    Mutation(
        "exchange/collectives/auto.py",
        "return self._in_memory and len({*hosts_of(world)}) == 1",
        "return len({*hosts_of(world)}) == 1",
        "tests/strategies/test_collective_costs.py",
    ),
    Mutation(
        "strategies/sync/streaming_diloco.py",
        'with self.comm.ledger.of_training(), self.comm.timeline.named("fragment"):',
        'with self.comm.timeline.named("fragment"):',
        "tests/strategies/test_collectives.py",
    ),
    Mutation(
        "exchange/compress/demo.py",
        "        check_read(values)\n",
        "",
        "tests/strategies/test_malformed.py",
    ),
    Mutation(
        "exchange/collectives/recorded.py",
        "adds = all(there[place].isdisjoint(values) for place, values in entries)",
        "adds = True",
        "tests/strategies/test_recorded.py",
    ),
    Mutation(
        "exchange/aggregate/median.py",
        "return middle[0] if n % 2 else",
        "return middle[0] if n else",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/distances.py",
        "y = x - (x.mean(0) if origin is None else x[origin])",
        "y = x.float().double()",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/distances.py",
        "if float(found[among, among]) > FAR * float(middle[among]):",
        "if False:",
        "tests/strategies/test_aggregate_rules.py -k very_far",
    ),
    Mutation(
        "exchange/aggregate/distances.py",
        "return (gram.diagonal() - 2 * near + shares @ near)",
        "return ((apart(gram) @ shares) - shares @ (apart(gram) @ shares) / 2)",
        "tests/strategies/test_aggregate_rules.py -k however_far",
    ),
    Mutation(
        "exchange/aggregate/geometric_median.py",
        "shares = self._shares(middles(apart(products)))",
        "shares = middles(products).new_full((len(rows),), 1 / len(rows))",
        "tests/strategies/test_aggregate_rules.py -k however_far",
    ),
    Mutation(
        "exchange/aggregate/before/bucketing.py",
        "(rows[bucket] / len(bucket)).sum(0)",
        "rows[bucket].sum(0) / len(bucket)",
        "tests/strategies/test_aggregate_rules.py -k bucket_of_two",
    ),
    Mutation(
        "exchange/joining.py",
        "(smallest > -LARGEST) & (largest < LARGEST)",
        "smallest.isfinite() & largest.isfinite()",
        "tests/strategies/test_aggregate_rules.py -k squares",
    ),
    Mutation(
        "exchange/aggregate/krum.py",
        "nearest[:, 1 : 1 + max(n - f - 2, 1)]",
        "nearest[:, 1 : 1 + max(n - f - 1, 1)]",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/ranked.py",
        "if i in needed or j in needed:",
        "if i in needed and j in needed:",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/before/mixing.py",
        "distances.fill_diagonal_(-1.0)",
        "distances.fill_diagonal_(1e9)",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/joining.py",
        "left = max(min(f - removed, rule.before.most(len(stacked))), 0)",
        "left = max(min(f, rule.before.most(len(stacked))), 0)",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/client/fedprox.py",
        "alpha=self.mu",
        "alpha=-self.mu",
        "tests/strategies/test_federated_clients.py -k papers -m slow",
    ),
    Mutation(
        "exchange/client/scaffold.py",
        "g.add_(correction)  # g - c_k + c",
        "pass",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/scaffold.py",
        "alpha=self.shares[client]",
        "alpha=1 / len(self.shares)",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/scaffold.py",
        "self._own, self._sum = kept[client].clone(), torch.zeros_like(self._c)",
        "pass",
        "tests/strategies/test_federated_clients.py -k resumed_between",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "if not self._stepped:",
        "if True:",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "g.mul_(1 - self.beta).add_(m, alpha=self.beta)",
        "g.add_(m, alpha=self.beta)",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "alpha=(1 - self.beta) * weights[client]",
        "alpha=(1 - self.beta) * self.shares[client]",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "self._m.mul_(self.beta)",
        "pass",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "if client is None:  # others fetch it",
        "if client is not None:",
        "tests/strategies/test_federated_clients.py -k resumed_inside",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        'self._stepped = state["stepped"]',
        "pass",
        "tests/strategies/test_federated_clients.py -k resumed_inside",
    ),
    Mutation(
        "exchange/client/mime_lite.py",
        "if momentum > 0:",
        "if momentum > 1:",
        "tests/strategies/test_federated_clients.py -k a_momentum_of_its_own",
    ),
    Mutation(
        "exchange/client/base.py",
        "if self.controls and joining.aggregate.robust:",
        "if False:",
        "tests/strategies/test_federated_clients.py -k cannot_defend",
    ),
    Mutation(
        "exchange/client/fednova.py",
        "tau / (lengths[k] / unit)",
        "tau",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/secure/deliveries.py",
        "changes = found is not None and found[1] > 0",
        "changes = found is not None",
        "tests/strategies/test_secure.py -k nobody_has",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "between = self._between(v, len(x))",
        "between = pairwise(self._mask, self._keys[v].mask, self.number, self.client, v, len(x))",
        "tests/strategies/test_secure_protocol.py -k agrees_with_none",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "coordinatewise = False",
        "coordinatewise = True",
        "tests/strategies/test_joining.py -k not_given_pieces",
    ),
    Mutation(
        "engine/callbacks/by_client.py",
        "max(len(values) // 10, 1)",
        "max(len(values) // 5, 1)",
        "tests/engine/test_by_client.py -k worst",
    ),
    Mutation(
        "engine/features/private.py",
        "sync.per_round(layout.replicas) / layout.replicas, rounds, rounds",
        "1.0, rounds, rounds",
        "tests/engine/test_budget_of_privacy.py",
    ),
    Mutation(
        "exchange/participation.py",
        "return drawn(self.seed, number, shares, self.per_round(len(shares)))[client]",
        "return samples",
        "tests/strategies/test_federated_clients.py -k papers",
    ),
    Mutation(
        "exchange/round_server.py",
        "self._gone = frozenset(k for k, at in after.items()",
        "self._gone = frozenset(k for k, at in {}.items()",
        "tests/strategies/test_federated_clients.py -k in_vain -m slow",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "if NEVER < int(before) <= number:",
        "if NEVER < int(before) < number:",
        "tests/strategies/test_fedavg.py -k 'virtual and told_to_stop'",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "raise StoppedBefore(int(before) * self._rounds.length)",
        "raise StoppedBefore(number * self._rounds.length)",
        "tests/strategies/test_fedavg.py -k 'virtual and told_to_stop'",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "            self._own.number = int(before)\n",
        "            pass\n",
        "tests/strategies/test_fedavg.py -k 'virtual and told_to_stop'",
    ),
    Mutation(
        "strategies/sync/fedavg.py",
        "if self._last < last:",
        "if self._last < 0:",
        "tests/strategies/test_fedavg.py -k 'virtual and told_to_stop'",
    ),
    Mutation(
        "exchange/round_server.py",
        "if asked <= self._open or self._ended}",
        "if asked <= self._open}",
        "tests/strategies/test_fedavg.py -k 'virtual and told_to_stop'",
    ),
    Mutation(
        "exchange/round_server.py",
        "starts = [] if self._ended else self._deliveries.starts",
        "starts = self._deliveries.starts",
        "tests/strategies/test_fedavg.py -k 'virtual and has_sent'",
    ),
    Mutation(
        "engine/training/work.py",
        "parts.sync.stops_before = _stops_before_round(worker)",
        "pass",
        "tests/engine/test_engine_faults.py -k 'same_round_on_ctrl_c and all' -m fault",
    ),
    Mutation(
        "exchange/server/adaptive.py",
        "(v - square).sign()",
        "1",
        "tests/strategies/test_fedavg.py -k yogis",
    ),
    Mutation(
        "exchange/deliveries.py",
        'self._server.load_state_dict(state["rule"])',
        "pass",
        "tests/strategies/test_fedavg.py -k resumed -m slow",
    ),
    Mutation(
        "exchange/aggregate/bulyan.py",
        "order[i + beta] - middle < middle - order[i]",
        "order[i + beta] - middle <= middle - order[i + 1]",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/mda.py",
        "totals.where(diameters == diameters.min(), torch.inf)",
        "totals",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/geometric_median.py",
        ".sqrt().clamp(min=self.nu)",
        ".clamp(min=self.nu)",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/centered_clipping.py",
        "factors @ apart / len(rows)",
        "factors @ rows / len(rows)",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/fltrust.py",
        "cosines.clamp(min=0.0)",
        "cosines.abs()",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/trimmed_mean.py",
        "ranked(rows, f, len(rows) - f)",
        "ranked(rows, 0, len(rows) - f)",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/before/arc.py",
        "torch.where(lengths > longest, longest / lengths",
        "torch.where(lengths < longest, longest / lengths",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "strategies/sync/local_sgd.py",
        "copy.deepcopy(self.joining)",
        "self.joining",
        "tests/strategies/test_joined_ways.py -k looking",
    ),
    Mutation(
        "strategies/sync/local_sgd.py",
        "torch.tensor([self._own])",
        "torch.tensor([1])",
        "tests/strategies/test_joined_ways.py -k 'local_sgd_goes and virtual'",
    ),
    Mutation(
        "exchange/aggregate/self_centered_clipping.py",
        "[: max(len(lengths) - f, 0)]",
        "",
        "tests/strategies/test_joined_ways.py -k radius",
    ),
    Mutation(
        "exchange/joining.py",
        "if given[0] not in self.attack.liars(replicas):",
        "if True:",
        "tests/strategies/test_joined_ways.py -k 'ring and virtual'",
    ),
    Mutation(
        "strategies/sync/gossip.py",
        "self._weights if counts else",
        "self._weights if True else",
        "tests/strategies/test_joined_ways.py -k 'ring and virtual'",
    ),
    Mutation(
        "exchange/aggregate/draco.py",
        "> self.copies // 2:",
        ">= self.copies // 2:",
        "tests/strategies/test_draco.py -k outvoted",
    ),
    Mutation(
        "tasks/partition.py",
        "return self.each.total(step)",
        "return self.each.total(step) * self.copies",
        "tests/strategies/test_draco.py -k 'group_takes'",
    ),
    Mutation(
        "engine/features/rates.py",
        "parts.layout.replicas // parts.partitioner.copies",
        "parts.layout.replicas",
        "tests/strategies/test_draco.py -k plain_training -m slow",
    ),
    Mutation(
        "exchange/stepping.py",
        "self._joining.aggregate.copies)",
        "1)",
        "tests/strategies/test_draco.py -k parameter_server_does -m slow",
    ),
    Mutation(
        "engine/features/lying.py",
        "if rule.trusted in attack.liars(parts.layout.replicas):",
        "if rule.first in attack.liars(parts.layout.replicas):",
        "tests/strategies/test_zeno.py -k trusted_lies",
    ),
    Mutation(
        "exchange/aggregate/zeno.py",
        "self.rho * (g @ g)",
        "self.rho",
        "tests/strategies/test_zeno.py -k far_enough",
    ),
    Mutation(
        "strategies/sync/downpour.py",
        "gradient.copy_(admitted)",
        "pass",
        "tests/strategies/test_zeno.py -k length",
    ),
    Mutation(
        "engine/features/poisoning.py",
        "if step < attack.from_step or",
        "if",
        "tests/engine/test_poisoning.py -k from_their_step",
    ),
    Mutation(
        "engine/features/poisoning.py",
        "[taken.targets != attack.target]",
        "",
        "tests/engine/test_poisoning.py -k success",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "sqrt()) / a).min()",
        "sqrt()) / a).max()",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "distances.sum(1).max()",
        "distances.sum(1).mean()",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/alie.py",
        "seen.honest.std(0, correction=0)",
        "seen.honest.std(0)",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/joining.py",
        "kept = [i for i, replica in enumerate(of) if weights[replica] > 0]",
        "kept = list(range(len(of)))",
        "tests/strategies/test_joining.py",
    ),
    Mutation(
        "exchange/joining.py",
        "self._rows[rank], self._weights[rank] = row, weight",
        "self._rows[len(self._weights)], self._weights[rank] = row, weight",
        "tests/strategies/test_joining.py",
    ),
    Mutation(
        "exchange/channel.py",
        'self._slots[key].memory = {name: tensor.clone() for name, tensor in saved["memory"].items()}',
        "self._slots[key].memory = {}",
        "tests/strategies/test_channel.py tests/strategies/test_compressed_runs.py",
    ),
    Mutation(
        "exchange/compress/places.py",
        "if falls or bool((places < 0).any()) or bool((places >= n).any()):",
        "if bool((places < 0).any()) or bool((places >= n).any()):",
        "tests/strategies/test_compress.py",
    ),
    Mutation(
        "strategies/core/mesh.py",
        "0 if axis in ALIKE else i for axis, i",
        "i for axis, i",
        "tests/strategies/test_mesh.py",
    ),
    Mutation(
        "strategies/core/placements.py",
        "whole[name] = torch.cat(pieces, dim=dims[name]) if pieces else tensor",
        "whole[name] = torch.cat(pieces, dim=0) if pieces else tensor",
        "tests/strategies/test_tensor.py",
    ),
    Mutation(
        "strategies/tensor_parallel/vocabulary.py",
        'm = group.largest(logits.amax(dim=1, keepdim=True), "loss")',
        "m = logits.amax(dim=1, keepdim=True)",
        "tests/strategies/test_tensor_vocabulary.py -k 'gradient_are_those'",
    ),
    Mutation(
        "strategies/tensor_parallel/vocabulary.py",
        "t = e.gather(1, own).masked_fill(elsewhere, 0.0)",
        "t = e.gather(1, own)",
        "tests/strategies/test_tensor_vocabulary.py -k 'gradient_are_those'",
    ),
    Mutation(
        "strategies/tensor_parallel/draws.py",
        'key=b"%d" % piece',
        'key=b"0"',
        "tests/strategies/test_tensor_draws.py -k 'masks_of_pieces'",
    ),
    Mutation(
        "strategies/tensor_parallel/draws.py",
        "            torch.rand((), device=device)\n",
        "            pass\n",
        "tests/strategies/test_tensor_draws.py -k 'common_numbers'",
    ),
    Mutation(
        "strategies/tensor_parallel/group.py",
        'return self.sum(gradient.contiguous().clone(), "gradients")',
        "return gradient",
        "tests/strategies/test_tensor_sequence.py -k 'in_slices_of_its'",
    ),
    Mutation(
        "strategies/tensor_parallel/sequence.py",
        "x.chunk(pieces, dim=1)[piece].clone(memory_format=torch.contiguous_format)",
        "x.chunk(pieces, dim=1)[piece]",
        "tests/strategies/test_tensor_sequence.py -k 'kept_in_slices'",
    ),
    Mutation(
        "engine/training/work.py",
        "    _drain(worker, job)\n    with worker.comm.ledger.aside():\n        verdict",
        "    with worker.comm.ledger.aside():\n        verdict",
        "tests/strategies/test_tensor.py -k drains",
    ),
    Mutation(
        "engine/training/worker.py",
        'load_state(module, state["parameters"])  # `prepare` may have made all replicas alike',
        "pass",
        "tests/strategies/test_conformance.py -k uninterrupted",
    ),
    Mutation(
        "engine/training/spread.py",
        "total += float((stacked - stacked.mean(0)).square().sum(1).mean())",
        "total += float((stacked - stacked.mean(0)).square().sum())",
        "tests/engine/test_spread.py",
    ),
    # -- from Python, and callbacks
    Mutation(
        "engine/callbacks/improvement.py",
        "if not math.isfinite(value):",
        "if False:",
        "tests/engine/test_callbacks.py -k nan_is_never_better",
    ),
    Mutation(
        "engine/callbacks/early_stop.py",
        "self.without < self.patience",
        "self.without <= self.patience",
        "tests/engine/test_callbacks.py -k plain_loop",
    ),
    Mutation(
        "engine/training/evaluations.py",
        "if done != self._evaluated_at:",
        "if True:",
        "tests/engine/test_callbacks.py -k 'ended_early and parameter_server'",
    ),
    Mutation(
        "engine/training/evaluations.py",
        "FILE, worker.parts.adapt.merged(snapshot.state))",
        "FILE, {k: v + 1 for k, v in snapshot.state.items()})",
        "tests/engine/test_callbacks.py -k best_weights -m slow",
    ),
    Mutation(
        "engine/training/work.py",
        "and (done < job.steps or counts)",
        "and done < job.steps",
        "tests/engine/test_callbacks.py -k resumed -m slow",
    ),
    Mutation(
        "engine/base/checkpoint.py",
        "*(path for path in own if step_of(path) == best)",
        "",
        "tests/engine/test_callbacks.py -k resumed -m slow",
    ),
    Mutation(
        "engine/config/settings.py",
        "[*(name for name in self.called if name in chosen), *chosen]",
        "[*chosen]",
        "tests/engine/test_callbacks.py -k python_takes",
    ),
    Mutation(
        "tracking/groups.py",
        '(key == "callbacks" and not value) or',
        "",
        "tests/tracking/test_groups.py",
    ),
    Mutation(
        "engine/config/settings.py",
        "into.allowed.append(cls.__module__)",
        "pass",
        "tests/engine/test_settings.py",
    ),
    Mutation(
        "engine/config/settings.py",
        "sum(section.get(key) == value for key, value in choice.knobs.items())",
        "len(choice.knobs)",
        "tests/engine/test_settings.py",
    ),
    Mutation(
        "tracking/frames.py",
        "for record in lived(run.records):",
        "for record in run.records:",
        "tests/tracking/test_frames.py",
    ),
    Mutation(
        "tracking/display.py",
        "{escape(shown(text, 500))}",
        "{text}",
        "tests/tracking/test_frames.py",
    ),
    # -- what is trained
    Mutation(
        "tasks/evaluation.py",
        "loss += task.loss(outputs, targets).item() * len(targets)",
        "loss += task.loss(outputs, targets).item()",
        "tests/tasks/test_tasks_losses.py",
    ),
    Mutation(
        "tasks/evaluation.py",
        "model.train(training)",
        "model.train()",
        "tests/tasks/test_tasks_losses.py",
    ),
    Mutation(
        "tasks/data/idx.py",
        "if values != prod(shape):",
        "if values < 0:",
        "tests/tasks/test_tasks_fashion_mnist.py",
    ),
    Mutation(
        "tasks/data/idx.py",
        "if sha256(content).hexdigest() != expected:",
        "if not content:",
        "tests/tasks/test_tasks_fashion_mnist.py",
    ),
    Mutation(
        "advise/space.py",
        'cut = (1,) if family == "torch_fsdp" else pieces(samples)',
        "cut = (1,)",
        "tests/advise/test_advise_layouts.py -k micro_batches_that_a_plan",
    ),
    Mutation(
        "engine/training/work.py",
        "return wanted and saving.saved_at is None and worker.manifest is None",
        "return False",
        "tests/engine/test_engine_runs.py -k is_due_goes_on -m slow",
    ),
    Mutation(
        "engine/base/stop.py",
        "return min(round(PERIOD * made / max(now - then, 1e-6)), GROWTH * made)",
        "return round(PERIOD / max(step_seconds, 1e-6))",
        "tests/engine/test_stop_agreement.py -k by_the_clock",
    ),
    Mutation(
        "engine/planning/build.py",
        "        data.check_files()\n",
        "        pass\n",
        "tests/engine/test_layout_and_plan.py -k files_that_the_user_names",
    ),
    Mutation(
        "tasks/data/table.py",
        "self._check_types(head if path == self.path else self._schema(path), path, kind)",
        "self._schema(path)",
        "tests/tasks/test_own_files.py -k head_of",
    ),
    # -- what learns of samples alone
    Mutation(
        "tasks/models/kmeans.py",
        "squares + (self.shares - shares)]",
        "squares + (shares - shares)]",
        "tests/tasks/test_unsupervised.py -k gradient_by_a_centre",
    ),
    Mutation(
        "tasks/models/kmeans.py",
        "mean = shares @ c.detach() / ",
        "mean = torch.ones_like(shares) @ c.detach() / ",
        "tests/tasks/test_unsupervised.py -k one_less_inertia",
    ),
    Mutation(
        "tasks/models/kmeans.py",
        "torch.multinomial(squares, 1)",
        "torch.multinomial(squares.sqrt(), 1)",
        "tests/tasks/test_unsupervised.py -k draws_each_centre",
    ),
    Mutation(
        "tasks/models/kmeans.py",
        "torch.minimum(squares, (x",
        "torch.minimum(torch.full_like(squares, torch.inf), (x",
        "tests/tasks/test_unsupervised.py -k centres_begin",
    ),
    Mutation(
        "tasks/models/pca.py",
        "kept = ((x - self.mean.detach())",
        "kept = ((x - self.mean)",
        "tests/tasks/test_unsupervised.py -k pcas_gradient",
    ),
    Mutation(
        "tasks/losses/reconstruction.py",
        "return outputs[:, 1:].min(dim=1).values",
        "return outputs.min(dim=1).values",
        "tests/tasks/test_unsupervised.py -k scikit_learns_inertia",
    ),
    Mutation(
        "strategies/optimizers/lloyd.py",
        "            v.add_(of_vector)\n",
        "            v.copy_(of_vector)\n",
        "tests/strategies/test_lloyd.py -k sculleys",
    ),
    Mutation(
        "strategies/optimizers/lloyd.py",
        "v.clamp(min=torch.finfo(v.dtype).tiny)",
        "v",
        "tests/strategies/test_lloyd.py -k stays_where_it_is",
    ),
    Mutation(
        "strategies/optimizers/lloyd.py",
        "g / (2 * ",
        "g / (1 * ",
        "tests/strategies/test_lloyd.py -k one_centre",
    ),
    Mutation(
        "strategies/optimizers/power_iteration.py",
        "-of_matrix / 2 - torch.outer(s, s @ W)",
        "-of_matrix / 2",
        "tests/strategies/test_power_iteration.py -k 'step_by_step and virtual and bsp'",
    ),
    Mutation(
        "strategies/optimizers/power_iteration.py",
        "R.diagonal() < 0, -1.0, 1.0",
        "R.diagonal() < 0, 1.0, 1.0",
        "tests/strategies/test_power_iteration.py -k 'step_by_step and virtual and bsp'",
    ),
    Mutation(
        "engine/features/iterating.py",
        "    if not (sync.weights_agree and sync.exact):\n",
        "    if not sync.weights_agree:\n",
        "tests/engine/test_iterating.py -k 'refused and topk'",
    ),
    Mutation(
        "engine/features/iterating.py",
        "    if sync.servers > 1:\n",
        "    if sync.servers > 2:\n",
        "tests/engine/test_iterating.py -k 'refused and servers'",
    ),
    Mutation(
        "engine/features/iterating.py",
        "    if len(sync.stepped(list(model.parameters()), 2)) > 1:\n",
        "    if len(sync.stepped(list(model.parameters()), 2)) > 2:\n",
        "tests/engine/test_iterating.py -k 'refused and torch_zero'",
    ),
    Mutation(
        "engine/training/worker.py",
        "    elif manifest is None:\n        iterating.begin(model, parts.load)\n",
        "",
        "tests/engine/test_iterating.py -k 'scikit_learns_centres and alone'",
    ),
    Mutation(
        "tasks/models/kmeans.py",
        "origin = self.centres.detach().mean(dim=0)",
        "origin = torch.zeros_like(self.centres[0])",
        "tests/tasks/test_unsupervised.py -k far_from_zero",
    ),
    # -- predicted costs
    Mutation(
        "cost/transformer.py",
        "attention = 4 * tokens * self.context * self.width",
        "attention = 2 * tokens * self.context * self.width",
        "tests/cost/test_cost_transformer.py -k flops",
    ),
    Mutation(
        "cost/device.py",
        "ceil(ceil(m / rows) * ceil(n / columns) * count / at_once) * at_once",
        "ceil(m / rows) * ceil(n / columns) * count",
        "tests/cost/test_cost_device.py -k wave",
    ),
    Mutation(
        "cost/links.py",
        "sharing = min(self.per_host, stride)",
        "sharing = 1",
        "tests/cost/test_cost_links.py -k share",
    ),
    Mutation(
        "advise/why_not.py",
        "*late, *ranked(near, sort)",
        "*ranked(near, sort)",
        "tests/advise/test_advise_layouts.py -k misses_the_limits",
    ),
    Mutation(
        "advise/answer.py",
        "else check.first(sorted(refused, key=lacks)",
        "else check.first(sorted(found.near, key=lacks)",
        "tests/cli/test_cli_advise.py -m slow -k lack_memory",
    ),
    Mutation(
        "engine/predict/calibrated.py",
        "replicas - parts.sync.backups, least=1.0",
        "replicas, least=1.0",
        "tests/engine/test_calibrated.py -k backup_workers_wait",
    ),
    Mutation(
        "cost/expected.py",
        "for j in range(fastest)]",
        "for j in range(workers)]",
        "tests/cost/test_cost_worker.py -k k_th_fastest",
    ),
    Mutation(
        "engine/predict/schedule_time.py",
        "parts.layout.workers / len(simulation.events) * placed.threads",
        "placed.threads",
        "tests/engine/test_calibrated.py -k tensor_workers_of_a_stage",
    ),
    Mutation(
        "cost/worker.py",
        "max(1.0, busy * alike / cores)",
        "1.0",
        "tests/cost/test_cost_worker.py -k goes_on_more_slowly",
    ),
    Mutation(
        "engine/calibration/timing.py",
        "return median(self.times[case])",
        "return self.times[case][0]",
        "tests/engine/test_calibration_passes.py -k spoils_no_time",
    ),
    Mutation(
        "engine/calibration/timing.py",
        "return median(self.times[case])",
        "return min(self.times[case])",
        "tests/engine/test_calibration_passes.py -k never_quite_at_rest",
    ),
    Mutation(
        "engine/calibration/session.py",
        " and calibration.differing > MOST_DIFFERING:",
        " and calibration.differing < 0:",
        "tests/engine/test_calibration_passes.py -k either_sign",
    ),
    Mutation(
        "engine/predict/exchanges_of_sync.py",
        "> LARGEST_ROWS:",
        "< 0:",
        "tests/engine/test_calibrated.py -k more_rows",
    ),
    Mutation(
        "cost/memory.py",
        "(layout.tensor if layout.split_inputs else 1)",
        "1",
        "tests/cost -k 'recomputation or host_and_back'",
    ),
    Mutation(
        "advise/answer.py",
        " or check.first(wanted, 1)",
        "",
        "tests/advise/test_advise_layouts.py -k another_of_a_layout",
    ),
    Mutation(
        "cost/step.py",
        "bubble=(layout.stages - 1) / layout.chunks *",
        "bubble=layout.stages / layout.chunks *",
        "tests/cost/test_cost_step.py -k bubble",
    ),
    Mutation(
        "cost/memory.py",
        "in_flight = min(layout.stages if first else 1, layout.micro_batches)",
        "in_flight = layout.micro_batches",
        "tests/cost/test_cost_memory.py -k first_stage",
    ),
    Mutation(
        "cost/memory.py",
        "stepped = 12 + software.gradient_copy",
        "stepped = 12",
        "tests/cost/test_cost_memory.py -k float32_copy",
    ),
    Mutation(
        "cost/step.py",
        "- layer.total if layout.overlap else moved",
        "- layer.total",
        "tests/cost/test_cost_step.py -k without_overlap",
    ),
    Mutation(
        "engine/predict/step_time.py",
        "hosts = ceil(workers.workers / machine.devices)",
        "hosts = 1",
        "tests/engine/test_step_time.py -k two_hosts",
    ),
    Mutation(
        "cost/kernels.py",
        "return seconds[-1] * size / sizes[-1]",
        "return seconds[-1]",
        "tests/cost/test_cost_kernels.py -k stream_is_linear",
    ),
    Mutation(
        "cost/alpha_beta.py",
        "rows = np.stack([1 / seconds, nbytes / seconds], axis=1)",
        "rows = np.stack([np.ones(len(seconds)) / seconds.mean(), nbytes / seconds.mean()], axis=1)",
        "tests/cost/test_cost_kernels.py -k relative_residuals",
    ),
    Mutation(
        "engine/predict/exchanges_of_ddp.py",
        "return max(shares_of(parameters, replicas), key=payload)",
        "return parameters",
        "tests/engine/test_calibrated.py -k torch_engine",
    ),
    Mutation(
        "engine/predict/exchanges_of_ddp.py",
        'for _ in ("into its bucket", "out of it")',
        'for _ in ("into its bucket",)',
        "tests/engine/test_calibrated.py -k torch_engine",
    ),
    Mutation(
        "engine/predict/exchanges_of_sync.py",
        "for nbytes in (vector.nbytes, SHARE)]",
        "for nbytes in (vector.nbytes,)]",
        "tests/engine/test_calibrated.py -k torch_engine",
    ),
    Mutation(
        "engine/predict/exchanges_of_sync.py",
        "for liar in sorted(joining.attack.liars(replicas))[:1]:",
        "for liar in []:",
        "tests/engine/test_calibrated.py -k torch_engine",
    ),
    Mutation(
        "cost/worker.py",
        "return max(1.0, self.workers * self.threads / cores)",
        "return 1.0",
        "tests/cost/test_cost_worker.py -k take_turns",
    ),
    Mutation(
        "engine/base/operators.py",
        "if operation.is_view or name in MAKES_NOTHING:",
        "if name in MAKES_NOTHING:",
        "tests/engine/test_operators.py -k views_take",
    ),
    Mutation(
        "cost/predicted.py",
        "return self.flops / (self.seconds * self.workers * self.peak)",
        "return self.flops / (self.seconds * self.peak)",
        "tests/engine/test_step_time.py -k rates_shares",
    ),
    Mutation(
        "benchmarks/published/rows.py",
        'raise Unscored("contradicts itself in its source")',
        "pass",
        "tests/test_published.py -k why",
    ),
    # -- where results go
    Mutation(
        "tracking/redact.py",
        "_URL_LOGIN.sub(HIDDEN, url[0])",
        "url[0]",
        "tests/tracking/test_redact.py",
    ),
    Mutation(
        "tracking/checksums.py",
        'return "whole" if sha256("".join(lines[:-1]).encode()) == last[1] else "changed"',
        'return "whole"',
        "tests/engine/test_stored.py",
    ),
    Mutation(
        "tracking/groups.py",
        "if seed in group:",
        "if seed is None:",
        "tests/tracking/test_groups.py",
    ),
    Mutation(
        "tracking/selection.py",
        "return one != other and all(a >= b for a, b in zip(one, other, strict=True))",
        "return one != other and any(a >= b for a, b in zip(one, other, strict=True))",
        "tests/tracking/test_selection.py",
    ),
    Mutation(
        "tracking/ranking.py",
        "if setting.seeds > 1]",
        "if setting.seeds > 0]",
        "tests/tracking/test_ranking.py",
    ),
    Mutation(
        "tracking/intervals.py",
        "if len(common) >= 2:",
        "if len(common) >= 99:",
        "tests/tracking/test_ranking.py -k slows_all",
    ),
    Mutation(
        "tracking/intervals.py",
        "_student([math.log(y) - math.log(x) for _, x, y in common])",
        "_student([y / x - 1 for _, x, y in common])",
        "tests/tracking/test_intervals.py -k students",
    ),
    Mutation(
        "tracking/ranking.py",
        "best = next((s for s in several if not any(beats(other, s) for other in several)), several[0])",
        "best = several[0]",
        "tests/tracking/test_ranking.py -k other_seeds_is_not_first",
    ),
    # -- distillation
    Mutation(
        "tasks/distillation.py",
        "return temperature**2 * F.kl_div(",
        "return F.kl_div(",
        "tests/engine/test_distillation.py -k 't_squared_keeps or plain_loop'",
    ),
    Mutation(
        "engine/features/distilling.py",
        "return made.eval().requires_grad_(False)",
        "return made.requires_grad_(False)",
        "tests/engine/test_distillation.py -k as_it_is -m slow",
    ),
    Mutation(
        "engine/planning/make_plan.py",
        '        held["buffers"] += 0 if parts.teacher is None else parts.teacher.nbytes()\n',
        "",
        "tests/engine/test_distillation.py -k neither_sent",
    ),
    # -- the command
    Mutation(
        "cli/main.py",
        "note(_sentence(shortened(str(error))))\n        return exit_code",
        "note(_sentence(shortened(str(error))))\n        return 1",
        "tests/cli/test_cli_refusals.py",
    ),
    Mutation(
        "cli/main.py",
        "note(_sentence(shortened(str(error))))\n        return exit_code",
        "return exit_code",
        "tests/cli/test_cli_refusals.py",
    ),
    Mutation(
        "exchange/federated.py",
        "if privacy is not None and not joining.streaming:",
        "if False:",
        "tests/strategies/test_dp_fedavg.py -k cannot_go_with",
    ),
    Mutation(
        "tasks/clusters.py",
        "belongs[first : first + len(x)].T @ x",
        "belongs[: len(x)].T @ x",
        "tests/tasks/test_clusters.py -k mean_of_its_samples",
    ),
    Mutation(
        "tasks/clusters.py",
        "sums / counts.clamp_min(1), centres)",
        "sums / counts.clamp_min(1), sums)",
        "tests/tasks/test_clusters.py -k nearest_to_no_sample",
    ),
    Mutation(
        "exchange/secure/fixed_point.py",
        "0.5 * d**0.5 /",
        "0.5 /",
        "tests/strategies/test_secure.py -k no_longer_than_c",
    ),
    Mutation(
        "exchange/secure/fixed_point.py",
        ".clamp(-self.largest, self.largest) * 2**self.bits",
        " * 2**self.bits",
        "tests/strategies/test_secure_protocol.py -k summed_exactly",
    ),
    Mutation(
        "tasks/adversarial/attacks.py",
        "return 2.5 * eps / max(steps, 1)",
        "return eps / max(steps, 1)",
        "tests/tasks/test_adversarial.py -k edge_from_anywhere",
    ),
    Mutation(
        "tasks/adversarial/attacks.py",
        "threat.within(changed + a * threat.norm.direction(g), x)",
        "threat.within(changed + a * threat.norm.direction(g), changed)",
        "tests/tasks/test_adversarial.py -k 'loop or within_the_range'",
    ),
    Mutation(
        "tasks/adversarial/robust.py",
        '"attack", self.seed, restart)',
        '"attack", self.seed)',
        "tests/tasks/test_adversarial.py -k more_restarts",
    ),
    Mutation(
        "tasks/adversarial/robust.py",
        "(labels + 1) % outputs.shape[-1]",
        "labels + 1",
        "tests/tasks/test_adversarial.py -k leads_to_its_target",
    ),
    Mutation(
        "tasks/adversarial/robust.py",
        "outputs.argmin(dim=-1)",
        "outputs.argmax(dim=-1)",
        "tests/tasks/test_adversarial.py -k leads_to_its_target",
    ),
    Mutation(
        "tasks/adversarial/noise.py",
        "return (z >> bits) & (2 ** (64 - bits) - 1)",
        "return z >> bits",
        "tests/tasks/test_adversarial.py -k spread_evenly",
    ),
    Mutation(
        "tasks/adversarial/noise.py",
        "_mixed(samples * _GOLDEN + key)",
        "_mixed(torch.arange(len(samples)) * _GOLDEN + key)",
        "tests/tasks/test_adversarial.py -k samples_number_alone",
    ),
    Mutation(
        "exchange/privacy/per_sample.py",
        'generator("dp_sgd", self.privacy.seed, step, self._replica)',
        'generator("dp_sgd", self.privacy.seed, step)',
        "tests/strategies/test_dp_sgd.py -k 'noise_of_their_own or sigma_clip'",
    ),
    Mutation(
        "exchange/privacy/per_sample.py",
        "if step != self._step:",
        "if True:",
        "tests/strategies/test_dp_sgd.py -k 'noise or sigma_clip'",
    ),
    Mutation(
        "exchange/privacy/accountant.py",
        "    return high\n",
        "    return low\n",
        "tests/strategies/test_dp_sgd.py -k noise_for_an_epsilon",
    ),
    Mutation(
        "exchange/privacy/dp_fedavg.py",
        "alpha=self.noise * self.clip",
        "alpha=self.noise",
        "tests/strategies/test_dp_fedavg.py -k normal",
    ),
    Mutation(
        "exchange/privacy/dp_fedavg.py",
        'generator("dp_fedavg", self.seed, number)',
        'generator("dp_fedavg", self.seed)',
        "tests/strategies/test_dp_fedavg.py -k normal",
    ),
    Mutation(
        "exchange/privacy/dp_sgd.py",
        "self.at_once, self.seed = at_once, seed",
        "self.at_once, self.seed = at_once, 0",
        "tests/strategies/test_dp_sgd.py -k noise_repeats",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "< 2 * len(keys):",
        "< 0:",
        "tests/strategies/test_secure_protocol.py -k two_keys",
    ),
    Mutation(
        "exchange/secure/protocol.py",
        "if {*seeds} != self._masked or {*keys} != self._held.keys() - self._masked:",
        "if False:",
        "tests/strategies/test_secure_protocol.py -k both_shares",
    ),
    Mutation(
        "exchange/secure/primitives.py",
        'info=b"paceline secure aggregation/" + purpose',
        'info=b"paceline secure aggregation/"',
        "tests/strategies/test_secure_protocol.py -k derived_for",
    ),
    Mutation(
        "exchange/secure/primitives.py",
        "bytes(12), plain, told)",
        "bytes(12), plain, None)",
        "tests/strategies/test_secure_protocol.py -k bit_for_bit",
    ),
    Mutation(
        "exchange/secure/bonawitz.py",
        "if samples * sampled > self.fixed.most():",
        "if samples > self.fixed.most():",
        "tests/strategies/test_secure.py -k more_samples_than_fit",
    ),
    Mutation(
        "exchange/secure/shamir.py",
        "*(draw(P) for _ in range(t - 1))",
        "*(draw(P) for _ in range(t - 2))",
        "tests/strategies/test_secure_protocol.py -k 'fewer_shares'",
    ),
    Mutation(
        "exchange/secure/shamir.py",
        "if secret < 1 << 8 * SECRET else _none()",
        "if True else _none()",
        "tests/strategies/test_secure_protocol.py -k fewer_shares",
    ),
    Mutation(
        "strategies/sync/fedbuff.py",
        "-(-clients // 2)",
        "max(clients // 2, 1)",
        "tests/strategies/test_fedbuff.py -k half_of_the_clients",
    ),
    Mutation(
        "exchange/aggregate/krum.py",
        "return (rows - 3) // 2",
        "return (rows - 2) // 2",
        "tests/strategies/test_aggregate_rules.py -k too_few_rows",
    ),
    Mutation(
        "exchange/aggregate/krum.py",
        "(found[i], totals[i])",
        "found[i]",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/krum.py",
        "self.m or len(rows) - f",
        "self.m or len(rows)",
        "tests/strategies/test_aggregate_rules.py -k is_its_definition",
    ),
    Mutation(
        "exchange/participation.py",
        "generator.integers(1, length + 1)",
        "generator.integers(1, max(length, 2))",
        "tests/strategies/test_federated_clients.py -k leaves_with_its_probability",
    ),
    Mutation(
        "exchange/participation.py",
        "+ self.dropout * (length + 1) / 2",
        "+ self.dropout * length / 2",
        "tests/strategies/test_federated_clients.py -k cost_of_dropout",
    ),
    Mutation(
        "exchange/server/adaptive.py",
        "torch.full_like(way, self.tau**2)",
        "torch.zeros_like(way)",
        "tests/strategies/test_fedavg.py -k 'virtual and algorithm_1'",
    ),
    Mutation(
        "exchange/server/sgd.py",
        ".mul_(self.momentum).add_(way)",
        ".mul_(self.momentum).add_(way, alpha=1 - self.momentum)",
        "tests/strategies/test_fedavg.py -k 'virtual and algorithm_1'",
    ),
    Mutation(
        "exchange/aggregate/bulyan.py",
        "return (rows - 3) // 4",
        "return (rows - 2) // 4",
        "tests/strategies/test_aggregate_rules.py -k too_few_rows",
    ),
    Mutation(
        "exchange/aggregate/bulyan.py",
        "ranking(distances[left][:, left], f)[0]",
        "ranking(distances[left][:, left], 0)[0]",
        "tests/strategies/test_aggregate_rules.py -k is_its_definition",
    ),
    Mutation(
        "exchange/aggregate/mda.py",
        "(subsets := math.comb(n, f)) > SUBSETS",
        "(subsets := math.comb(n, f)) < 0",
        "tests/strategies/test_aggregate_rules.py",
    ),
    Mutation(
        "exchange/aggregate/centered_clipping.py",
        "self._v = v\n",
        "pass\n",
        "tests/strategies/test_aggregate_rules.py -k goes_on_from",
    ),
    Mutation(
        "exchange/aggregate/centered_clipping.py",
        "for _ in range(self.steps):",
        "for _ in range(1):",
        "tests/strategies/test_aggregate_rules.py -k is_its_definition",
    ),
    Mutation(
        "exchange/aggregate/fltrust.py",
        "torch.where(lengths > 0, length / lengths,",
        "torch.where(lengths > 0, length,",
        "tests/strategies/test_aggregate_rules.py -k fltrust",
    ),
    Mutation(
        "exchange/aggregate/before/arc.py",
        "2 * f * (n - f) // n",
        "2 * f // n * (n - f)",
        "tests/strategies/test_aggregate_rules.py -k arc_clips",
    ),
    Mutation(
        "exchange/aggregate/before/bucketing.py",
        "return math.ceil(rows / self.s)",
        "return rows // self.s",
        "tests/strategies/test_aggregate_rules.py -k buckets",
    ),
    Mutation(
        "exchange/aggregate/before/bucketing.py",
        "torch.randperm(len(rows), generator=draws)",
        "torch.arange(len(rows))",
        "tests/strategies/test_aggregate_rules.py -k buckets_are_means",
    ),
    Mutation(
        "exchange/aggregate/self_centered_clipping.py",
        ".sum() / f)",
        ".mean())",
        "tests/strategies/test_joined_ways.py -k nearer_squares",
    ),
    Mutation(
        "exchange/aggregate/draco.py",
        "total += row * share",
        "total += row * float(weights[0])",
        "tests/strategies/test_draco.py -k shares_of_the_samples",
    ),
    Mutation(
        "tasks/partition.py",
        "+ replica * each + min(replica, extra)",
        "+ replica * each + extra",
        "tests/tasks/test_tasks_partition.py -k takes_every_sample_exactly_once",
    ),
    Mutation(
        "tasks/partition.py",
        "np.argsort(_places(self.samples, self.seed, epoch)[mine])",
        "np.argsort(_places(self.samples, self.seed, 0)[mine])",
        "tests/tasks/test_partition_skew.py -k another_epoch",
    ),
    Mutation(
        "exchange/aggregate/zeno.py",
        "self._v = row.clone()",
        "self._v = row",
        "tests/strategies/test_zeno.py",
    ),
    Mutation(
        "exchange/aggregate/zeno.py",
        ">= -self.eps",
        ">= self.eps",
        "tests/strategies/test_zeno.py -k far_enough",
    ),
    Mutation(
        "exchange/aggregate/base.py",
        "min(self.f, most)",
        "self.f",
        "tests/strategies/test_federated_clients.py -k no_more_may_be_left_out",
    ),
    Mutation(
        "exchange/aggregate/base.py",
        "return (rows - 1) // 2",
        "return rows // 2",
        "tests/strategies/test_aggregate_rules.py -k too_few_rows",
    ),
    Mutation(
        "exchange/aggregate/base.py",
        "type(self).coordinatewise and isinstance(self.before, Unchanged)",
        "type(self).coordinatewise",
        "tests/strategies/test_joining.py -k what_comes_before_it_does",
    ),
    Mutation(
        "exchange/aggregate/majority_vote.py",
        "rows.sign().sum(0).sign()",
        "rows.sum(0).sign()",
        "tests/strategies/test_aggregate_rules.py -k is_its_definition",
    ),
    Mutation(
        "exchange/aggregate/mean.py",
        "(weights / weights.sum())",
        "(weights / len(weights))",
        "tests/strategies/test_joining.py -k weighs_rows_by",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "p = -mu.sign()",
        "p = mu.sign()",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "p = -rows.std(0, correction=0)",
        "p = rows.std(0, correction=0)",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/furthest.py",
        "p = -mu / torch",
        "p = mu / torch",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/alie.py",
        "n // 2 + 1 - f",
        "n // 2 - f",
        "tests/strategies/test_attacks.py -k little",
    ),
    Mutation(
        "exchange/attack/backdoor.py",
        "patched[..., -self.size :, -self.size :]",
        "patched[..., : self.size, : self.size]",
        "tests/engine/test_poisoning.py -k has_the_patch",
    ),
    Mutation(
        "exchange/attack/backdoor.py",
        "math.ceil(self.share * len(targets))",
        "math.floor(self.share * len(targets))",
        "tests/engine/test_poisoning.py -k has_the_patch",
    ),
    Mutation(
        "exchange/attack/base.py",
        "range(max(replicas - self.workers, 0), replicas)",
        "range(min(self.workers, replicas))",
        "tests/strategies/test_joining.py -k the_last_replicas",
    ),
    Mutation(
        "exchange/attack/base.py",
        "len(self.liars(replicas)) == replicas",
        "len(self.liars(replicas)) > replicas",
        "tests/strategies/test_attacks.py -k makes_no_sense",
    ),
    Mutation(
        "exchange/attack/constant.py",
        "torch.full_like(own, self.value)",
        "torch.zeros_like(own)",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/inner_product.py",
        "* -self.eps",
        "* self.eps",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/label_flip.py",
        "classes - 1 - targets",
        "(targets + 1) % classes",
        "tests/engine/test_poisoning.py -k from_the_other_end",
    ),
    Mutation(
        "exchange/attack/mimic.py",
        "min(self.copies, len(seen.honest) - 1)",
        "0",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/attack/mimic.py",
        "min(self.copies, len(seen.honest) - 1)",
        "self.copies",
        "tests/strategies/test_attacks.py -k turned_noised",
    ),
    Mutation(
        "exchange/attack/noise.py",
        "generator(self.seed, seen.step, seen.replica)",
        "generator(self.seed, seen.step)",
        "tests/strategies/test_attacks.py -k noise",
    ),
    Mutation(
        "exchange/attack/noise.py",
        "return own + noise if self.added else noise",
        "return own + noise",
        "tests/strategies/test_attacks.py -k noise",
    ),
    Mutation(
        "exchange/attack/sign_flip.py",
        "own * -self.scale",
        "-own",
        "tests/strategies/test_attacks.py",
    ),
    Mutation(
        "exchange/joining.py",
        "f = max(min(left, rule.most(len(mixed))), 0)",
        "f = left",
        "tests/strategies/test_aggregate_rules.py -k fewer_liars_are_told_of",
    ),
    Mutation(
        "exchange/seeded.py",
        '"/".join(map(str, told))',
        '"".join(map(str, told))',
        "tests/strategies/test_seeded.py",
    ),
    Mutation(
        "engine/callbacks/purity.py",
        ".amax(dim=1)",
        ".amax(dim=0)",
        "tests/engine/test_iterating.py -k purity_counts",
    ),
    Mutation(
        "engine/callbacks/by_client.py",
        "sorted(values)[: max",
        "sorted(values, reverse=True)[: max",
        "tests/engine/test_by_client.py -k plain_loop",
    ),
    Mutation(
        "tasks/data/sparse.py",
        "** -self.skew",
        "** self.skew",
        "tests/tasks/test_sparse_data.py -k power_of_the_rank",
    ),
    Mutation(
        "tasks/data/sparse.py",
        "(labels ^ (rng.random(labels.shape) < self.noise))",
        "(labels ^ (rng.random(labels.shape) < 2 * self.noise))",
        "tests/tasks/test_sparse_data.py -k but_for_the_noise",
    ),
    Mutation(
        "tasks/data/svmlight.py",
        "features[:, :1])",
        "0)",
        "tests/tasks/test_sparse_data.py -k no_features_but_its_own",
    ),
    Mutation(
        "tasks/data/text.py",
        "text[train + 1 :]",
        "text[train:]",
        "tests/tasks/test_tasks_text.py",
    ),
    Mutation(
        "tasks/data/digits.py",
        "inputs[TRAIN:], targets[TRAIN:]",
        "inputs[TRAIN - 1 : -1], targets[TRAIN - 1 : -1]",
        "tests/tasks/test_tasks_digits.py",
    ),
    Mutation(
        "tasks/data/diabetes.py",
        "measured[order] * SAMPLES**0.5",
        "measured[order]",
        "tests/tasks/test_tasks_diabetes.py",
    ),
    Mutation(
        "tasks/data/disks.py",
        "<= r**2",
        "<= r",
        "tests/tasks/test_unet.py -k in_the_disk",
    ),
    Mutation(
        "tasks/data/arrays.py",
        "if len({*lengths.values()}) > 1:",
        "if False:",
        "tests/tasks/test_arrays.py -k cannot_be_learnt",
    ),
    Mutation(
        "tasks/data/table.py",
        "_standard(split.inputs, by.inputs)",
        "_standard(split.inputs, split.inputs)",
        "tests/tasks/test_own_files.py -k standardised",
    ),
    Mutation(
        "tasks/data/torch_dataset.py",
        "max(int(targets.max()) + 1, 2)",
        "int(targets.max())",
        "tests/tasks/test_torch_dataset.py -k not_split",
    ),
    Mutation(
        "tasks/data/images.py",
        ".float() / 255",
        ".float()",
        "tests/tasks/test_own_files.py -k images",
    ),
    Mutation(
        "tasks/models/pca.py",
        "torch.stack([spread.detach(), spread - kept], dim=1)",
        "torch.stack([spread.detach(), spread - kept / 2], dim=1)",
        "tests/tasks/test_unsupervised.py -k explained_variance",
    ),
    Mutation(
        "tasks/losses/binary.py",
        "pos_weight=p",
        "pos_weight=None",
        "tests/tasks/test_tasks_losses.py -k binary",
    ),
    Mutation(
        "tasks/losses/cross_entropy.py",
        'reduction="none", label_smoothing=self._epsilon',
        'reduction="none"',
        "tests/tasks/test_tasks_losses.py -k smooth",
    ),
    Mutation(
        "tasks/losses/huber.py",
        '"none", self.delta',
        '"none", 1.0',
        "tests/tasks/test_tasks_losses.py -k huber",
    ),
    Mutation(
        "tasks/losses/metrics.py",
        "(y - y.mean(dim=0))",
        "(y - y.mean())",
        "tests/tasks/test_tasks_losses.py -k r2",
    ),
    Mutation(
        "tasks/losses/metrics.py",
        "(tally == 0).double()",
        "torch.zeros_like(tally)",
        "tests/tasks/test_tasks_losses.py -k r2",
    ),
    Mutation(
        "tasks/losses/metrics.py",
        "> 0) == (targets > 0.5)",
        ">= 0) == (targets >= 0.5)",
        "tests/tasks/test_tasks_losses.py -k above_a_half",
    ),
    Mutation(
        "tasks/losses/squared.py",
        "F.mse_loss(outputs, targets.reshape(outputs.shape)",
        "F.mse_loss(outputs, targets",
        "tests/tasks/test_tasks_losses.py -k squared_loss",
    ),
    Mutation(
        "tasks/models/gpt.py",
        "(2 * n_layer) ** -0.5",
        "(2 * n_layer) ** -1.0",
        "tests/tasks/test_tasks_models.py -k gpt_2s",
    ),
    Mutation(
        "tasks/models/gpt.py",
        "is_causal=self.causal",
        "is_causal=False",
        "tests/tasks/test_tasks_models.py -k 'look_ahead'",
    ),
    Mutation(
        "tasks/models/unet.py",
        "nn.MaxPool2d(2), below",
        "nn.AvgPool2d(2), below",
        "tests/tasks/test_unet.py -k plain_functions",
    ),
    Mutation(
        "tasks/models/random_features.py",
        "sqrt(2 * gamma)",
        "sqrt(gamma)",
        "tests/tasks/test_random_features.py -k gaussian_kernel",
    ),
    Mutation(
        "tasks/models/random_features.py",
        "generator=generator) * 2 * pi",
        "generator=generator) * 2",
        "tests/tasks/test_random_features.py -k gaussian_kernel",
    ),
    Mutation(
        "tasks/models/resnet.py",
        "F.relu(residual + self.shortcut(x))",
        "residual + self.shortcut(x)",
        "tests/tasks/test_resnet.py -k plain_functions",
    ),
    Mutation(
        "tasks/models/vit.py",
        "return x[:, 0]",
        "return x[:, -1]",
        "tests/tasks/test_vit.py -k torchs_encoder",
    ),
    Mutation(
        "tasks/models/sparse_logistic_regression.py",
        "nn.init.zeros_(self.rows.weight)",
        "pass",
        "tests/tasks/test_sparse_logistic_regression.py -k uniform_guess",
    ),
    Mutation(
        "tasks/distillation.py",
        "(1 - self.alpha) * plain(z, y) + self.alpha *",
        "self.alpha * plain(z, y) + (1 - self.alpha) *",
        "tests/engine/test_distillation.py -k what_alpha_leaves",
    ),
    Mutation(
        "tasks/clients.py",
        "np.cumsum(counts)[:-1] / counts.sum()",
        "np.arange(1, len(counts)) / len(counts)",
        "tests/engine/test_by_client.py -k by_its_share",
    ),
    Mutation(
        "engine/features/private.py",
        "experiment.batch_size * layout.replicas / samples",
        "experiment.batch_size / samples",
        "tests/strategies/test_dp_sgd.py -k spends_and_holds",
    ),
    Mutation(
        "engine/features/private.py",
        "rounds = -(-made // (sync.epochs * steps_per_epoch))",
        "rounds = made // (sync.epochs * steps_per_epoch)",
        "tests/strategies/test_dp_fedavg.py -k ends_inside_of",
    ),
    Mutation(
        "engine/features/private.py",
        "if found.delta > MUCH:",
        "if found.delta < 0:",
        "tests/strategies/test_dp_fedavg.py -k hide_among",
    ),
]


class WrongListError(Exception):
    """What this list says is not so."""


def copy_of_the_tree(to: Path) -> None:
    """The files that git knows of or would take, as they are now, and `paceline` made of its rooms."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (to / "paceline").mkdir()
    for room in ROOMS:
        (to / "paceline" / room).symlink_to(to / room)


def environment(tree: Path) -> dict[str, str]:
    """In which Python imports `paceline` from the copy, in every process that is started; no file is compiled."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def check_imports(tree: Path) -> None:
    code = "import paceline.engine; print(paceline.engine.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment(tree), capture_output=True, text=True
    )
    if not found.stdout.startswith(str(tree)):
        raise WrongListError(f"the copy is not what is imported: {found.stdout}{found.stderr}")


def pytest(tree: Path, tests: str) -> tuple[int, str]:
    """Its exit status, and the end of what it said."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--all-cases", "-m", "not slow and not fault and not browser"]
    command = [sys.executable, "-m", "pytest", *options, *shlex.split(tests)]
    done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-12:])


@cache
def check_unbroken(tree: Path, tests: str) -> None:
    status, said = pytest(tree, tests)
    if status:
        raise WrongListError(f"unbroken, pytest {tests} ends with {status}:\n{said}")


def kills(tree: Path, mutation: Mutation) -> bool:
    """Whether a test fails when the line is broken."""
    path = tree / mutation.file
    whole = path.read_text()
    if (count := whole.count(mutation.old)) != 1:
        raise WrongListError(f"{mutation.file}: has {count} times, not once:\n{mutation.old}")
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        status, said = pytest(tree, mutation.tests)
    finally:
        path.write_text(whole)
    if status not in (0, FAILED):
        raise WrongListError(f"{mutation.file}: pytest {mutation.tests} ends with {status}:\n{said}")
    return status == FAILED


def main(words: list[str]) -> int:
    chosen = [one for one in MUTATIONS if not words or any(word in one.file + one.tests for word in words)]
    survived = wrong = 0
    with tempfile.TemporaryDirectory(prefix="paceline-mutations-") as name:
        tree = Path(name)
        copy_of_the_tree(tree)
        check_imports(tree)
        for mutation in chosen:
            began = time.monotonic()
            try:
                check_unbroken(tree, mutation.tests)
                killed = kills(tree, mutation)
                verdict = "fails, as it must" if killed else "SURVIVED"
                survived += not killed
            except (WrongListError, subprocess.TimeoutExpired) as error:
                verdict, wrong = f"WRONG: {error}", wrong + 1
            line = mutation.old.splitlines()[0]
            print(f"{mutation.file:38} {line[:60]:60} {time.monotonic() - began:5.0f} s  {verdict}", flush=True)
    print(f"{len(chosen)} lines broken: {len(chosen) - survived - wrong} noticed, {survived} survived, {wrong} wrong")
    return 2 if wrong else 1 if survived else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WrongListError as error:
        sys.exit(f"mutations: {error}")
