"""A script as a user of DeepSpeed alone writes it: GPT on the shipped text, two workers. It trains until it is killed.

Run by zero.py under torchrun: STAGE OFFLOAD BATCH. It prints each step's milliseconds.
"""

import sys
import time

import deepspeed
import torch
import torch.distributed as dist

from paceline.batches import lone
from paceline.engine import prepare
from paceline.engine.planning.build import assemble
from paceline.strategies.external.deepspeed_start import quiet_import
from paceline.tasks.base import Split
from paceline.tasks.losses.cross_entropy import cross_entropy

stage, offload, batch = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
quiet_import()  # leaves out an operation that takes a minute to compile
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
parts = assemble(prepare(["model=gpt", "data=text"]).experiment, ())
torch.manual_seed(0)
model = parts.make_model()
split, _ = parts.data.load()
assert isinstance(split, Split)
zero: dict[str, object] = {"stage": stage, "reduce_bucket_size": sum(p.numel() for p in model.parameters())}
if offload != "none":
    zero["offload_optimizer"] = {"device": "cpu"}
if offload == "all":
    zero["offload_param"] = {"device": "cpu"}
if stage == 3:
    zero["stage3_param_persistence_threshold"] = 0
optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
if offload != "none":
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=0.001, adamw_mode=False)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=optimizer,
    dist_init_required=False,
    config={
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    },
)
generator = torch.Generator().manual_seed(0)
while True:  # without a barrier between steps, as ours: who is late is waited for within a step
    start = time.perf_counter()
    taken = torch.randint(len(split), (size, batch), generator=generator)[rank]
    loss = cross_entropy(engine(lone(split.samples)[taken]), split.targets[taken])
    engine.backward(loss)
    engine.step()
    if rank == 0:
        print("step", (time.perf_counter() - start) * 1e3, flush=True)
