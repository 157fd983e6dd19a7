"""Generation in PyTorch with random weights of a shape, on one GPU or the CPU, greedy.

Two peers: `--peer gpt-fast` has gpt-fast's way: a static cache and one compiled step per token, which is a CUDA graph;
`--peer transformers` calls transformers' generate(). Both prefill the prompts at once. T5 has transformers alone; its
prompts are the encoder's, and the decoder begins with one token.

A layer is compiled once for all of them, which starts in seconds; it begins with the addition that ends the layer
before it, so that the compiler can fuse the same operators as in the whole model. On GPUs the step with the choice of
the next token is one graph, without work on the host in between.

Prints one JSON object, with the fields of `teratron bench generate --json`.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
import torch_t5
from torch_gpt import SHAPES, Layer, rotate


class CachedLayer(Layer):
    def prepare(self, batch, length, dtype, device):
        shape = (batch, self.groups, length, self.width)
        self.register_buffer("keys", torch.zeros(shape, dtype=dtype, device=device), persistent=False)
        self.register_buffer("values", torch.zeros(shape, dtype=dtype, device=device), persistent=False)

    def step(self, x, pending, rotary, positions, mask):
        """-> x + pending + attention, and the MLP's output, which is pending."""
        batch, count, hidden = x.shape
        x = x + pending
        parts = self.qkv(self.norm1(x)).split([hidden, self.groups * self.width, self.groups * self.width], -1)
        q, k, v = (part.view(batch, count, -1, self.width).transpose(1, 2) for part in parts)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        self.keys[:, :, positions] = k
        self.values[:, :, positions] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=self.groups != self.heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, count, hidden))
        up = self.up(self.norm2(x))
        if self.llama:
            gate, up = up.chunk(2, -1)
            return x, self.down(F.silu(gate) * up)
        return x, self.down(F.gelu(up, approximate="tanh"))


class CachedGPT(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = torch.nn.Embedding(shape["vocabulary"], shape["hidden"])
        self.positions = None if shape["rope"] else torch.nn.Embedding(shape["sequence"], shape["hidden"])
        self.layers = torch.nn.ModuleList(CachedLayer(shape) for _ in range(shape["layers"]))
        self.norm = (torch.nn.RMSNorm if shape.get("llama") else torch.nn.LayerNorm)(shape["hidden"], eps=1e-5)
        self.width = shape["hidden"] // shape["heads"]
        self.base = shape.get("rotary_base", 10000.0)
        self.head = torch.nn.Linear(shape["hidden"], shape["vocabulary"], bias=False)
        if not shape.get("llama"):
            self.head.weight = self.tokens.weight

    def prepare(self, batch, length, dtype, device):
        for layer in self.layers:
            layer.prepare(batch, length, dtype, device)
        angles = torch.outer(torch.arange(length), self.base ** (-torch.arange(0, self.width, 2) / self.width))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos().to(device, dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(device, dtype), persistent=False)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool, device=device).tril(), persistent=False)

    def first(self, tokens, positions):
        x = self.tokens(tokens)
        return x if self.positions is None else x + self.positions(positions)

    def last(self, x, pending):
        return self.head(self.norm((x + pending)[:, -1])).argmax(-1, keepdim=True)

    def forward(self, tokens, positions, first, layer_step, last):
        x = first(self, tokens, positions)
        rotary = (self.cos[positions], self.sin[positions]) if self.positions is None else None
        mask = self.mask[positions]
        pending = torch.zeros_like(x)
        for layer in self.layers:
            x, pending = layer_step(layer, x, pending, rotary, positions, mask)
        return last(self, x, pending)


EAGER = (CachedGPT.first, CachedLayer.step, CachedGPT.last)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def graph_of(step):
    """step() as a CUDA graph, after it ran on another stream as capturing requires."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def gpt_fast(shape, options, prompts, dtype, device):
    torch._inductor.config.coordinate_descent_tuning = options.batch == 1  # as gpt-fast: products of one row
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = CachedGPT(shape).eval()
    torch.set_default_dtype(torch.float32)
    model.prepare(options.batch, options.prompt_tokens + options.new_tokens + 8, dtype, device)
    compiled = [torch.compile(function, fullgraph=True, dynamic=False) for function in EAGER]
    token = torch.zeros(options.batch, 1, dtype=torch.long, device=device)
    position = torch.full((1,), options.prompt_tokens, device=device)

    def step():
        token.copy_(model(token, position, *compiled))
        position.add_(1)
    replay = graph_of(step) if device == "cuda" else step

    def run():
        begin = wait(device)
        token.copy_(model(prompts, torch.arange(options.prompt_tokens, device=device), *EAGER))
        position.fill_(options.prompt_tokens)
        first = wait(device)
        for _ in range(options.new_tokens - 1):
            replay()
        return first - begin, wait(device) - first
    return run, sum(p.nbytes for p in model.parameters())


def generating(model, options, prompts, device):
    def timed(count):
        begin = wait(device)
        model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, do_sample=False)
        return wait(device) - begin

    def run():
        first = timed(1)
        return first, timed(options.new_tokens) - first
    return run, sum(p.nbytes for p in model.parameters())


def with_transformers(shape, options, prompts, dtype, device):
    import transformers
    if shape.get("llama"):
        config = transformers.LlamaConfig(hidden_size=shape["hidden"], intermediate_size=shape["ffn"],
                                          num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                                          num_key_value_heads=shape["groups"], vocab_size=shape["vocabulary"],
                                          max_position_embeddings=shape["sequence"])
    else:
        config = transformers.GPT2Config(n_embd=shape["hidden"], n_layer=shape["layers"], n_head=shape["heads"],
                                         vocab_size=shape["vocabulary"], n_positions=shape["sequence"])
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0

    return generating(model, options, prompts, device)


def t5_of_transformers(shape, options, prompts, dtype, device):
    import transformers
    config = transformers.T5Config(d_model=shape["hidden"], d_kv=shape["hidden"] // shape["heads"], d_ff=4 * shape["hidden"],
                                   num_layers=shape["layers"], num_heads=shape["heads"], vocab_size=shape["vocabulary"])
    with torch.device(device):
        model = transformers.T5ForConditionalGeneration(config).to(dtype).eval()
    model.generation_config.eos_token_id, model.generation_config.decoder_start_token_id = None, 0

    return generating(model, options, prompts, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, "t5-base-relative"], default="gpt2-124m")
    parser.add_argument("--peer", choices=["gpt-fast", "transformers"], default="gpt-fast")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=256)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_t5 = options.shape in torch_t5.SHAPES
    if is_t5 and options.peer != "transformers":
        parser.error("--shape t5-base-relative: add --peer transformers")
    shape = (torch_t5.SHAPES if is_t5 else SHAPES)[options.shape]
    prompts = torch.randint(shape["vocabulary"], (options.batch, options.prompt_tokens), device=device)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    make = t5_of_transformers if is_t5 else gpt_fast if options.peer == "gpt-fast" else with_transformers
    with torch.no_grad():
        run, weights = make(shape, options, prompts, dtype, device)
        run()
        first, decoding = run()
    print(json.dumps({"name": f"{options.peer} {options.shape} {options.precision}",
                      "device": torch.cuda.get_device_name() if device == "cuda" else "CPU", "batch": options.batch,
                      "prompt": options.prompt_tokens, "new_tokens": options.new_tokens, "first_token_seconds": first,
                      "tokens_per_second": options.batch * (options.new_tokens - 1) / decoding, "weight_bytes": weights}))


if __name__ == "__main__":
    main()
