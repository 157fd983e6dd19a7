"""The same training step in PyTorch on several GPUs: FSDP2, torch.compile, cuDNN attention, fused AdamW.

Weights, moments and gradient reduction in fp32, GEMMs in bf16, as in `teratron pretrain gpt --bf16
--use-distributed-optimizer`. Started by torchrun, one process per GPU:

    torchrun --nproc-per-node 4 bench/peers/torch_fsdp.py --shape llama3-8b

Rank 0 prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_gpt import SHAPES, Model, peer_parser, report, timed_steps


class ShardedModel(Model):
    """Layers are compiled and sharded one by one, so that one is gathered while another computes."""

    def shard(self, keep_gathered):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in self.layers:
            layer.compile()
            fully_shard(layer, mp_policy=policy, reshard_after_forward=not keep_gathered)
        fully_shard(self, mp_policy=policy, reshard_after_forward=not keep_gathered)
        self.loss = torch.compile(lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))

    def forward(self, tokens, labels):
        return self.loss(self.logits(tokens), labels)


def training_step(model, inputs, labels, micro_batches):
    """-> a function that trains a sharded model with AdamW on the same micro-batch `micro_batches` times."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step():
        for number in range(micro_batches):
            last = number == micro_batches - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            (model(inputs, labels) / micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def warm_up_of_all(device, warm_up_seconds):
    """-> a function of a rank's seconds of load: whether all have enough, so that all stop after the same step."""

    def enough(seconds):
        slowest = torch.tensor([seconds], device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MIN)
        return slowest.item() >= warm_up_seconds

    return enough


def main():
    parser = peer_parser(__doc__, shape="llama3-8b", steps=20)
    parser.add_argument("--reshard", action="store_true", help="free gathered weights between forward and backward")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    shape = SHAPES[args.shape]
    torch.manual_seed(0)
    with device:
        model = ShardedModel(shape)
        tokens = torch.randint(0, shape["vocabulary"], (shape["micro_batch"], shape["sequence"] + 1))
        model.rotary_to(torch.bfloat16)
    model.shard(keep_gathered=not args.reshard)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    step = training_step(model, inputs, labels, args.micro_batches)
    enough = warm_up_of_all(device, args.warm_up_seconds)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        seconds = timed_steps(step, args.steps, enough)
    if dist.get_rank() == 0:
        count = shape["micro_batch"] * shape["sequence"] * args.micro_batches * dist.get_world_size()
        report("FSDP2 + torch.compile, fp32 masters", seconds, count,
               tokens_per_second_per_gpu=count / seconds / dist.get_world_size(),
               memory_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
