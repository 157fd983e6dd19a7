"""The same training step of one long sequence on several GPUs: PyTorch's context_parallel, FSDP2, torch.compile.

Ring attention of torch.distributed.tensor.experimental.context_parallel with its balanced (zigzag) cut; all else as in
torch_fsdp.py. Attention itself is not compiled: context_parallel replaces it by a function of DTensors. Started by
torchrun, one process per GPU:

    torchrun --nproc-per-node 2 bench/peers/torch_context_parallel.py --shape llama3-8b-12l --sequence 32768 --recompute

Rank 0 prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from torch_fsdp import training_step, warm_up_of_all
from torch_gpt import SHAPES, Layer, Model, peer_parser, report, timed_steps


class RingLayer(Layer):
    @torch.compiler.disable
    def attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)


class LongModel(Model):
    layer = RingLayer
    recomputes = False
    loss_chunks = 1

    def shard(self, dtype=torch.bfloat16):
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in self.layers:
            layer.compile()
            fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
        fully_shard(self, mp_policy=policy, reshard_after_forward=False)
        self.loss = torch.compile(self.loss_of_chunk)

    def run(self, layer, x, rotary):
        return checkpoint(layer, x, rotary, use_reentrant=False) if self.recomputes else layer(x, rotary)

    def loss_of_chunk(self, x, labels):
        return F.cross_entropy(self.head(x), labels, reduction="sum")

    def forward(self, tokens, labels):
        x = self.hidden(tokens).flatten(0, 1)
        pairs = zip(x.chunk(self.loss_chunks), labels.flatten().chunk(self.loss_chunks))
        return sum(checkpoint(self.loss, *pair, use_reentrant=False) for pair in pairs) / labels.numel()


def inputs_and_labels(tokens):
    """In separate memory: context_parallel cuts them in place."""
    return tokens[:, :-1].clone(), tokens[:, 1:].clone()


def sharded_cut(mesh, model, inputs, labels):
    """A context in which each rank has its part of the sequence: of both and of the model's rotary tables."""
    buffers = [inputs, labels, model.cos, model.sin]
    return context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0])


def main():
    parser = peer_parser(__doc__, shape="llama3-8b-12l", steps=10)
    parser.add_argument("--sequence", type=int, help="tokens of the sequence, over all ranks; default: the shape's")
    parser.add_argument("--recompute", action="store_true", help="run the forward pass of each layer again in backward")
    parser.add_argument("--loss-chunks", type=int, default=8)
    parser.add_argument("--attention", choices=["cudnn", "flash"], default="cudnn")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    shape = dict(SHAPES[args.shape])
    shape["sequence"] = args.sequence or shape["sequence"]
    torch.manual_seed(0)  # all ranks have the same sequence
    with device:
        model = LongModel(shape)
        tokens = torch.randint(0, shape["vocabulary"], (1, shape["sequence"] + 1))
        model.rotary_to(torch.bfloat16)
    model.recomputes, model.loss_chunks = args.recompute, args.loss_chunks
    model.shard()
    inputs, labels = inputs_and_labels(tokens)
    step = training_step(model, inputs, labels, args.micro_batches)
    enough = warm_up_of_all(device, args.warm_up_seconds)
    backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[args.attention]
    with sdpa_kernel([backend]), sharded_cut(mesh, model, inputs, labels):
        seconds = timed_steps(step, args.steps, enough)
    if dist.get_rank() == 0:
        count = shape["sequence"] * args.micro_batches
        report(f"torch context_parallel + FSDP2 + torch.compile, {args.attention}", seconds, count,
               tokens_per_second_per_gpu=count / seconds / dist.get_world_size(),
               memory_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
