"""T5's pretraining step in PyTorch: torch.compile, fp32 masters, fused AdamW, one GPU or the CPU.

Full rows of an encoder and a decoder, as `teratron bench --shape t5-base` and `t5-base-relative` train on. Attention is
scaled_dot_product_attention; relative positions are a bias of its scores, which the layers of a stack share.

Prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from one_device import build, one_device_parser, timed_training
from torch_gpt import report

BASE = dict(hidden=768, layers=12, heads=12, source=512, target=128, micro_batch=64, vocabulary=30720, relative=False)
SHAPES = {"t5-base": BASE, "t5-base-relative": {**BASE, "relative": True}}
BUCKETS, MAX_DISTANCE = 32, 128


def attend(heads, q, k, v, **options):
    """q, k, v [B, S, H] -> [B, S, H]."""
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Of the decoder, if it `crosses` to the encoder's output."""

    def __init__(self, shape, crosses):
        super().__init__()
        hidden, self.heads, self.crosses = shape["hidden"], shape["heads"], crosses
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        if crosses:
            self.norm3 = nn.LayerNorm(hidden)
            self.q, self.kv, self.cross_out = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x, bias, memory):
        mask = dict(attn_mask=bias) if bias is not None else dict(is_causal=self.crosses)
        x = x + self.out(attend(self.heads, *self.qkv(self.norm1(x)).chunk(3, -1), **mask))
        if self.crosses:
            x = x + self.cross_out(attend(self.heads, self.q(self.norm3(x)), *self.kv(memory).chunk(2, -1)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def buckets(length, bidirectional):
    """[S, S] of the distances from query i to key j."""
    distance = torch.arange(length)[None] - torch.arange(length)[:, None]
    count = BUCKETS // 2 if bidirectional else BUCKETS
    before = distance.abs() if bidirectional else (-distance).clamp_min(0)
    exact = count // 2
    far = exact + (torch.log(before.clamp_min(1) / exact) / math.log(MAX_DISTANCE / exact) * (count - exact)).long()
    bucket = torch.where(before < exact, before, far.clamp_max(count - 1))
    return bucket + count * (distance > 0) if bidirectional else bucket


class Stack(nn.Module):
    def __init__(self, shape, crosses):
        super().__init__()
        self.length = shape["target"] if crosses else shape["source"]
        self.layers = nn.ModuleList([Layer(shape, crosses) for _ in range(shape["layers"])])
        self.norm = nn.LayerNorm(shape["hidden"])
        self.relative = nn.Embedding(BUCKETS, shape["heads"]) if shape["relative"] else None
        if shape["relative"]:
            self.register_buffer("bucket", buckets(self.length, not crosses))
            hidden = torch.ones(self.length, self.length).triu(1) if crosses else torch.zeros(self.length, self.length)
            self.register_buffer("hidden", hidden.masked_fill(hidden > 0, float("-inf")))

    def forward(self, x, memory=None):
        bias = None
        if self.relative is not None:
            bias = (self.relative(self.bucket).permute(2, 0, 1) + self.hidden)[None].to(x.dtype).contiguous()  # fused kernels need it
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden = shape["hidden"]
        self.words = nn.Embedding(shape["vocabulary"], hidden)
        self.positions = None if shape["relative"] else nn.Embedding(shape["source"], hidden)
        self.encoder, self.decoder = Stack(shape, False), Stack(shape, True)
        self.head = nn.Linear(hidden, shape["vocabulary"])
        self.head.weight = self.words.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def embed(self, tokens):
        x = self.words(tokens)
        return x if self.positions is None else x + self.positions.weight[:tokens.shape[1]]

    def forward(self, batch):
        memory = self.encoder(self.embed(batch["source"]))
        logits = self.head(self.decoder(self.embed(batch["target"]), memory))
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def random_batch(shape, sequences):
    def draw(length):
        return torch.randint(0, shape["vocabulary"], (sequences, length))
    return {"source": draw(shape["source"]), "target": draw(shape["target"]), "labels": draw(shape["target"])}


def main():
    args = one_device_parser(__doc__, "t5-base", SHAPES).parse_args()
    shape = SHAPES[args.shape]
    sequences = args.micro_batch_size or shape["micro_batch"]
    model, batch = build(args, lambda: (T5(shape), random_batch(shape, sequences)))
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    seconds, memory = timed_training(args, model, batch, backends)
    tokens = sequences * (shape["source"] + shape["target"]) * args.micro_batches
    report("torch.compile", seconds, tokens, **memory)


if __name__ == "__main__":
    main()
