"""The same training step of a mixture of experts in PyTorch: torch.compile, torch._grouped_mm, fp32 masters, fused AdamW.

On one GPU or the CPU. Tokens are sorted by expert and gathered, and the outputs of a token's experts are gathered and
added, in forward and in backward: no atomic additions. Router in fp32, softmax over the chosen experts, aux loss.

Prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from one_device import build, one_device_parser, timed_training
from torch_gpt import Layer, Model, report

SHAPES = {
    "qwen3-30b-a3b-4l": dict(hidden=2048, layers=4, heads=32, groups=4, width=128, qk_norm=True, ffn=768, experts=128, chosen=8,
                             aux=1e-3, sequence=4096, micro_batch=2, vocabulary=151936, rope=True, llama=True,
                             rotary_base=1e6),
    "mixtral-8x7b-2l": dict(hidden=4096, layers=2, heads=32, groups=8, ffn=14336, experts=8, chosen=2, aux=1e-2,
                            sequence=4096, micro_batch=2, vocabulary=32000, rope=True, llama=True, rotary_base=1e6),
}


class Dispatch(torch.autograd.Function):
    """Rows of tokens [T, H] in the order of their experts [T k, H]."""

    @staticmethod
    def forward(context, x, order, place):
        context.save_for_backward(place)
        return x[order // (order.numel() // x.shape[0])]

    @staticmethod
    def backward(context, gradient):
        place, = context.saved_tensors
        return gradient[place].sum(1), None, None


class Combine(torch.autograd.Function):
    """Rows [T k, H] in the order of experts, of each token [T, k, H]. A permutation, whose adjoint is its inverse."""

    @staticmethod
    def forward(context, rows, order, place):
        context.save_for_backward(order)
        return rows[place]

    @staticmethod
    def backward(context, gradient):
        order, = context.saved_tensors
        return gradient.flatten(0, 1)[order], None, None


class ExpertLayer(Layer):
    def add_feed_forward(self, shape):
        hidden, ffn, experts = shape["hidden"], shape["ffn"], shape["experts"]
        self.chosen, self.aux = shape["chosen"], shape["aux"]
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, 2 * ffn, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, ffn))

    def routed(self, x):
        """Probabilities and experts of each token [T, k], tokens per expert [E], aux loss."""
        logits = x.float() @ self.router.weight.float().t()
        top, experts = logits.topk(self.chosen, -1)
        counts = (experts.flatten()[:, None] == torch.arange(logits.shape[1], device=x.device)).sum(0)
        fractions = counts / experts.numel()
        aux = self.aux * logits.shape[1] * (fractions * logits.softmax(-1).mean(0)).sum()
        return top.softmax(-1), experts, counts, aux

    def feed_forward(self, x):
        flat = x.flatten(0, 1)
        probabilities, experts, counts, self.aux_loss = self.routed(flat)
        order = experts.flatten().argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device)).view_as(experts)
        ends = counts.cumsum(0).to(torch.int32)
        y = torch._grouped_mm(Dispatch.apply(flat, order, place), self.up.transpose(1, 2), offs=ends)
        gate, value = y.chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * value, self.down.transpose(1, 2), offs=ends)
        y = Combine.apply(y, order, place)
        return (y * probabilities[..., None]).sum(1).to(x.dtype).view_as(x)


class ExpertModel(Model):
    layer = ExpertLayer

    def forward(self, batch):
        loss = super().forward(batch["tokens"], batch["labels"])
        return loss + sum(layer.aux_loss for layer in self.layers)


def random_batch(shape, sequences):
    tokens = torch.randint(0, shape["vocabulary"], (sequences, shape["sequence"] + 1))
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def main():
    parser = one_device_parser(__doc__, "qwen3-30b-a3b-4l", SHAPES)
    args = parser.parse_args()
    if args.precision != "bf16":
        parser.error("torch.compile takes torch._grouped_mm in bf16 only")
    shape = SHAPES[args.shape]
    sequences = args.micro_batch_size or shape["micro_batch"]
    model, batch = build(args, lambda: (ExpertModel(shape), random_batch(shape, sequences)))
    seconds, memory = timed_training(args, model, batch, [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
    report("torch.compile, _grouped_mm", seconds, sequences * shape["sequence"] * args.micro_batches, **memory)


if __name__ == "__main__":
    main()
