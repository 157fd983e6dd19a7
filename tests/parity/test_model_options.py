"""Every option of a GPT against an independent model in PyTorch: logits, all gradients, a curve of 30 steps."""

import json
import math
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from reference_gpt import Options, ReferenceGPT

BINARY = os.environ.get("TERATRON_BINARY", "")
DRIVER = pathlib.Path(BINARY).resolve().parents[2] / "tests" / "parity_model" if BINARY else pathlib.Path()
pytestmark = pytest.mark.skipif(not DRIVER.is_file(), reason="TERATRON_BINARY names no build with tests")

STEPS = 30
LR, DECAY = 5e-3, 0.1
COMMON = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16",
          "--micro-batch-size", "2", "--train-iters", str(STEPS), "--lr", str(LR), "--weight-decay", str(DECAY),
          "--init-method-std", "0.1", "--hidden-dropout", "0", "--attention-dropout", "0", "--vocab-size", "60",
          "--tokenizer-type", "NullTokenizer", "--make-vocab-size-divisible-by", "8"]
ROPE = ["--position-embedding-type", "rope"]
LLAMA = [*ROPE, "--normalization", "RMSNorm", "--swiglu", "--untie-embeddings-and-output-weights",
         "--disable-bias-linear", "--group-query-attention", "--num-query-groups", "2"]
LLAMA_OPTIONS = dict(position="rope", rms=True, activation="swiglu", groups=2)

# name: flags, the same for the reference
CASES = {
    "gpt2": ([], {}),
    "absolute": (["--position-embedding-type", "absolute"], {}),
    "llama": (LLAMA, LLAMA_OPTIONS),
    "alibi": (["--position-embedding-type", "alibi"], dict(position="alibi")),
    "alibi-odd-heads": (["--position-embedding-type", "alibi", "--num-attention-heads", "6", "--kv-channels", "8"],
                        dict(position="alibi", heads=6, groups=6)),
    "alibi-window": (["--position-embedding-type", "alibi", "--window-size", "5,0"],
                     dict(position="alibi", windows=(6, 6))),
    "none": (["--position-embedding-type", "none"], dict(position="none")),
    "none-old": (["--no-position-embedding"], dict(position="none")),
    "rotary": (["--position-embedding-type", "rotary"], dict(position="rope")),
    "rotary-old": (["--use-rotary-position-embeddings"], dict(position="rope")),
    "rope-percent": ([*ROPE, "--rotary-percent", "0.5"], dict(position="rope", rope_share=0.5)),
    "rope-base": ([*ROPE, "--rotary-base", "500"], dict(position="rope", rope_base=500.0)),
    "rope-interleaved": ([*ROPE, "--rotary-interleaved"], dict(position="rope", rope_interleaved=True)),
    "rope-interleaved-share": ([*ROPE, "--rotary-interleaved", "--rotary-percent", "0.25"],
                               dict(position="rope", rope_interleaved=True, rope_share=0.25)),
    "rope-interpolation": ([*ROPE, "--rotary-seq-len-interpolation-factor", "4"],
                           dict(position="rope", rope_interpolation=4.0)),
    "rope-llama3": ([*LLAMA, "--use-rope-scaling", "--kv-channels", "16", "--rotary-base", "500000"],
                    dict(LLAMA_OPTIONS, width=16, rope_base=500000.0, llama3_factor=8.0)),
    "rope-llama3-factor": ([*LLAMA, "--use-rope-scaling", "--rope-scaling-factor", "32", "--kv-channels", "16"],
                           dict(LLAMA_OPTIONS, width=16, llama3_factor=32.0)),
    "rope-llama3-positions": ([*LLAMA, "--use-rope-scaling", "--rope-scaling-original-max-position-embeddings", "64",
                               "--kv-channels", "16"],
                              dict(LLAMA_OPTIONS, width=16, llama3_factor=8.0, llama3_positions=64)),
    "multiquery": (["--attention-head-type", "multiquery"], dict(groups=1)),
    "grouped": (["--group-query-attention", "--num-query-groups", "2"], dict(groups=2)),
    "layernorm-1p": (["--apply-layernorm-1p"], dict(one_plus=True)),
    "rmsnorm-1p": (["--normalization", "RMSNorm", "--apply-layernorm-1p"], dict(rms=True, one_plus=True)),
    "norm-epsilon": (["--norm-epsilon", "0.1"], dict(eps=0.1)),
    "residual-after-norm": (["--apply-residual-connection-post-layernorm"], dict(residual_after_norm=True)),
    "openai-gelu": (["--openai-gelu"], {}),
    "erf-gelu": (["--no-bias-gelu-fusion"], dict(activation="erf")),
    "erf-gelu-without-biases": (["--disable-bias-linear"], dict(activation="erf")),
    "swiglu": (["--swiglu"], dict(activation="swiglu")),
    "geglu": (["--geglu"], dict(activation="geglu")),
    "squared-relu": (["--squared-relu"], dict(activation="squared_relu")),
    "qkv-bias": ([*LLAMA, "--add-qkv-bias"], LLAMA_OPTIONS),
    "qk-layernorm": (["--qk-layernorm"], dict(qk_norm=True)),
    "qk-rmsnorm": ([*LLAMA, "--qk-layernorm"], dict(LLAMA_OPTIONS, qk_norm=True)),
    "qk-rmsnorm-1p": ([*LLAMA, "--qk-layernorm", "--apply-layernorm-1p"],
                      dict(LLAMA_OPTIONS, qk_norm=True, one_plus=True)),
    "qk-rmsnorm-all-heads": ([*LLAMA, "--qk-layernorm", "--qk-layernorm-all-heads"],
                             dict(LLAMA_OPTIONS, qk_norm=True, qk_norm_all_heads=True)),
    "qk-rmsnorm-all-heads-1p": ([*LLAMA, "--qk-layernorm", "--qk-layernorm-all-heads", "--apply-layernorm-1p"],
                                dict(LLAMA_OPTIONS, qk_norm=True, qk_norm_all_heads=True, one_plus=True)),
    "norm-of-outputs": ([*LLAMA, "--norm-position", "output"], dict(LLAMA_OPTIONS, norm_outputs=True)),
    "layernorm-of-outputs": (["--norm-position", "output"], dict(norm_outputs=True)),
    "parallel-residual": (["--parallel-residual"], dict(parallel_residual=True)),
    "neox": ([*ROPE, "--rotary-percent", "0.25", "--parallel-residual", "--no-bias-gelu-fusion"],
             dict(position="rope", rope_share=0.25, parallel_residual=True, activation="erf")),
    "embedding-layernorm": (["--embedding-layernorm"], dict(embedding_norm=True)),
    "bloom": (["--embedding-layernorm", "--position-embedding-type", "alibi"],
              dict(embedding_norm=True, position="alibi")),
    "scaled-embeddings": (["--scale-embeddings"], dict(embedding_scale=math.sqrt(32))),
    "gemma": ([*ROPE, "--scale-embeddings", "--normalization", "RMSNorm", "--apply-layernorm-1p", "--geglu",
               "--disable-bias-linear", "--kv-channels", "16"],
              dict(position="rope", embedding_scale=math.sqrt(32), rms=True, one_plus=True, activation="geglu",
                   width=16)),
    "opt": (["--position-embedding-offset", "2", "--relu"], dict(first_position=2, activation="relu")),
    "query-key-scaling": (["--apply-query-key-layer-scaling"], {}),
    "softmax-in-fp32": (["--attention-softmax-in-fp32"], {}),
    "window": ([*LLAMA, "--window-size", "(3,0)"], dict(LLAMA_OPTIONS, windows=(4, 4))),
    "window-skip": (["--window-size", "2,0", "--window-attn-skip-freq", "2"], dict(windows=(3, 0))),
    "window-pattern": (["--window-size", "2,-1", "--window-attn-skip-freq", "[0,1]"], dict(windows=(0, 3))),
    "untied": (["--untie-embeddings-and-output-weights"], {}),
    "kv-channels": (["--kv-channels", "4"], dict(width=4)),
    "ffn-size": (["--ffn-hidden-size", "40"], {}),
    "xavier": (["--init-method-xavier-uniform"], {}),
    "everything": ([*ROPE, "--rotary-interleaved", "--qk-layernorm", "--apply-layernorm-1p", "--geglu",
                    "--apply-residual-connection-post-layernorm", "--apply-query-key-layer-scaling",
                    "--window-size", "7,0", "--group-query-attention", "--num-query-groups", "2",
                    "--recompute-granularity", "full", "--recompute-method", "uniform"],
                   dict(position="rope", rope_interleaved=True, qk_norm=True, one_plus=True, activation="geglu",
                        residual_after_norm=True, windows=(8, 8), groups=2)),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Everything in one process: name -> dtype -> tensors."""
    folder = tmp_path_factory.mktemp("models")
    requests = []
    for name, (flags, _) in CASES.items():
        for dtype, steps in (("fp64", STEPS), ("fp32", 0)):
            requests.append({"name": f"{name}.{dtype}", "flags": COMMON + flags, "dtype": dtype, "steps": steps})
    (folder / "cases.json").write_text(json.dumps(requests))
    done = subprocess.run([DRIVER, folder / "cases.json", folder], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda name, dtype: load_file(folder / f"{name}.{dtype}.safetensors")


def reference(name, tensors):
    weights = {key.removeprefix("weight."): value for key, value in tensors.items() if key.startswith("weight.")}
    return ReferenceGPT(weights, Options(**CASES[name][1]))


def assert_close(actual, expected, bound, scale=None):
    scale = expected.norm() if scale is None else max(expected.norm(), scale)
    assert (actual - expected).norm() <= bound * scale


@pytest.mark.parametrize("dtype,bound", [("fp64", 1e-11), ("fp32", 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients(outputs, name, dtype, bound):
    ours = outputs(name, dtype)
    model = reference(name, ours)
    text = ours["texts"][0].T
    assert_close(ours["logits"].transpose(0, 1), model(text[:, :-1]).detach(), bound)
    model.loss(text).backward()
    assert {key for key in ours if key.startswith("gradient.")} == {"gradient." + key for key in model.weights}
    largest = max(weight.grad.norm() for weight in model.parameters())
    for key, weight in model.weights.items():  # a key's bias has no gradient but rounding
        assert_close(ours["gradient." + key], weight.grad, bound, 1e-3 * largest)


@pytest.mark.parametrize("name", CASES)
def test_curve(outputs, name):
    ours = outputs(name, "fp64")
    model = reference(name, ours)
    matrices = [w for w in model.parameters() if w.dim() > 1]
    vectors = [w for w in model.parameters() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=LR)
    losses = []
    for step in range(STEPS):
        loss = model.loss(ours["texts"][step].T)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert ours["losses"][step].item() == pytest.approx(loss.item(), rel=1e-6), f"step {step}"
        assert ours["norms"][step].item() == pytest.approx(norm.item(), rel=1e-5), f"step {step}"
        losses.append(loss.item())
    assert abs(losses[-1] - losses[0]) > 1e-3  # the weights did move


def deviation(tensors, name):
    return tensors["weight." + name].std().item()


def test_initial_weights(outputs):
    ours = outputs("gpt2", "fp64")
    layer = "decoder.layers.1."
    for name in ("embedding.word_embeddings", "embedding.position_embeddings", layer + "self_attention.linear_qkv",
                 layer + "mlp.linear_fc1"):
        assert deviation(ours, name + ".weight") == pytest.approx(0.1, rel=0.1), name
    for name in (layer + "self_attention.linear_proj", layer + "mlp.linear_fc2"):
        assert deviation(ours, name + ".weight") == pytest.approx(0.1 / math.sqrt(2 * 2), rel=0.1), name
    ours = outputs("xavier", "fp64")
    for name, value in ours.items():
        if name.startswith("weight.") and value.dim() == 2:
            bound = math.sqrt(6 / sum(value.shape))
            assert value.abs().max() <= bound
            assert value.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
