"""Floor of a training step on one GPU: its GEMMs, cuDNN attention and unavoidable memory traffic.

Runs them one after the other, under the load and clock of a training: per layer the GEMMs of forward and
backward (weight gradients accumulated in fp32), attention, and 16 copies of its activations [tokens, hidden];
the GEMMs of the output layer with three passes over its logits; and 28 bytes per parameter for Adam, whose
fp32 masters are the bf16 weights and two bytes more.

Experts: forward and the gradient of the input are dense GEMMs of as many rows as all experts have together; the
gradient of the weights is such a GEMM, or the reading and writing of the experts' fp32 gradients, whichever takes
longer. The outputs of a token's experts are read once in forward, and their input gradients once in backward, to be
added; gathering rows counts as part of the GEMMs.

With --sequence N a micro-batch is one sequence of N tokens. Over --context-ranks C it is the part of one GPU: N / C
tokens, whose queries attend to N / 2 keys each, as many as causal attention has on average. With --recompute the
products and attention of a layer's forward pass run twice.

With --ranks N it is one of N data-parallel GPUs with a sharded optimizer; communication is left out. One
process per GPU: compare.py starts all of them together and takes the slowest.

Prints one JSON object with the tokens of all ranks. Timed as `teratron bench` does.
"""
import torch

import torch_gpt
import torch_moe
from torch_gpt import gpu_clock, peer_parser, report, seconds_between, timed_steps

SHAPES = {**torch_gpt.SHAPES, **torch_moe.SHAPES}
COPIES_PER_LAYER = 16
LOGITS_PASSES = 3
OPTIMIZER_BYTES = 28
HEAD_ROWS = 8192


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class Product:
    """y = x w^T and its two gradients, dW added in fp32."""

    def __init__(self, rows, inputs, outputs):
        self.x, self.y = random(rows, inputs), random(rows, outputs)
        self.w = 0.02 * random(outputs, inputs)
        self.dw = torch.zeros(outputs, inputs, device="cuda")
        self.out_x, self.out_y = torch.empty_like(self.x), torch.empty_like(self.y)

    def weights(self):
        return self.w.numel()

    def forward(self):
        torch.mm(self.x, self.w.t(), out=self.out_y)

    def run(self):
        self.forward()
        torch.mm(self.y, self.w, out=self.out_x)
        self.add_weight_gradient()

    def add_weight_gradient(self):
        torch.ops.aten.addmm.dtype_out(self.dw, self.y.t(), self.x, torch.float32, out=self.dw)


class ExpertProduct(Product):
    """Of all experts together: a dense product with one expert's weights, but the gradient bytes of all."""

    def __init__(self, experts, *sizes):
        super().__init__(*sizes)
        self.experts, dense = experts, super().add_weight_gradient
        gradients = Traffic(2 * 4 * self.weights())
        self.add_weight_gradient = max((dense, gradients.run), key=seconds_of)

    def weights(self):
        return self.experts * self.w.numel()


def seconds_of(work, repetitions=20):
    work()
    begin = gpu_clock()
    for _ in range(repetitions):
        work()
    end = gpu_clock()
    torch.cuda.synchronize()
    return seconds_between(begin, end)


def tokens_of(shape):
    """Of a micro-batch, on this GPU."""
    return shape["micro_batch"] * shape["sequence"] // shape["context_ranks"]


def head_width(shape):
    return shape.get("width", shape["hidden"] // shape["heads"])


class Attention:
    """Causal, or of a context-parallel rank's queries to half of all keys."""

    def __init__(self, shape):
        width, sequence, ranks = head_width(shape), shape["sequence"], shape["context_ranks"]
        self.causal = ranks == 1
        self.q = random(shape["micro_batch"], shape["heads"], sequence // ranks, width)
        groups, keys = shape.get("groups", shape["heads"]), sequence if self.causal else sequence // 2
        self.k, self.v = (random(shape["micro_batch"], groups, keys, width) for _ in range(2))
        self.gradient = torch.randn_like(self.q)

    def forward(self):
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            self.q, self.k, self.v, None, True, 0.0, self.causal, False)

    def run(self):
        y, lse, cq, ck, mq, mk, seed, offset, _ = self.forward()
        torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            self.gradient, self.q, self.k, self.v, y, lse, seed, offset, None, cq, ck, mq, mk, 0.0, self.causal)


class Traffic:
    """Reads half of the bytes and writes the other half."""

    def __init__(self, count):
        self.chunks, self.source = divmod(int(count) // 2, 1 << 29), random(1 << 28)
        self.target = torch.empty_like(self.source)

    def run(self):
        whole, rest = self.chunks
        for _ in range(whole):
            self.target.copy_(self.source)
        self.target[:rest // 2].copy_(self.source[:rest // 2])


def feed_forward_products(shape, tokens):
    hidden, ffn = shape["hidden"], shape.get("ffn", 4 * shape["hidden"])
    gated = 2 if shape.get("llama") else 1
    sizes = (hidden, gated * ffn), (ffn, hidden)
    if "experts" not in shape:
        return [Product(tokens, *size) for size in sizes]
    rows = tokens * shape["chosen"]
    return [ExpertProduct(shape["experts"], rows, *size) for size in sizes] + [Product(tokens, hidden, shape["experts"])]


def layer_products(shape):
    tokens, hidden = tokens_of(shape), shape["hidden"]
    heads = shape["heads"] * head_width(shape)
    qkv = heads + 2 * shape.get("groups", shape["heads"]) * head_width(shape)
    attention = [Product(tokens, hidden, qkv), Product(tokens, heads, hidden)]
    return attention + feed_forward_products(shape, tokens)


def parameter_count(shape, products):
    embeddings = shape["vocabulary"] * shape["hidden"] * (2 if shape.get("llama") else 1)
    return shape["layers"] * sum(product.weights() for product in products) + embeddings


def main():
    parser = peer_parser(__doc__, shapes=SHAPES)
    parser.add_argument("--without-traffic", action="store_true", help="products and attention alone")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--sequence", type=int, help="tokens of one sequence; default: the shape's sequences")
    parser.add_argument("--context-ranks", type=int, default=1, help="GPUs that share a sequence, among --ranks")
    parser.add_argument("--recompute", action="store_true", help="run the forward pass of each layer again in backward")
    args = parser.parse_args()
    shape = {**SHAPES[args.shape], "context_ranks": args.context_ranks}
    if args.sequence:
        shape.update(sequence=args.sequence, micro_batch=1)
    tokens = tokens_of(shape)
    products, attention = layer_products(shape), Attention(shape)
    head = Product(min(HEAD_ROWS, tokens), shape["hidden"], shape["vocabulary"])
    activations = Traffic(2 * 2 * tokens * shape["hidden"])
    expert_sums = Traffic(2 * 2 * (shape.get("chosen", -1) + 1) * tokens * shape["hidden"])
    logits = Traffic(LOGITS_PASSES * 2 * tokens * shape["vocabulary"])
    optimizer = Traffic(OPTIMIZER_BYTES * parameter_count(shape, products) / args.ranks)

    def micro_batch():
        for _ in range(shape["layers"]):
            for work in (*products, attention):
                if args.recompute:
                    work.forward()
                work.run()
            if not args.without_traffic:
                for _ in range(COPIES_PER_LAYER):
                    activations.run()
                expert_sums.run()
        for _ in range(max(1, tokens // HEAD_ROWS)):
            head.run()
        if not args.without_traffic:
            logits.run()

    def step():
        for _ in range(args.micro_batches):
            micro_batch()
        if not args.without_traffic:
            optimizer.run()

    seconds = timed_steps(step, args.steps, lambda elapsed: elapsed >= args.warm_up_seconds)
    report("floor", seconds, args.ranks * tokens * args.micro_batches)


if __name__ == "__main__":
    main()
