"""torch's process groups without its global registry."""

from datetime import timedelta

import torch
import torch.distributed as dist

from paceline.comm.gloo import GlooDevice
from paceline.compat import process_groups


def test_a_group_is_made_of_a_store_and_backends_and_nothing_global() -> None:
    store, device = dist.HashStore(), GlooDevice()
    gloo = process_groups.gloo(store, 0, 1, timedelta(seconds=20), device.device)
    group = process_groups.group_of(store, 0, 1, "alone", {"cpu": gloo}, torch.device("cpu"))
    tensor, gathered = torch.ones(3), torch.zeros(3)
    group.allreduce([tensor]).wait()
    process_groups.all_gather_into(group, gathered, 2 * tensor).wait()
    assert torch.equal(gathered, torch.full((3,), 2.0)), (
        "torch's groups take their backends otherwise: no run can begin"
    )
    assert (group.group_name, dist.is_initialized()) == ("alone", False)


def test_a_backend_that_is_there_is_known() -> None:
    name = "paceline_test"
    if not process_groups.is_registered(name):
        dist.Backend.register_backend(name, lambda *given: None, extended_api=True, devices=["cpu"])
    assert process_groups.is_registered(name) and not process_groups.is_registered("nosuch"), (
        "torch keeps its backends elsewhere: DeepSpeed and FSDP could be given ours only once in a process"
    )
