"""T5 as Megatron-LM computes it, and as published, in plain PyTorch: the reference of test_t5_parity.py.

Weights come by Megatron-Core's names. Attention masks scores as Megatron-LM's core does, over all pairs of positions.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Options:
    encoder_layers: int = 2
    decoder_layers: int = 3
    heads: int = 4
    eps: float = 1e-5
    activation: str = "tanh"  # tanh, erf, geglu, relu
    rms: bool = False
    max_distance: int = 0  # of relative positions; 0: learned ones
    scale: float = 0.0  # of scores; 0: 1 / sqrt(d)
    scaled_logits: bool = False


class ReferenceT5:
    def __init__(self, weights, options):
        self.weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
        self.options = options

    def parameters(self):
        return list(self.weights.values())

    def norm(self, x, name):
        weight = self.weights[name + ".weight"]
        if self.options.rms:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.options.eps) * weight
        return F.layer_norm(x, x.shape[-1:], weight, self.weights[name + ".bias"], self.options.eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def bias(self, tower, length, bidirectional):
        """[N, S, S] of relative positions, bucket by bucket as T5 defines them; 0 without."""
        if not self.options.max_distance:
            return 0
        table = self.weights[f"{tower}_relative_pos_emb.relative_attention_bias.weight"]
        count = len(table) // (2 if bidirectional else 1)
        exact, buckets = count // 2, torch.zeros(length, length, dtype=torch.long)
        for i in range(length):
            for j in range(length):
                distance = abs(j - i) if bidirectional else max(i - j, 0)
                far = math.log(max(distance, 1) / exact) / math.log(self.options.max_distance / exact) * (count - exact)
                bucket = distance if distance < exact else min(exact + int(far), count - 1)
                buckets[i, j] = bucket + (count if bidirectional and j > i else 0)
        return table[buckets].permute(2, 0, 1)

    def attend(self, q, k, v, sees_BSS, name, bias=0):
        """q, k, v [B, S, heads, d]."""
        scores = torch.einsum("bind,bjnd->bnij", q, k) * (self.options.scale or q.shape[-1] ** -0.5) + bias
        shares = scores.masked_fill(~sees_BSS[:, None], -10000.0).softmax(-1)
        return self.linear(torch.einsum("bnij,bjnd->bind", shares, v).flatten(2), name + "linear_proj")

    def self_attention(self, x, layer, sees_BSS, bias):
        name = layer + ".self_attention."
        qkv = self.linear(x, name + "linear_qkv").unflatten(-1, (self.options.heads, 3, -1))
        return self.attend(*qkv.unbind(3), sees_BSS, name, bias)

    def cross_attention(self, x, memory, layer, sees_BSS):
        name = layer + ".cross_attention."
        q = self.linear(x, name + "linear_q").unflatten(-1, (self.options.heads, -1))
        kv = self.linear(memory, name + "linear_kv").unflatten(-1, (self.options.heads, 2, -1))
        return self.attend(q, *kv.unbind(3), sees_BSS, name)

    def mlp(self, x, layer):
        y = self.linear(x, layer + ".mlp.linear_fc1")
        if self.options.activation == "geglu":
            gate, up = y.chunk(2, -1)
            y = F.gelu(gate, approximate="tanh") * up
        elif self.options.activation == "relu":
            y = F.relu(y)
        else:
            y = F.gelu(y, approximate="tanh" if self.options.activation == "tanh" else "none")
        return self.linear(y, layer + ".mlp.linear_fc2")

    def embed(self, tokens_BS):
        words = self.weights["embedding.word_embeddings.weight"][tokens_BS]
        if self.options.max_distance:
            return words
        return words + self.weights["embedding.position_embeddings.weight"][: tokens_BS.shape[1]]

    def encode(self, tokens_BS, real_BS):
        sees = real_BS[:, :, None] & real_BS[:, None, :]
        x, bias = self.embed(tokens_BS), self.bias("encoder", tokens_BS.shape[1], True)
        for number in range(self.options.encoder_layers):
            layer = f"encoder.layers.{number}"
            x = x + self.self_attention(self.norm(x, layer + ".input_layernorm"), layer, sees, bias)
            x = x + self.mlp(self.norm(x, layer + ".pre_mlp_layernorm"), layer)
        return self.norm(x, "encoder.final_layernorm")

    def decode(self, tokens_BS, real_BS, memory, source_real_BS):
        length = tokens_BS.shape[1]
        sees = real_BS[:, :, None] & real_BS[:, None, :] & torch.ones(length, length).tril().bool()
        sees_source = real_BS[:, :, None] & source_real_BS[:, None, :]
        x, bias = self.embed(tokens_BS), self.bias("decoder", length, False)
        for number in range(self.options.decoder_layers):
            layer = f"decoder.layers.{number}"
            x = x + self.self_attention(self.norm(x, layer + ".input_layernorm"), layer, sees, bias)
            normed = self.norm(x, layer + ".pre_cross_attn_layernorm")
            x = x + self.cross_attention(normed, memory, layer, sees_source)
            x = x + self.mlp(self.norm(x, layer + ".pre_mlp_layernorm"), layer)
        return self.norm(x, "decoder.final_layernorm")

    def logits(self, batch):
        """Of text_enc, enc_mask, text_dec and dec_mask [B, S]."""
        source_real, real = batch["enc_mask"].bool(), batch["dec_mask"].bool()
        memory = self.encode(batch["text_enc"], source_real)
        hidden = self.decode(batch["text_dec"], real, memory, source_real)
        if self.options.scaled_logits:
            hidden = hidden * hidden.shape[-1] ** -0.5
        words = self.weights.get("output_layer.weight", self.weights["embedding.word_embeddings.weight"])
        return F.linear(hidden, words, self.weights.get("output_layer.bias"))

    def loss(self, batch):
        losses = F.cross_entropy(self.logits(batch).transpose(1, 2), batch["labels"].clamp_min(0), reduction="none")
        return (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
