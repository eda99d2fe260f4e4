"""`evaluate.attack`: test samples that are changed to make the model err, at each evaluation and over eps at the end.

It is done where evaluation is done: on the chief, on a whole model with the weights that were gathered in, which are
the replicas' consensus. So it goes with every strategy and sync mode, and sends nothing.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...batches import Samples, lone
from ...conf.errors import ConfigError
from ...tasks.adversarial.attacks import ascent, default_step, evaluating
from ...tasks.adversarial.robust import InputAttack, RobustAccuracy, Signs, robustness, zero_gradients
from ...tasks.adversarial.threat import NORMS, NormName, Threat
from ...tasks.base import DataSpec, Readable
from ...tasks.losses.base import Task
from ...tracking.run_directory import RunDirectory
from ..callbacks.base import EvaluationView
from ..config.experiment import Evaluate, Experiment
from .feature import Chosen, Context, Feature, Hooks, Parts
from .sizes import evaluated_at_once

EPS, STEPS = 0.1, 20
TIMES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # eps, of the curve
EXAMPLES, MOST_PIXELS = 6, 128 * 128
OF_PGD = ("steps", "step_size", "restarts", "random_start")


class EvaluatedOnAttacks(Feature):
    """Models are attacked when they are evaluated."""

    key = "evaluate"

    @classmethod
    def of(cls, chosen: Chosen) -> Self:
        return cls()

    def check(self, chosen: Chosen) -> None:
        check(chosen.experiment, chosen.data.spec)

    def activations(self, parts: Parts, inputs: Samples, targets: Samples) -> int:
        """Takes one pass back to the inputs, which a model may lack; its memory is that of evaluations."""
        if parts.experiment.evaluate.attack != "none":
            with evaluating(parts.model):
                ascent(parts.model, parts.task.function(parts.data.spec), lone(inputs), targets)
        return 0

    def hooks(self, context: Context) -> Hooks | None:
        parts = context.parts
        if not context.is_chief or parts.experiment.evaluate.attack == "none":
            return None
        test = parts.load()[1]
        return Robustness(parts.experiment, parts.data.spec, parts.task, test, evaluated_at_once(parts))


def needs_range(what: str, data: str, spec: DataSpec) -> tuple[float, float]:
    """The range of inputs that an attack may change; `what` wants it. Raises `ConfigError`."""
    leave = f"Choose {what.partition('=')[0]}=none, or data with pixels, such as data=digits and data=fashion_mnist."
    if spec.inputs is not None:
        raise ConfigError(f"{what}: changes one tensor, and a sample of data={data} has several inputs. {leave}")
    if spec.features is not None:
        raise ConfigError(f"{what}: changes dense samples, and those of data={data} are sparse. {leave}")
    if not spec.input_dtype.is_floating_point:
        raise ConfigError(
            f"{what}: changes numbers a little, and the inputs of data={data} are {spec.input_dtype}, of which there "
            f"is no little (tokens). {leave}"
        )
    if spec.targets != "labels":
        raise ConfigError(
            f"{what}: has models err in their classes, and the targets of data={data} are numbers. {leave}"
        )
    if spec.range is None:
        raise ConfigError(
            f"{what}: counts by the range of inputs, and data={data} states none; data.range=[0,1] does of "
            "data=arrays, DataSpec(range=(0.0, 1.0)) of a class of your own"
        )
    return spec.range


def check(experiment: Experiment, spec: DataSpec) -> None:
    """Raises `ConfigError`."""
    chosen = experiment.evaluate
    given = {name: value for name, value in chosen.model_dump().items() if value is not None and name != "every"}
    attack = given.pop("attack")
    for name, value in given.items():
        if attack == "none":
            raise ConfigError(
                f"evaluate.{name}={value}: is of an attack, and there is none; evaluate.attack=pgd is one"
            )
        if attack == "fgsm" and name in OF_PGD:
            raise ConfigError(
                f"evaluate.{name}={value}: fgsm is one step of length eps from the sample itself; evaluate.attack=pgd "
                f"has {', '.join(OF_PGD)}"
            )
    if attack == "none":
        return
    needs_range(f"evaluate.attack={attack}", experiment.data.name, spec)
    if chosen.eps is not None:
        _check_eps(chosen.eps, chosen.norm or "linf", spec)
    if spec.test_size is not None:
        check_samples(experiment, spec.test_size)
    if (chosen.restarts or 1) > 1 and chosen.random_start is False:
        raise ConfigError(
            f"evaluate.restarts={chosen.restarts}: begins in other places, and with evaluate.random_start=false there "
            "is one. Choose true, or restarts=1."
        )
    if isinstance(chosen.target, int) and chosen.target >= spec.classes:
        raise ConfigError(
            f"evaluate.target={chosen.target}: data={experiment.data.name} has the classes 0 to {spec.classes - 1}"
        )
    if chosen.curve is not None and not chosen.curve:
        raise ConfigError("evaluate.curve=[]: must have one value of eps or more (null: multiples of evaluate.eps)")
    for eps in chosen.curve or ():
        check_furthest("evaluate", "curve", eps, chosen.norm or "linf", spec)


def _check_eps(eps: float, norm: NormName, spec: DataSpec) -> None:
    """Raises `ConfigError`."""
    if eps == 0:
        raise ConfigError(
            "evaluate.eps=0: changes nothing, and what is left is the accuracy. Choose more, such as evaluate.eps=0.1."
        )
    check_furthest("evaluate", "eps", eps, norm, spec)


def check_furthest(group: str, key: str, eps: float, norm: str, spec: DataSpec) -> None:
    """Raises `ConfigError` where `group`.`key`, a share of the data's range, is more than any two samples differ by."""
    entries = prod(spec.input_shape)
    furthest = 1.0 if norm == "linf" else entries**0.5
    if eps > furthest:
        why = "" if norm == "linf" else f", the square root of its {entries:,} entries"
        raise ConfigError(
            f"{group}.{key}={eps:g}: is a share of the data's range, and with {group}.norm={norm} any sample becomes "
            f"any other by {furthest:.4g}{why}. Choose at most that."
        )


def check_samples(experiment: Experiment, test_size: int) -> None:
    """Raises `ConfigError`."""
    samples = experiment.evaluate.samples
    if samples is not None and samples > test_size:
        raise ConfigError(
            f"evaluate.samples={samples}: data={experiment.data.name} has {test_size:,} test samples. Choose at most "
            "so many, or null for all."
        )


def attack_of(chosen: Evaluate, spec: DataSpec, seed: int) -> InputAttack:
    """Returns the chosen attack, with defaults in place of None."""
    assert spec.range is not None and chosen.attack != "none", "was checked"
    eps = EPS if chosen.eps is None else chosen.eps
    steps = STEPS if chosen.steps is None else chosen.steps
    return InputAttack(
        method=chosen.attack,
        threat=Threat(NORMS[chosen.norm or "linf"], eps, *spec.range),
        steps=steps,
        step_size=default_step(eps, steps) if chosen.step_size is None else chosen.step_size,
        restarts=chosen.restarts or 1,
        random_start=chosen.random_start is not False,
        target=chosen.target,
        seed=seed,
    )


class Robustness(Hooks):
    """Attacks the models that the chief evaluates."""

    def __init__(self, experiment: Experiment, spec: DataSpec, task: Task, test: Readable, at_once: int) -> None:
        check_samples(experiment, len(test))
        self._chosen, self._spec, self._task, self._test = experiment.evaluate, spec, task, test
        self._attack = attack_of(experiment.evaluate, spec, experiment.seed)
        self._at_once = at_once
        self.last: dict[str, float] = {}

    def evaluated(self, view: EvaluationView) -> Mapping[str, float]:
        return self.measured(view.model, view.device)

    def metrics(self) -> Mapping[str, float]:
        return self.last

    def conclude(self, judged: nn.Module, device: torch.device, directory: RunDirectory) -> None:
        if self.last:
            directory.write_adversarial(self.at_end(judged, device))

    def measured(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Returns the metrics of an evaluation: `robust_accuracy`, and with a target `target_reached`."""
        found = self._robust(self._attack, model, device)
        self.last = {"robust_accuracy": found.accuracy}
        if found.reached is not None:
            self.last["target_reached"] = found.reached
        return self.last

    def at_end(self, model: nn.Module, device: torch.device) -> dict[str, Any]:
        """Returns the contents of adversarial.json (tracking/adversarial.py)."""
        attack, chosen = self._attack, self._chosen
        eps = sorted({*(chosen.curve or [times * attack.threat.eps for times in TIMES])})
        methods: list[InputAttack] = [attack]
        if attack.method == "pgd":
            methods.append(InputAttack("fgsm", attack.threat, target=attack.target))
        methods.append(InputAttack("noise", attack.threat, seed=attack.seed))
        curves = {
            each.method: [self._robust(each.at(value), model, device).accuracy for value in eps] for each in methods
        }
        return {
            "method": attack.method,
            "norm": attack.threat.norm.name,
            "eps": attack.threat.eps,
            "steps": attack.steps if attack.method == "pgd" else 1,
            "step_size": attack.step_size if attack.method == "pgd" else attack.threat.eps,
            "restarts": attack.restarts,
            "target": None if attack.target is None else str(attack.target),
            "samples": min(len(self._test), chosen.samples or len(self._test)),
            "curve": {"eps": eps, **curves},
            "doubts": self._doubts(model, device),
            "examples": self._examples(model, device),
        }

    def _robust(self, attack: InputAttack, model: nn.Module, device: torch.device) -> RobustAccuracy:
        return robustness(self._task, model, self._test, attack, self._at_once, device, self._chosen.samples)

    def _doubts(self, model: nn.Module, device: torch.device) -> list[str]:
        """Signs of masked gradients; led away from labels, as a target may be out of reach for good reasons."""
        attack = replace(self._attack, target=None)
        samples = min(len(self._test), self._chosen.samples or len(self._test))
        threat = attack.threat
        fgsm = self._robust(InputAttack("fgsm", threat), model, device).accuracy
        noise = self._robust(InputAttack("noise", threat, seed=attack.seed), model, device).accuracy
        half = None
        if attack.method == "pgd" and threat.norm.name == "linf":
            half = self._robust(attack.at(0.5), model, device).accuracy
        signs = Signs(
            zero_gradients(self._task, model, self._test, self._at_once, device, self._chosen.samples), half, noise
        )
        accuracy = self._robust(attack, model, device).accuracy
        labels = self._test.take(slice(0, samples)).targets.flatten()
        chance = labels.bincount().max().item() / len(labels)
        return signs.doubts(accuracy, fgsm, attack.method, chance, samples)

    def _examples(self, model: nn.Module, device: torch.device) -> dict[str, Any] | None:
        """Returns the first image-shaped samples that are right and then wrong, and others if there are too few."""
        shape = self._spec.input_shape
        is_image = len(shape) == 3 and shape[0] in (1, 3) and shape[1] * shape[2] <= MOST_PIXELS
        if not is_image or self._spec.target_shape:
            return None
        attack = self._attack
        count = min(len(self._test), self._at_once, self._chosen.samples or len(self._test))
        taken = self._test.take(slice(0, count))
        x, y = lone(taken.inputs).to(device), taken.targets.to(device)
        with evaluating(model), torch.no_grad():
            outputs = model(x.clone())  # it may change what it is given
            wanted = attack.targets_of(outputs, y)
            changed = next(attack.points(model, self._task, x, wanted, torch.arange(count, device=device)))
            before, after = outputs.argmax(dim=-1), model(changed.clone()).argmax(dim=-1)
        fooled = (before == y) & (after != y)
        order = torch.cat([each.nonzero().flatten() for each in (fooled, ~fooled)])[:EXAMPLES]
        return {
            "shape": list(shape),
            "items": [
                {
                    "label": int(y[i]),
                    "before": int(before[i]),
                    "after": int(after[i]),
                    "clean": _bytes((x[i] - attack.threat.low) / (attack.threat.high - attack.threat.low)),
                    "changed": _bytes((changed[i] - attack.threat.low) / (attack.threat.high - attack.threat.low)),
                    "perturbation": _bytes(0.5 + (changed[i] - x[i]) / (2 * _largest(changed[i] - x[i]))),
                }
                for i in order.tolist()
            ],
        }


def _largest(d: Tensor) -> float:
    return float(d.abs().max()) or 1.0


def _bytes(shares: Tensor) -> str:
    """Returns numbers from 0 to 1 as base64 of their bytes."""
    return b64encode((shares * 255).round().clamp(0, 255).to(torch.uint8).cpu().contiguous().numpy().tobytes()).decode()


def names_of(experiment: Experiment) -> Sequence[str]:
    """Returns the names of the metrics that it adds to an evaluation."""
    chosen = experiment.evaluate
    if chosen.attack == "none":
        return ()
    return ("robust_accuracy", *(("target_reached",) if chosen.target is not None else ()))
