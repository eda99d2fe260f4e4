"""The gradients of a script's step, from `run.backward` to `run.optimizer.step`.

The script may read, change and drop them. Where all replicas step with one gradient, all of them must step with the
same changed one. So in each step they compare a digest of each changed gradient. Where digests differ (noise that each
worker draws by itself), all take the gradient of worker 0: K workers then train as one does.
"""

import hashlib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from ..compat.hidden import Hidden, hidden
from ..compat.optimizers import hooks_of
from ..compat.storages import version_of
from ..exchange.alike import digest, digest_of, first_apart, first_other, is_compared
from ..exchange.finishing import Finished, FinishesGradients
from ..strategies import Sync
from ..strategies.core.foreign import parameters_of
from ..strategies.core.memory_format import laid_out
from .errors import ScriptError
from .strangers import Strangers

Seen = tuple[int, int, int]


class Gradients:
    """`finished`: what `.grad` has since the step's last backward pass; None before it."""

    def __init__(
        self, sync: Sync, stepped: Iterable[nn.Parameter], optimizer: Optimizer, comm: Comm, shard: str | None
    ) -> None:
        """Takes a sync mode that is prepared.

        Args:
            stepped: The parameters of the script's optimizer, as it was before the sync mode took it over.
            comm: The replicas.
            shard: The value of sync.shard, for messages.
        """
        self._sync, self._optimizer, self._comm = sync, optimizer, comm
        self._shard = f"sync.shard={shard}"
        self._at_start, self._of_mode = [*stepped], self._of_optimizer()
        self.finished: Finished | None = None
        self._kept: list[Seen | None] = []
        self._paused: list[Seen | None] | None = None  # the gradients between two passes of a step
        self._added = self._changed = False  # since then by a pass of the script's own; in the step, by the script
        self._held: list[tuple[nn.Parameter, Tensor | None]] = []  # the gradients that stand-ins take the place of
        self._left: list[tuple[nn.Parameter, Tensor]] = []  # the gradients of a step that was not made
        self._strangers = Strangers(comm, next(iter(sync.parameters.values())).device)
        self._passing = self._hides = self._looks = self._made = False
        self._asks = True  # nobody knows yet if the script drops the gradients of a step that was made
        self._zeros: list[tuple[nn.Parameter, Tensor, int]] = []  # in their place, with their versions
        self._batch = 0  # of the step's last pass
        self._own_hooks = hooks_of(optimizer)
        self._hooks = [each.register_post_accumulate_grad_hook(self._comes) for each in sync.parameters.values()]

    def close(self) -> None:
        """Leaves no hooks."""
        for hook in self._hooks:
            hook.remove()

    # -- a step

    def clear(self, looks: bool = False) -> None:
        """A step that was made leaves no gradients.

        Args:
            looks: Zeros take the place of those of the first, and tell if the script drops them before its next pass.
        """
        had = [(each, gradient) for each in self._stepped() if not isinstance(gradient := each.grad, Hidden | None)]
        self._optimizer.zero_grad()
        self.zero()
        for each in self._all():
            if isinstance(each.grad, Hidden):
                each.grad = None
        if looks and self._made and self._asks:
            self._asks = False
            for each, gradient in had:
                if not bool(gradient.any()):  # the script has set it to zero
                    continue
                each.grad = zeros = torch.zeros_like(gradient)
                self._zeros.append((each, zeros, version_of(zeros)))

    def zero(self, set_to_none: bool = True) -> None:
        """Does what `zero_grad` of the script's optimizer does."""
        for each in self._stepped():
            if each.grad is None:
                continue
            if set_to_none or isinstance(each.grad, Hidden):
                each.grad = None
            else:
                each.grad.detach().zero_()

    def begin(self, looks: bool) -> list[tuple[nn.Parameter, Tensor]]:
        """Returns the gradients of the script's own backward passes: the first `run.backward` of a step adds to them.

        Raises `ScriptError` where the gradients of a step that was not made are still there.

        Args:
            looks: Changes that no version of a tensor tells, by `.grad.data` or NumPy, are found in this step, too.
        """
        for each, gradient in self._left:
            if each.grad is not gradient:
                continue
            if isinstance(gradient, Hidden) or bool(gradient.any()):
                raise ScriptError(
                    "backward: the gradients of the last batch are still there, with no optimizer.step() since. "
                    "Accumulate gradients by last=False, or drop them by run.optimizer.zero_grad()"
                )
            each.grad = None
        self._left = []
        self._drop_zeros()
        self.finished, self._paused, self._changed, self._looks = None, None, False, looks
        return [(each, each.grad) for each in self._all() if each.grad is not None]

    def _drop_zeros(self) -> None:
        """Prints a note, once, if the script keeps the gradients of a step that was made."""
        held = [each for each, zeros, version in self._zeros if each.grad is zeros and version_of(zeros) == version]
        self._zeros = []
        for each in held:
            each.grad = None
        if held and self._comm.rank == 0:
            print(
                "note: the script does not drop the gradients of a step that was made. They are dropped, where torch "
                "adds them up. Call run.optimizer.zero_grad() in each step.",
                file=sys.stderr,
                flush=True,
            )

    def backward(self, loss: Tensor) -> None:
        self._changed |= self._are_changed()
        self._passing = True
        try:
            loss.backward()
        finally:
            self._passing = False

    def finish(self, batch: int) -> None:
        """Exchanges the gradients after the last backward pass, if the sync mode can do that before its update.

        `batch`: the number of the batch that this pass was on, by which workers see that one of them left one out.
        Raises `ScriptError` if the script changed gradients between the passes of a step that replicas make together:
        each worker had only its own.
        """
        self._batch = batch
        if isinstance(self._sync, FinishesGradients):
            self.finished = self._sync.finish_gradients()
        else:
            self.finished = Finished.UNSENT if self._sync.traits.steps_together else Finished.OWN
        if self._changed and self._comm.size > 1 and self.finished is not Finished.OWN:
            raise ScriptError(
                "backward: the gradients were changed between two passes of a step, when each worker had only those of "
                "its own samples. Change them after the last pass, before run.optimizer.step()"
            )
        if self.finished is Finished.SHARDED:
            self._held = [(each, each.grad) for each in self._all()]
            for each, _ in self._held:
                each.grad = hidden(each, self._refuse)
        self._kept = self._seen()

    def pause(self) -> None:
        """Notes the gradients after a pass that is not the step's last."""
        self._paused, self._added = self._seen(), False

    def _are_changed(self) -> bool:
        """Returns True if the script changed gradients since `pause`. It may drop them, and add those of own passes."""
        if self._paused is None or self._added:
            return False
        now = zip(self._all(), self._paused, self._seen(), strict=True)
        return any(was != found and each.grad is not None and bool(each.grad.any()) for each, was, found in now)

    def settle(self, step: int) -> None:
        """Gives all replicas the gradients that the script left, before the update. Raises `ScriptError`."""
        if self.finished is Finished.SHARDED and hooks_of(self._optimizer) != self._own_hooks:
            raise ScriptError(
                f"{self._shard}: a worker steps on pieces of tensors, and step hooks of the optimizer may look at "
                "whole ones. Choose sync.shard=none, or make the change after run.optimizer.step()"
            )
        changed = self._kept != self._seen()
        if changed and self.finished in (Finished.UNSENT, Finished.SHARDED):
            raise ScriptError(
                "optimizer.step: the gradients were changed after run.backward, and this sync mode exchanges them in "
                "the step. Choose clip=norm or clip=value in wrap, or sync=bsp with sync.shard=none."
            )
        self._agree(step, skips=False, changed=changed and self.finished is Finished.MEAN)
        for each, gradient in self._held:
            each.grad = gradient
        self._held, self._hides, self.finished, self._made = [], self.finished is Finished.SHARDED, None, True

    def hide_others(self) -> None:
        """Hides sharded gradients after the update from another optimizer, which would find none and leave weights."""
        if self._hides:
            own = {id(each) for each in self._stepped()}
            for each in self._sync.parameters.values():
                if id(each) not in own:
                    each.grad = hidden(each, self._refuse)

    def are_dropped(self) -> bool:
        """Returns True if the step that the script does not make has no gradients, or infinite or NaN ones."""
        found = [each.grad for each in self._stepped() if each.grad is not None]
        seen = [each for each in found if not isinstance(each, Hidden)]
        return not found or not all(bool(each.isfinite().all()) for each in seen)

    def skip(self, step: int) -> None:
        """Leaves the step out, in place of the update. Gradients that the script did not drop stay, until it does."""
        left = [] if self.are_dropped() else [(each, each.grad) for each in self._stepped() if each.grad is not None]
        self._agree(step, skips=True, changed=False)
        for each in self._all():
            if isinstance(each.grad, Hidden):
                each.grad = None
        self._held = []
        self._sync.skip()
        self.clear()
        for each, gradient in left:
            each.grad = gradient
        self._left, self.finished = left, None

    def look(self, loss: Tensor, is_first: bool) -> None:
        """Notes the parameters of a step's pass that the model lacks. `is_first`: it is the step's first pass."""
        if is_first:
            self._strangers.look()
        self._strangers.meet(parameters_of(loss), self._all())

    def meet(self, optimizer: Optimizer) -> None:
        """Notes what another optimizer has stepped with."""
        stepped = [each for group in optimizer.param_groups for each in group["params"]]
        self._strangers.meet((each for each in stepped if each.grad is not None), self._all())

    # -- what the script does meanwhile

    def _comes(self, gradient: Tensor) -> None:
        self._added |= not self._passing
        if self.finished not in (None, Finished.OWN) and not self._passing:
            raise ScriptError(
                "loss.backward() after run.backward and before optimizer.step(): workers have exchanged the step's "
                "gradients by then. Add it to the loss of run.backward, or call it before run.backward"
            )

    def _refuse(self) -> NoReturn:
        raise ScriptError(
            f"{self._shard}: each worker keeps a part of the gradients, so that a script cannot read or change them, "
            "or add to them by loss.backward(), between run.backward and optimizer.step. Choose clip=norm or "
            "clip=value in wrap, or sync.shard=none."
        )

    def _all(self) -> list[nn.Parameter]:
        """The model's parameters, and those that the optimizer steps with."""
        found = [*self._sync.parameters.values(), *self._at_start, *self._of_optimizer()]
        return list({id(each): each for each in found}.values())

    def _stepped(self) -> list[nn.Parameter]:
        """Returns the parameters of the script's optimizer, those that were added in mid-run included."""
        known = {id(each) for each in self._of_mode}
        return [*self._at_start, *(each for each in self._of_optimizer() if id(each) not in known)]

    def _of_optimizer(self) -> list[nn.Parameter]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def _seen(self) -> list[Seen | None]:
        """Returns the identity, the version and maybe a digest of each gradient."""

        def seen(gradient: Tensor) -> Seen:
            looks = self._looks and not isinstance(gradient, Hidden)
            return id(gradient), version_of(gradient), digest_of(gradient) if looks else 0

        found = [each.grad for each in self._all()]
        return [None if each is None else seen(each) for each in found]

    # -- what replicas agree on

    def _agree(self, step: int, skips: bool, changed: bool) -> None:
        if self._comm.size == 1 or self.finished is Finished.OWN:
            return
        parameters = self._sync.parameters
        found = [each.grad for each in parameters.values()]
        has = [int(each is not None) for each in found]
        digests = [digest_of(each) if changed else 0 for each in found]
        device = next(iter(parameters.values())).device
        settings = digest(hashlib.blake2b(), [*map(_settings, self._optimizer.param_groups)])
        mine = torch.tensor([int(skips), int(changed), settings, self._batch, *has, *digests], device=device)
        with self._comm.ledger.aside():
            every = self._comm.all_gather(mine).cpu()
        self._check_batches(every[:, 3].tolist(), step)
        self._check_skips(every[:, 0].tolist(), step)
        self._check_settings(every[:, 2].tolist(), step)
        if is_compared(step):
            self.compare_weights(step - 1)
        if skips or self.finished is not Finished.MEAN:
            return
        changes, there, of_each = every[:, 1:2], every[:, 4 : 4 + len(has)], every[:, 4 + len(has) :]
        differ = ((changes != changes[0]) | (there != there[0]) | (of_each != of_each[0])).any(0).tolist()
        with self._comm.ledger.aside():
            for parameter, differs, is_there in zip(parameters.values(), differ, there[0].tolist(), strict=True):
                if differs:
                    self._take_the_first(parameter, bool(is_there))

    def _check_batches(self, batches: list[int], step: int) -> None:
        if other := first_other(batches):
            raise ScriptError(
                f"backward: worker {other} makes step {step} on batch {batches[other]}, and worker 0 on batch "
                f"{batches[0]}: one of them left out a batch. Leave out a batch by values that all workers have, and "
                "not by a worker's own samples"
            )

    def _check_skips(self, skips: list[int], step: int) -> None:
        if len(set(skips)) > 1:
            raise ScriptError(
                f"optimizer.step: worker {skips.index(0)} takes step {step} and worker {skips.index(1)} skips it. "
                "Choose by values that all workers have: the gradients after run.backward in sync=bsp with "
                "sync.shard=none, but not a worker's own loss."
            )

    def _check_settings(self, settings: list[int], step: int) -> None:
        if other := first_other(settings):
            raise ScriptError(
                f"optimizer.step: worker {other} steps with other settings of the optimizer (such as lr) than worker 0 "
                f"at step {step}. Set them by values that all workers have, and not by a worker's own loss"
            )

    def compare_weights(self, steps: int) -> None:
        """Compares the replicas' weights after so many steps. Raises `ScriptError`."""
        if self._comm.size == 1:
            return
        self._strangers.compare(steps)
        if not self._sync.traits.weights_agree:
            return
        digests = {name: digest_of(each) for name, each in self._sync.parameters.items()}
        found = first_apart(digests, self._comm, next(iter(self._sync.parameters.values())).device)
        if found is None:
            return
        name, other = found
        raise ScriptError(
            f"wrap: parameter {name} of worker {other} differs from that of worker 0 after {steps} steps. The "
            "script must change weights and optimizer state alike on all workers, or choose sync=local_sgd."
        )

    def _take_the_first(self, parameter: nn.Parameter, is_there: bool) -> None:
        """Takes the gradient that worker 0 has of `parameter`."""
        if not is_there:
            parameter.grad = None
            return
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = gradient.detach().contiguous()
        self._comm.broadcast(gradient, src=0).wait()
        parameter.grad = laid_out(gradient, parameter)


def _settings(group: dict[str, Any]) -> str:
    """Returns a parameter group's settings as text."""
    found = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
    return repr(sorted((key, value) for key, value in found.items() if isinstance(value, bool | int | float | tuple)))
