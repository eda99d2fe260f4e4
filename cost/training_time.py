"""The time that a transformer trains.

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), equation 4:

    seconds = F T P / (n X)

for T tokens, P parameters, and n devices that each sustain X flops a second. F counts flops for a parameter and token:
2 forward, 4 backward, and 2 where backward computes the forward pass again (activation recomputation): the paper's 8,
or 6. Left out, as there: attention's products of queries and keys, and the vocabulary, which are small in large models.
"""

from math import ceil

from .rules import check

SOURCE = "Narayanan et al. 2021, arXiv 2104.04473, equation 4"
FORWARD, BACKWARD = 2, 4  # flops for a parameter and token
DAY, YEAR = 86_400, 31_536_000  # seconds; a year of 365 days


def flops_per_parameter(recompute: bool) -> int:
    """F, for one token."""
    return FORWARD + BACKWARD + (FORWARD if recompute else 0)


def flops_of(parameters: float, tokens: float, per_parameter: float) -> float:
    """F T P, of the whole training. Raises `CostError`."""
    check(parameters=parameters, tokens=tokens, flops_per_parameter=per_parameter)
    return per_parameter * tokens * parameters


def seconds_of(parameters: float, tokens: float, per_parameter: float, devices: float, flops: float) -> float:
    """`flops`: X, that one device sustains in a second. Raises `CostError`."""
    check(devices=devices, flops=flops)
    return flops_of(parameters, tokens, per_parameter) / (devices * flops)


def machines_of(devices: int, a_machine: int) -> int:
    """Machines to rent for so many devices; 0 devices a machine: the CPU of one machine computes."""
    return ceil(devices / a_machine) if a_machine else 1


def dollars_of(seconds: float, machines: float, price_per_hour: float) -> float:
    """Rent in US dollars; `price_per_hour`: of one machine. Raises `CostError`."""
    check(seconds=seconds, machines=machines, price_per_hour=price_per_hour)
    return seconds / 3600 * machines * price_per_hour
