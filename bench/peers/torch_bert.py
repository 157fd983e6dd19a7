"""BERT's pretraining step in PyTorch: torch.compile, fp32 masters, fused AdamW, one GPU or the CPU.

Full rows of sentence pairs with 15 % of the tokens masked, as `teratron bench --shape bert-large` trains on. Two peers:
`--head all` computes the logits of all positions, as most programs do; `--head masked` gathers the masked positions
first, which gives the same loss. Attention is scaled_dot_product_attention with its own dropout.

Prints one JSON object. Timed as `teratron bench` does: --steps steps after --warm-up-seconds of load.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from one_device import build, one_device_parser, timed_training
from torch_gpt import report

SHAPES = {"bert-large": dict(hidden=1024, layers=24, heads=16, sequence=512, micro_batch=64, vocabulary=30592)}
SPECIAL_TOKENS, MASKED = 3, 0.15


class Layer(nn.Module):
    def __init__(self, shape, dropout):
        super().__init__()
        hidden, self.heads, self.dropout = shape["hidden"], shape["heads"], dropout
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))

    def forward(self, x):
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), self.dropout)


class Bert(nn.Module):
    def __init__(self, shape, head, dropout):
        super().__init__()
        hidden = shape["hidden"]
        self.dropout, self.masked_only = dropout, head == "masked"
        self.words = nn.Embedding(shape["vocabulary"], hidden)
        self.positions, self.types = nn.Embedding(shape["sequence"], hidden), nn.Embedding(2, hidden)
        self.layers = nn.ModuleList([Layer(shape, dropout) for _ in range(shape["layers"])])
        self.norm = nn.LayerNorm(hidden)
        self.transform, self.head_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, shape["vocabulary"])
        self.head.weight = self.words.weight
        self.pooler, self.pair = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def encode(self, tokens, types):
        x = F.dropout(self.words(tokens) + self.positions.weight + self.types(types), self.dropout)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def lm_loss(self, x, positions, labels):
        if self.masked_only:
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        else:
            labels = torch.full(x.shape[:2], -100, device=x.device).scatter(1, positions, labels)
        logits = self.head(self.head_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def forward(self, batch):
        x = self.encode(batch["tokens"], batch["types"])
        pair = F.cross_entropy(self.pair(self.pooler(x[:, 0]).tanh()), batch["is_random"])
        return self.lm_loss(x, batch["positions"], batch["labels"]) + pair


def random_batch(shape, sequences):
    length, vocabulary = shape["sequence"], shape["vocabulary"]
    predictions = int(MASKED * (length - SPECIAL_TOKENS))
    types = (torch.arange(length) >= length // 2).long().expand(sequences, length).contiguous()
    return {"tokens": torch.randint(0, vocabulary, (sequences, length)), "types": types,
            "positions": torch.rand(sequences, length).argsort(1)[:, :predictions].contiguous(),
            "labels": torch.randint(0, vocabulary, (sequences, predictions)),
            "is_random": torch.randint(0, 2, (sequences,))}


def parsed_arguments():
    parser = one_device_parser(__doc__, "bert-large", SHAPES)
    parser.add_argument("--head", choices=["all", "masked"], default="all")
    parser.add_argument("--dropout", type=float, default=0.0, help="of hidden states and of attention")
    return parser.parse_args()


def main():
    args = parsed_arguments()
    shape = SHAPES[args.shape]
    sequences = args.micro_batch_size or shape["micro_batch"]
    model, batch = build(args, lambda: (Bert(shape, args.head, args.dropout), random_batch(shape, sequences)))
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    seconds, memory = timed_training(args, model, batch, backends)
    report(f"torch.compile, {args.head} positions", seconds, sequences * shape["sequence"] * args.micro_batches, **memory)


if __name__ == "__main__":
    main()
