"""GPT with every option, in plain PyTorch and from its papers' formulas: the reference of test_model_options.py.

Weights come by Megatron-LM's names. Positions' formulas that transformers has are taken from there.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.configuration_llama import LlamaConfig


@dataclasses.dataclass
class Options:
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    groups: int = 4
    width: int = 8  # of a head
    positions: int = 16
    position: str = "learned"  # learned, rope, alibi, none
    rope_base: float = 10000.0
    rope_share: float = 1.0
    rope_interleaved: bool = False
    rope_interpolation: float = 1.0
    llama3_factor: float = 0.0
    llama3_positions: int = 8192
    first_position: int = 0
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    norm_outputs: bool = False
    parallel_residual: bool = False
    qk_norm_all_heads: bool = False
    rms: bool = False
    eps: float = 1e-5
    one_plus: bool = False
    residual_after_norm: bool = False
    activation: str = "gelu"  # gelu, erf, swiglu, geglu, relu, squared_relu
    qk_norm: bool = False
    windows: tuple = ()  # keys seen per layer, 0: all


def inverse_frequencies(options):
    rotated = int(options.width * options.rope_share)
    if options.llama3_factor:
        config = LlamaConfig(
            hidden_size=options.hidden, num_attention_heads=options.heads, head_dim=rotated,
            max_position_embeddings=131072,
            rope_parameters={"rope_type": "llama3", "rope_theta": options.rope_base, "factor": options.llama3_factor,
                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": options.llama3_positions})
        # transformers computes in fp32; the same function on doubles
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return llama3_frequencies(config, rotated, options)
        finally:
            torch.set_default_dtype(default)
    return options.rope_base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)


def llama3_frequencies(config, rotated, options):
    """By wavelength, as Llama 3.1's reference code has it; agrees with transformers' in fp32."""
    frequencies = options.rope_base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    result = []
    for frequency in frequencies.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < options.llama3_positions / 4.0:
            result.append(frequency)
        elif wavelength > options.llama3_positions / 1.0:
            result.append(frequency / options.llama3_factor)
        else:
            smooth = (options.llama3_positions / wavelength - 1.0) / (4.0 - 1.0)
            result.append((1 - smooth) * frequency / options.llama3_factor + smooth * frequency)
    ours = torch.tensor(result, dtype=torch.float64)
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    torch.testing.assert_close(ours, theirs.to(torch.float64), rtol=1e-6, atol=0)
    return ours


def rotate(x, options):
    """x [B, S, N, D] by complex multiplication."""
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64) / options.rope_interpolation,
                         inverse_frequencies(options))
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
    rotated = 2 * angles.shape[1]
    part, rest = x[..., :rotated].double(), x[..., rotated:]
    if options.rope_interleaved:
        pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * turn).flatten(-2)
    else:
        pairs = torch.complex(part[..., : rotated // 2], part[..., rotated // 2:]) * turn
        turned = torch.cat([pairs.real, pairs.imag], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


class ReferenceGPT:
    def __init__(self, weights, options):
        self.weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
        self.options = options

    def parameters(self):
        return list(self.weights.values())

    def norm(self, x, name):
        weight, bias = self.weights[name + ".weight"], self.weights.get(name + ".bias")
        if self.options.one_plus:
            weight = 1 + weight
        if self.options.rms:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.options.eps) * weight
        return F.layer_norm(x, (x.shape[-1],), weight, bias, self.options.eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def attention(self, x, layer):
        o, name = self.options, f"decoder.layers.{layer}.self_attention."
        batch, length, _ = x.shape
        per_group = o.heads // o.groups
        qkv = self.linear(x, name + "linear_qkv").view(batch, length, o.groups, per_group + 2, o.width)
        q = qkv[:, :, :, :per_group].reshape(batch, length, o.heads, o.width)
        k, v = qkv[:, :, :, per_group], qkv[:, :, :, per_group + 1]
        if o.qk_norm_all_heads:
            q = self.norm(q.flatten(2), name + "q_layernorm").view_as(q)
            k = self.norm(k.flatten(2), name + "k_layernorm").view_as(k)
        elif o.qk_norm:
            q, k = self.norm(q, name + "q_layernorm"), self.norm(k, name + "k_layernorm")
        if o.position == "rope":
            q, k = rotate(q, o), rotate(k, o)
        k, v = k.repeat_interleave(per_group, 2), v.repeat_interleave(per_group, 2)
        scores = torch.einsum("bind,bjnd->bnij", q, k) / math.sqrt(o.width)
        i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
        if o.position == "alibi":
            bias = build_alibi_tensor(torch.ones(1, length), o.heads, torch.float64)  # slope * j
            scores = scores + bias.view(o.heads, 1, length).to(scores.dtype)
        hidden = j > i
        if o.windows and o.windows[layer]:
            hidden = hidden | (i - j >= o.windows[layer])
        mixed = torch.einsum("bnij,bjnd->bind", scores.masked_fill(hidden, -math.inf).softmax(-1), v)
        return self.linear(mixed.reshape(batch, length, -1), name + "linear_proj")

    def mlp(self, x, layer):
        name = f"decoder.layers.{layer}.mlp."
        y = self.linear(x, name + "linear_fc1")
        kind = self.options.activation
        if kind == "gelu":
            y = F.gelu(y, approximate="tanh")
        elif kind == "erf":
            y = F.gelu(y)
        elif kind == "relu":
            y = F.relu(y)
        elif kind == "squared_relu":
            y = F.relu(y).square()
        else:
            gate, up = y.chunk(2, -1)
            y = (F.silu(gate) if kind == "swiglu" else F.gelu(gate, approximate="tanh")) * up
        return self.linear(y, name + "linear_fc2")

    def layer(self, x, layer):
        o = self.options
        norms = [f"decoder.layers.{layer}.input_layernorm", f"decoder.layers.{layer}.pre_mlp_layernorm"]
        if o.norm_outputs:
            x = x + self.norm(self.attention(x, layer), norms[0])
            return x + self.norm(self.mlp(x, layer), norms[1])
        if o.parallel_residual:
            return x + self.attention(self.norm(x, norms[0]), layer) + self.mlp(self.norm(x, norms[1]), layer)
        normed = self.norm(x, norms[0])
        x = (normed if o.residual_after_norm else x) + self.attention(normed, layer)
        normed = self.norm(x, norms[1])
        return (normed if o.residual_after_norm else x) + self.mlp(normed, layer)

    def __call__(self, tokens_BS):
        o = self.options
        x = self.weights["embedding.word_embeddings.weight"][tokens_BS] * o.embedding_scale
        if o.embedding_norm:
            x = self.norm(x, "embedding.word_embeddings_layernorm")
        if o.position == "learned":
            x = x + self.weights["embedding.position_embeddings.weight"][o.first_position:][: tokens_BS.shape[1]]
        for layer in range(o.layers):
            x = self.layer(x, layer)
        x = self.norm(x, "decoder.final_layernorm")
        untied = "output_layer.weight" in self.weights
        return self.linear(x, "output_layer" if untied else "embedding.word_embeddings")

    def loss(self, text_BS):
        return F.cross_entropy(self(text_BS[:, :-1]).flatten(0, 1), text_BS[:, 1:].flatten())
