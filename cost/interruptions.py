"""The interval of checkpoints on machines that are taken away (spot instances), and the cost of the interruptions.

Interruptions come at random, M hours apart on average (exponential times). A checkpoint takes d hours, and it takes R
hours from an interruption until training goes on from the last checkpoint. All times are hours.

    Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 530-531:

        tau = sqrt(2 d M)

    Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22(3), 303-312, equation 37:

        tau = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d     where d < 2M, else M

    and the expected time of his complete model, equation 20, of work W in N = W / tau pieces:

        E = N M e^(R / M) (e^((W / N + d) / M) - 1)

tau is work between two checkpoints, without the checkpoint. A checkpoint follows each piece, the last one included: its
weights are the result. Deviates: N is a whole number, W / tau rounded up, and the pieces are alike.
"""

from math import ceil, exp, expm1, sqrt

from .rules import RULES, CostError, check

YOUNG = "Young 1974, CACM 17(9)"
DALY = "Daly 2006, FGCS 22(3), equation 37"
DALY_TIME = "Daly 2006, equation 20"
LONGEST = 20.0  # mean times between interruptions, of a piece and a restart: one in e^20 attempts succeeds


def young(checkpoint: float, between: float) -> float:
    """Hours of work between checkpoints. Raises `CostError`."""
    check(checkpoint=checkpoint, between=between)
    return first_order(checkpoint, between)


def first_order(checkpoint: float, between: float) -> float:
    """Returns Young's interval in the unit of both, which may be any."""
    return sqrt(2 * checkpoint * between)


def daly(checkpoint: float, between: float) -> float:
    """Hours of work between checkpoints. Raises `CostError`."""
    check(checkpoint=checkpoint, between=between)
    if checkpoint >= 2 * between:
        return between
    ratio = checkpoint / (2 * between)
    return first_order(checkpoint, between) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint


def pieces(work: float, interval: float) -> int:
    """N: into how many equal pieces of at most `interval` the work falls. Raises `CostError`."""
    check(work=work, interval=interval)
    return max(1, ceil(work / interval * (1 - 1e-12)))  # 0.3 / 0.1 is more than 3 by rounding alone


def expected_time(work: float, interval: float, checkpoint: float, restart: float, between: float) -> float:
    """Hours until `work` hours of training are done, restarts that are interrupted themselves included.

    Raises `CostError`, also where a piece or a restart would hardly ever end.
    """
    check(checkpoint=checkpoint, restart=restart, between=between)
    number = pieces(work, interval)
    return number * _time_of_piece(work / number + checkpoint, restart, between)


def _time_of_piece(piece: float, restart: float, between: float) -> float:
    """Returns the expected hours until `piece` hours are over without an interruption. Raises `CostError`."""
    if piece + restart > LONGEST * between:
        raise CostError(
            f"an interruption every {between:g} hours is too often for pieces of {piece:g} hours (their checkpoint "
            f"included) and a restart of {restart:g} hours: training would never end"
        )
    return between * exp(restart / between) * expm1(piece / between)


def goodput(checkpoint: float, restart: float, between: float, step: float) -> float:
    """Returns the share of the time that is kept work, where each failure stops all workers. Raises `CostError`.

    A checkpoint follows each interval of Young's, or each step where steps are longer. One that takes less than the
    least of its rule (4 ms) counts as that.

    Args:
        checkpoint: hours to write one.
        restart: hours until all train again, with reading the checkpoint.
        between: hours from one failure in the run to the next.
        step: hours.
    """
    checkpoint = max(checkpoint, RULES["checkpoint"].low)
    interval = max(young(checkpoint, between), step)
    return interval / expected_time(interval, interval, checkpoint, restart, between)


def goodput_alone(restart: float, between: float, step: float) -> float:
    """Returns the share of a worker's time that is kept work, where a failure costs it the step under way, and the
    others go on. Raises `CostError`.

    It is Daly's equation 20 with steps as pieces that need no checkpoint. Hours; `between`: failures of this worker.
    """
    check(restart=restart, between=between)
    return step / _time_of_piece(step, restart, between)


def expected_interruptions(time: float, between: float) -> float:
    """Returns the number of interruptions in the expected `time` of a training, both in hours. Raises `CostError`."""
    check(between=between)
    return time / between
