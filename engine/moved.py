"""Classes that have been moved, and choices as runs from before that have stored them."""

from typing import Any

MOVED = {
    "paceline.strategies.sync.easgd.AsyncEASGD": "paceline.strategies.sync.easgd_async.AsyncEASGD",
    "paceline.strategies.sync.easgd.RoundRobinEASGD": "paceline.strategies.sync.easgd_round_robin.RoundRobinEASGD",
}
_SERVER = "paceline.strategies.sync.parameter_server.ParameterServer"  # by its knob `mode`, and `staleness`, was ...
_NOW = {  # choice -> its class now, those of the knobs that it has kept, and those that it has had since
    "parameter_server": (_SERVER, ("servers",), {"compress_answers": False}),
    "asp": ("paceline.strategies.sync.downpour.Downpour", ("push", "fetch", "rate", "servers", "lock"), {}),
    "ssp": ("paceline.strategies.sync.ssp.SSP", ("staleness", "rate", "servers"), {}),
}


def renewed_strategy(strategy: Any) -> Any:
    """A stored choice of a strategy as the same choice is stored now: a pipeline's `cuts` are its `cut`."""
    match strategy:
        case {"target": "paceline.strategies.pipeline.Pipeline", "knobs": {"cuts": cuts, **knobs}}:
            return strategy | {"knobs": knobs | {"cut": "parameters" if cuts is None else cuts}}
    return strategy


def with_clip(plain: dict[str, Any]) -> dict[str, Any]:
    """A stored experiment in which ZeRO's knob `clip` is the choice of `clip` that it was before there were others."""
    match plain:
        case {"strategy": {"target": "paceline.strategies.zero.Zero", "knobs": {"clip": longest, **knobs}}}:
            strategy = {"strategy": plain["strategy"] | {"knobs": knobs}}
            if longest is None:
                return plain | strategy
            chosen = {"name": "norm", "target": "paceline.strategies.exchange.clip.ByNorm", "knobs": {"max": longest}}
            return plain | strategy | {"clip": chosen}
    return plain


_PRECISIONS = {  # by name, the class and knobs that ZeRO's knob stands for
    "fp32": ("Float32", {}),
    "bf16": ("BFloat16", {}),
    "fp16": ("Float16", {"scale": 65536.0, "grow_every": 1000}),  # DeepSpeed's own were those
}


def with_precision(plain: dict[str, Any]) -> dict[str, Any]:
    """A stored experiment in which ZeRO's knob `precision` is the choice that it was before others had it."""
    match plain:
        case {"strategy": {"target": "paceline.strategies.zero.Zero", "knobs": {"precision": str(name), **knobs}}} if (
            name in _PRECISIONS
        ):
            cls, of_it = _PRECISIONS[name]
            chosen = {"name": name, "target": f"paceline.strategies.precision.{cls}", "knobs": dict(of_it)}
            return plain | {"strategy": plain["strategy"] | {"knobs": knobs}, "precision": chosen}
    return plain


def renewed_privacy(privacy: Any) -> Any:
    """A stored choice of privacy: where `epsilon` is given, `noise` was its default, which said nothing."""
    match privacy:
        case {"knobs": {"noise": float(), "epsilon": float() | int()} as knobs}:
            return privacy | {"knobs": knobs | {"noise": None}}
    return privacy


def renewed_aggregate(aggregate: Any) -> Any:
    """A stored choice of a rule: `bucket` was its default, which said nothing, where there are no buckets."""
    match aggregate:
        case {"knobs": {"bucket": int(), "before": before} as knobs} if before != "bucketing":
            return aggregate | {"knobs": knobs | {"bucket": None}}
    return aggregate


def renewed_callbacks(callbacks: Any) -> Any:
    """Stored callbacks: where nobody tunes, `lr` and `batch_size` of by_client were defaults, which said nothing."""
    match callbacks:
        case {"by_client": {"target": "paceline.engine.callbacks.ByClient", "knobs": {"steps": 0, **knobs}} as chosen}:
            of_tuning = {knob: None for knob in ("lr", "batch_size") if knob in knobs}
            return callbacks | {"by_client": chosen | {"knobs": {"steps": 0, **knobs, **of_tuning}}}
    return callbacks


def renewed(sync: Any) -> Any:
    """A stored choice of a sync mode, {name, target, knobs}, as the same choice is stored now."""
    match sync:
        case {"target": "paceline.strategies.sync.onebit_adam.OneBitAdam", "knobs": {"clip": most, **knobs}}:
            return sync | {"knobs": knobs | {"most": most}}
        case {"target": str(target)} if target in MOVED:
            return sync | {"target": MOVED[target]}
        case {"name": name, "target": str(target), "knobs": {"mode": mode, **knobs}} if target == _SERVER:
            if mode == "synchronous":
                now = "parameter_server"
            else:
                now = "asp" if name != "ssp" and knobs.get("staleness") is None else "ssp"
            target, kept, since = _NOW[now]
            knobs = {knob: value for knob, value in knobs.items() if knob in kept} | since
            return {"name": now if name in _NOW else name, "target": target, "knobs": knobs}
    return sync
