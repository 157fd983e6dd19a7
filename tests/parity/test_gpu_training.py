"""The same binary on a GPU: the CPU's curve, half precision, bitwise resume."""

import json
import os
import subprocess

import pytest
import torch

BINARY = os.environ.get("TERATRON_BINARY")
pytestmark = [
    pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

GPT2 = []
LLAMA = ["--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear",
         "--untie-embeddings-and-output-weights", "--group-query-attention", "--num-query-groups", "2"]
MODELS = {"gpt2": GPT2, "llama": LLAMA}
# Wide enough that products apply the activation themselves.
WIDE = ["--seq-length", "512", "--max-position-embeddings", "512", "--micro-batch-size", "9", "--global-batch-size", "18",
        "--ffn-hidden-size", "2048", "--lr", "1e-3"]


def train(folder, name, *flags, gpus=1):
    launch = ["launch", "--nproc-per-node", str(gpus), "--"] if gpus > 1 else []
    length = [] if "--train-samples" in flags else ["--train-iters", "20", "--lr-warmup-iters", "4"]
    command = [
        BINARY, *launch, "pretrain", "gpt", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
        "--seq-length", "64", "--max-position-embeddings", "64", "--micro-batch-size", "2",
        "--global-batch-size", "4", *length, "--lr", "3e-3", "--lr-decay-style", "cosine",
        "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "500",
        "--eval-iters", "0", "--save", str(folder / name), "--load", str(folder / name), "--log-interval", "5",
        *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    events = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return {event["iteration"]: event for event in events if event["type"] == "step"}


def losses(steps):
    return [steps[i]["losses"]["lm loss"] for i in sorted(steps)]


NO_DROPOUT = ("--hidden-dropout", "0", "--attention-dropout", "0")


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("dropout", [NO_DROPOUT, ("--hidden-dropout", "0.1", "--attention-dropout", "0.1")])
def test_fp32_curve_is_the_cpus(tmp_path, model, dropout):
    cpu = losses(train(tmp_path, "cpu", "--device", "cpu", *dropout, *MODELS[model]))
    gpu = losses(train(tmp_path, "gpu", "--device", "cuda", *dropout, *MODELS[model]))
    assert len(gpu) == 20
    assert gpu == pytest.approx(cpu, rel=1e-4)


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("precision", ["--bf16", "--fp16"])
def test_half_precision_follows_fp32(tmp_path, model, precision):
    more = ["--initial-loss-scale", "65536"] if precision == "--fp16" else []
    full = losses(train(tmp_path, "fp32", "--device", "cuda", *NO_DROPOUT, *MODELS[model]))
    half = train(tmp_path, "half", "--device", "cuda", precision, *more, *NO_DROPOUT, *MODELS[model])
    assert losses(half) == pytest.approx(full, rel=2e-2)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_products_with_activations_train_alike(tmp_path, model):
    flags = ["--device", "cuda", *WIDE, *MODELS[model]]
    full = losses(train(tmp_path, "fp32", *flags))
    half = losses(train(tmp_path, "half", "--bf16", *flags))
    assert half == pytest.approx(full, rel=1e-2)
    again = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    assert losses(train(tmp_path, "again", "--bf16", *again, *flags)) == half


TWO_GPUS = {
    "tp2": ["--tensor-model-parallel-size", "2"],
    "tp2-sp": ["--tensor-model-parallel-size", "2", "--sequence-parallel"],
    "dp2": ["--use-distributed-optimizer"],
}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("layout", sorted(TWO_GPUS))
def test_products_with_activations_train_alike_on_two_gpus(tmp_path, model, layout):
    flags = ["--device", "cuda", "--bf16", *WIDE, "--seq-length", "1024", "--max-position-embeddings", "1024",
             "--micro-batch-size", "16", "--global-batch-size", "32", "--ffn-hidden-size", "4096", *NO_DROPOUT,
             *MODELS[model]]
    one = losses(train(tmp_path, "one", *flags))
    assert losses(train(tmp_path, "two", *flags, *TWO_GPUS[layout], gpus=2)) == pytest.approx(one, rel=2e-4)


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("precision", [[], ["--bf16"]])
def test_resume_is_bitwise_in_deterministic_mode(tmp_path, model, precision):
    flags = ["--device", "cuda", "--deterministic-mode", *precision, *MODELS[model]]
    whole = losses(train(tmp_path, "whole", *flags))
    train(tmp_path, "halves", "--exit-interval", "10", *flags)
    halves = losses(train(tmp_path, "halves", *flags))
    assert halves == whole


EXPERTS = ["--bf16", *LLAMA, "--num-experts", "8", "--moe-ffn-hidden-size", "64", "--moe-aux-loss-coeff", "1e-2",
           "--moe-input-jitter-eps", "0.1"]
PADDED = ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias", "--moe-expert-capacity-factor", "1.25",
          "--moe-pad-expert-input-to-capacity"]
GRAPHS = {
    "gpt2": [], "gpt2-bf16": ["--bf16"], "gpt2-fp16": ["--fp16", "--initial-loss-scale", "65536"],
    "llama-bf16": ["--bf16", *LLAMA], "llama-fp8": ["--bf16", "--fp8-format", "hybrid", *LLAMA],
    "ramp": ["--bf16", "--rampup-batch-size", "2", "2", "16", "--train-samples", "64", "--lr-warmup-samples", "16"],
    "per-token": ["--calculate-per-token-loss"],
    "one": ["--bf16", "--global-batch-size", "2"], "experts": EXPERTS, "experts-padded": [*EXPERTS, *PADDED],
    "wide-gpt2": ["--bf16", *WIDE], "wide-llama": ["--bf16", *WIDE, *LLAMA],
}


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_cuda_graphs_leave_every_bit_as_it_is(tmp_path, name):
    flags = ["--device", "cuda", "--deterministic-mode", "--eval-iters", "1", "--eval-interval", "7", *GRAPHS[name]]
    graphs = [*flags, "--cuda-graph-impl", "local"]
    eager = losses(train(tmp_path, "eager", *flags, "--cuda-graph-impl", "none"))
    assert losses(train(tmp_path, "graphs", *graphs)) == eager
    assert losses(train(tmp_path, "auto", *flags)) == eager
    train(tmp_path, "halves", "--exit-interval", "10", *graphs)
    assert losses(train(tmp_path, "halves", *graphs)) == eager


def test_overflow_halves_the_scale_and_leaves_the_weights(tmp_path):
    steps = train(tmp_path, "fp16", "--device", "cuda", "--fp16", "--hysteresis", "1", *NO_DROPOUT)
    assert any(step["skipped"] for step in steps.values())
    scales = [steps[i]["loss_scale"] for i in sorted(steps)]
    assert scales[0] == 2.0 ** 31 and min(scales) < 2.0 ** 28


def test_out_of_memory_says_what_was_needed(tmp_path):
    command = [BINARY, "pretrain", "gpt", "--num-layers", "2", "--hidden-size", "4096", "--num-attention-heads", "32",
               "--seq-length", "8192", "--max-position-embeddings", "8192", "--micro-batch-size", "512", "--bf16",
               "--train-iters", "1", "--lr", "1e-4", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size",
               "50000", "--eval-iters", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 7, result.stderr
    assert "CUDA out of memory. Tried to allocate" in result.stderr
    assert "activations " in result.stderr and "--micro-batch-size 256 (now 512)" in result.stderr
