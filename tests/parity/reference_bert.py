"""BERT as Megatron-LM computes it, in plain PyTorch: the reference of test_bert_parity.py.

Weights come by Megatron-Core's names. Attention masks scores as Megatron-LM does, over all pairs of positions.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Options:
    layers: int = 2
    heads: int = 4
    eps: float = 1e-5
    tanh_gelu: bool = True  # of the layers: the fused bias + GELU
    tanh_head: bool = False
    residual_after_norm: bool = False


class ReferenceBert:
    def __init__(self, weights, options):
        self.weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
        self.options = options

    def parameters(self):
        return list(self.weights.values())

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"],
                            self.options.eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def attention(self, x, layer, real_BS):
        name = f"encoder.layers.{layer}.self_attention."
        batch, length, hidden = x.shape
        qkv = self.linear(x, name + "linear_qkv").view(batch, length, self.options.heads, 3, -1)
        q, k, v = qkv.unbind(3)
        scores = torch.einsum("bind,bjnd->bnij", q, k) / math.sqrt(q.shape[-1])
        hides = ~(real_BS[:, :, None] & real_BS[:, None, :])
        shares = scores.masked_fill(hides[:, None], -10000.0).softmax(-1)
        mixed = torch.einsum("bnij,bjnd->bind", shares, v).reshape(batch, length, hidden)
        return self.linear(mixed, name + "linear_proj")

    def mlp(self, x, layer):
        name = f"encoder.layers.{layer}.mlp.linear_fc"
        y = F.gelu(self.linear(x, name + "1"), approximate="tanh" if self.options.tanh_gelu else "none")
        return self.linear(y, name + "2")

    def __call__(self, tokens_BS, types_BS, real_BS):
        x = self.weights["embedding.word_embeddings.weight"][tokens_BS]
        x = x + self.weights["embedding.position_embeddings.weight"][: tokens_BS.shape[1]]
        if "embedding.tokentype_embeddings.weight" in self.weights:
            x = x + self.weights["embedding.tokentype_embeddings.weight"][types_BS]
        for layer in range(self.options.layers):
            normed = self.norm(x, f"encoder.layers.{layer}.input_layernorm")
            x = (normed if self.options.residual_after_norm else x) + self.attention(normed, layer, real_BS.bool())
            normed = self.norm(x, f"encoder.layers.{layer}.pre_mlp_layernorm")
            x = (normed if self.options.residual_after_norm else x) + self.mlp(normed, layer)
        return self.norm(x, "encoder.final_layernorm")

    def lm_logits(self, hidden):
        y = F.gelu(self.linear(hidden, "lm_head.dense"), approximate="tanh" if self.options.tanh_head else "none")
        words = self.weights.get("output_layer.weight", self.weights["embedding.word_embeddings.weight"])
        return F.linear(self.norm(y, "lm_head.layer_norm"), words, self.weights["output_layer.bias"])

    def binary_logits(self, hidden):
        return self.linear(torch.tanh(self.linear(hidden[:, 0], "pooler.dense")), "binary_head")

    def losses(self, batch):
        """Of `text`, `types`, `padding_mask`, `labels`, `loss_mask` [B, S] and `is_random` [B]: lm and, with the
        head, sop loss."""
        hidden = self(batch["text"], batch["types"], batch["padding_mask"])
        labels = batch["labels"].clamp_min(0)
        losses = F.cross_entropy(self.lm_logits(hidden).transpose(1, 2), labels, reduction="none")
        losses = [(losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()]
        if "binary_head.weight" in self.weights:
            losses.append(F.cross_entropy(self.binary_logits(hidden), batch["is_random"]))
        return losses
