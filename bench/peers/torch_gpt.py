"""The same training step in PyTorch: torch.compile, cuDNN attention, fused AdamW, one GPU or the CPU.

Two peers: `--masters bf16` holds weights, gradients and Adam's moments in bf16 (fewer bytes than any trainer with
full precision); `--masters fp32` has the semantics of `teratron pretrain gpt --bf16`: fp32 weights and moments,
fp32 gradient accumulation, a bf16 copy of the weights for the GEMMs. `--precision fp32` uses no bf16.

Prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {
    "gpt2-124m": dict(hidden=768, layers=12, heads=12, sequence=1024, micro_batch=64, vocabulary=50304, rope=False),
    "gpt2-345m": dict(hidden=1024, layers=24, heads=16, sequence=1024, micro_batch=32, vocabulary=50304, rope=False),
    "gpt2-large": dict(hidden=1280, layers=36, heads=20, sequence=1024, micro_batch=16, vocabulary=50304, rope=False),
    "gpt-1.5b": dict(hidden=2048, layers=24, heads=16, sequence=4096, micro_batch=4, vocabulary=131072, rope=True),
    "llama-56m": dict(hidden=512, layers=8, heads=8, groups=4, ffn=1408, sequence=512, micro_batch=4, vocabulary=32000,
                      rope=True, llama=True, rotary_base=500000.0),
    "llama3-8b-12l": dict(hidden=4096, layers=12, heads=32, groups=8, ffn=14336, sequence=8192, micro_batch=2,
                          vocabulary=128256, rope=True, llama=True, rotary_base=500000.0),
    "llama3-8b": dict(hidden=4096, layers=32, heads=32, groups=8, ffn=14336, sequence=8192, micro_batch=1,
                      vocabulary=128256, rope=True, llama=True, rotary_base=500000.0),
}


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, self.heads = shape["hidden"], shape["heads"]
        self.groups = shape.get("groups", self.heads)
        self.width = shape.get("width", hidden // self.heads)
        self.llama = shape.get("llama", False)
        norm = nn.RMSNorm if self.llama else nn.LayerNorm
        bias = not self.llama
        self.norm1, self.norm2 = norm(hidden, eps=1e-5), norm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.width, bias=bias)
        self.out = nn.Linear(self.heads * self.width, hidden, bias=bias)
        self.head_norms = nn.ModuleList(norm(self.width, eps=1e-5) for _ in range(2 if shape.get("qk_norm") else 0))
        self.add_feed_forward(shape)

    def add_feed_forward(self, shape):
        hidden = shape["hidden"]
        ffn, bias = shape.get("ffn", 4 * hidden), not self.llama
        self.up = nn.Linear(hidden, ffn * (2 if self.llama else 1), bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def attend(self, x, rotary):
        batch, length, _ = x.shape
        parts = self.qkv(x).split([self.heads * self.width, self.groups * self.width, self.groups * self.width], -1)
        q, k, v = (part.view(batch, length, -1, self.width).transpose(1, 2) for part in parts)
        if self.head_norms:
            q, k = (norm(part) for norm, part in zip(self.head_norms, (q, k)))
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, length, self.heads * self.width))

    def attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)

    def feed_forward(self, x):
        y = self.up(x)
        if self.llama:
            gate, value = y.chunk(2, -1)
            y = F.silu(gate) * value
        else:
            y = F.gelu(y, approximate="tanh")
        return self.down(y)

    def forward(self, x, rotary):
        x = x + self.attend(self.norm1(x), rotary)
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    layer = Layer

    def __init__(self, shape):
        super().__init__()
        hidden, vocabulary = shape["hidden"], shape["vocabulary"]
        llama = shape.get("llama", False)
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.positions = None if shape["rope"] else nn.Embedding(shape["sequence"], hidden)
        self.layers = nn.ModuleList([self.layer(shape) for _ in range(shape["layers"])])
        self.norm = (nn.RMSNorm if llama else nn.LayerNorm)(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        if not llama:
            self.head.weight = self.embedding.weight
        self.rope = shape["rope"]
        if self.rope:
            width = shape.get("width", hidden // shape["heads"])
            base = shape.get("rotary_base", 10000.0)
            frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
            angles = torch.arange(shape["sequence"], dtype=torch.float32)[:, None] * frequencies
            angles = torch.cat((angles, angles), -1)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def rotary_to(self, dtype):
        if self.rope:
            self.cos, self.sin = self.cos.to(dtype), self.sin.to(dtype)

    def hidden(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        rotary = (self.cos, self.sin) if self.rope else None
        for layer in self.layers:
            x = self.run(layer, x, rotary)
        return self.norm(x)

    def run(self, layer, x, rotary):
        return layer(x, rotary)

    def logits(self, tokens):
        return self.head(self.hidden(tokens))

    def forward(self, tokens, labels):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), labels.flatten())


class LoraLinear(nn.Module):
    """A frozen linear layer and one low-rank pair for each of the projections that it holds."""

    def __init__(self, base, rank, parts):
        super().__init__()
        self.base, self.parts = base, parts
        self.down = nn.Parameter(torch.randn(len(parts) * rank, base.in_features) / (3 * base.in_features) ** 0.5)
        self.up = nn.ParameterList([nn.Parameter(torch.zeros(part, rank)) for part in parts])

    def forward(self, x):
        lows = (x @ self.down.T).chunk(len(self.parts), -1)
        return self.base(x) + torch.cat([low @ up.T for low, up in zip(lows, self.up)], -1)


def add_lora(model, rank):
    """Pairs beside all linear layers but the head; everything else is frozen."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.layers:
        keys = layer.groups * layer.width
        ffn = layer.down.in_features
        layer.qkv = LoraLinear(layer.qkv, rank, [layer.out.in_features, keys, keys])
        layer.out = LoraLinear(layer.out, rank, [layer.out.out_features])
        layer.up = LoraLinear(layer.up, rank, [ffn] * (layer.up.out_features // ffn))
        layer.down = LoraLinear(layer.down, rank, [layer.down.out_features])


class FullPrecisionMasters:
    """AdamW on fp32 masters: bf16 gradients accumulate in fp32, are clipped and applied; weights are copied back."""

    def __init__(self, model):
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.masters = [weight.detach().float().requires_grad_() for weight in self.weights]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.adam = torch.optim.AdamW(self.masters, lr=1e-4, weight_decay=0.1, fused=True)

    def after_backward(self):
        with torch.no_grad():
            torch._foreach_add_([m.grad for m in self.masters], [w.grad for w in self.weights])
        for weight in self.weights:
            weight.grad = None

    def step(self):
        nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
            torch._foreach_zero_([m.grad for m in self.masters])


class WeightsAlone:
    """Weights, gradients and moments of one type."""

    def __init__(self, model):
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.adam = torch.optim.AdamW(self.weights, lr=1e-4, weight_decay=0.1, fused=True)

    def after_backward(self):
        pass

    def step(self):
        nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def gpu_clock():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(begin, end):
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


def timed_steps(step, count, enough, device="cuda"):
    """Median seconds of `count` steps, after 3 that compile and as many as it takes until enough(seconds)."""
    synchronize, clock = (torch.cuda.synchronize, gpu_clock) if device == "cuda" else (lambda: None, time.perf_counter)
    for _ in range(3):
        step()
    synchronize()
    start = time.perf_counter()
    while not enough(time.perf_counter() - start):
        step()
        synchronize()
    times = []
    for _ in range(count):
        begin = clock()
        step()
        times.append((begin, clock()))
    synchronize()
    return sorted(seconds_between(begin, end) for begin, end in times)[count // 2]


def peer_parser(description, shape="gpt2-124m", steps=60, shapes=SHAPES):
    """The flags that all peers take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=shapes, default=shape)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--warm-up-seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=steps)
    return parser


def report(name, seconds, tokens, **more):
    """One step's result, as compare.py reads it."""
    print(json.dumps({"name": name, "step_ms": 1e3 * seconds, "tokens_per_second": tokens / seconds, **more}), flush=True)


def main():
    parser = peer_parser(__doc__)
    parser.add_argument("--masters", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--micro-batch-size", type=int, help="default: the shape's")
    parser.add_argument("--lora-rank", type=int, help="train adapters of this rank instead of all weights")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    sequences = args.micro_batch_size or shape["micro_batch"]
    torch.manual_seed(0)
    with torch.device(args.device):
        model = Model(shape)
        if args.lora_rank:
            add_lora(model, args.lora_rank)
        tokens = torch.randint(0, shape["vocabulary"], (sequences, shape["sequence"] + 1))
    if args.precision == "bf16":
        model = model.bfloat16()
    has_masters = args.precision == "bf16" and args.masters == "fp32"
    optimizer = (FullPrecisionMasters if has_masters else WeightsAlone)(model)
    compiled = torch.compile(model)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        for _ in range(args.micro_batches):
            (compiled(inputs, labels) / args.micro_batches).backward()
            optimizer.after_backward()
        optimizer.step()

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        seconds = timed_steps(step, args.steps, lambda elapsed: elapsed >= args.warm_up_seconds, args.device)
    name = f"torch.compile, {args.masters} masters" if args.precision == "bf16" else "torch.compile, fp32"
    memory = dict(memory_bytes=torch.cuda.max_memory_allocated()) if args.device == "cuda" else {}
    report(name, seconds, sequences * shape["sequence"] * args.micro_batches, **memory)


if __name__ == "__main__":
    main()
