"""T5 against an independent model in PyTorch (logits, losses, all gradients, a curve), and against the outputs that
Megatron-LM itself computed."""

import json
import math
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_t5 import Options, ReferenceT5

BINARY = os.environ.get("TERATRON_BINARY", "")
DRIVER = pathlib.Path(BINARY).resolve().parents[2] / "tests" / "parity_model" if BINARY else pathlib.Path()
MEGATRON = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "models" / "t5_a.safetensors"
pytestmark = pytest.mark.skipif(not DRIVER.is_file(), reason="TERATRON_BINARY names no build with tests")

STEPS, SOURCE, TARGET, BATCH, VOCABULARY = 20, 16, 11, 3, 61
LR, DECAY = 5e-3, 0.1
COMMON = ["--encoder-num-layers", "2", "--decoder-num-layers", "3", "--hidden-size", "32", "--num-attention-heads", "4",
          "--encoder-seq-length", str(SOURCE), "--decoder-seq-length", str(TARGET), "--max-position-embeddings", "16",
          "--micro-batch-size", str(BATCH), "--train-iters", str(STEPS), "--lr", str(LR), "--weight-decay", str(DECAY),
          "--init-method-std", "0.1", "--hidden-dropout", "0", "--attention-dropout", "0", "--vocab-size", "60",
          "--tokenizer-type", "NullTokenizer", "--make-vocab-size-divisible-by", "8"]
PUBLISHED = ["--position-embedding-type", "relative", "--relative-attention-num-buckets", "8",
             "--relative-attention-max-distance", "10", "--softmax-scale", "1", "--normalization", "RMSNorm",
             "--disable-bias-linear", "--ffn-hidden-size", "64"]
# name: flags, the same for the reference
CASES = {
    "megatron": ([], {}),
    "erf": (["--no-bias-gelu-fusion"], dict(activation="erf")),
    "deep-encoder": (["--encoder-num-layers", "3", "--decoder-num-layers", "1"],
                     dict(encoder_layers=3, decoder_layers=1)),
    "gated": (["--normalization", "RMSNorm", "--geglu", "--disable-bias-linear", "--ffn-hidden-size", "64",
               "--untie-embeddings-and-output-weights"], dict(rms=True, activation="geglu")),
    "published": ([*PUBLISHED, "--relu", "--scale-decoder-outputs", "--no-lm-head-bias", "--kv-channels", "12"],
                  dict(rms=True, activation="relu", max_distance=10, scale=1.0, scaled_logits=True)),
    "published-gated": ([*PUBLISHED, "--geglu", "--untie-embeddings-and-output-weights", "--recompute-granularity",
                         "full", "--recompute-method", "uniform", "--recompute-num-layers", "2"],
                        dict(rms=True, activation="geglu", max_distance=10, scale=1.0)),
    "megatron-relative": (["--position-embedding-type", "relative", "--recompute-granularity", "selective"],
                          dict(max_distance=128)),
    "recompute": (["--recompute-granularity", "full", "--recompute-method", "uniform"], {}),
}


def random_batch(generator):
    """A batch as Megatron-LM's dataset makes it: [B, S]."""
    def draw(bound, length):
        return torch.randint(0, bound, (BATCH, length), generator=generator)
    lengths = [torch.randint(5, length + 1, (BATCH,), generator=generator) for length in (SOURCE, TARGET)]
    lengths[0][0] = SOURCE  # a row without padding beside others
    real = [torch.arange(length)[None] < own[:, None] for length, own in zip((SOURCE, TARGET), lengths)]
    return {"text_enc": draw(VOCABULARY, SOURCE), "enc_mask": real[0].long(), "text_dec": draw(VOCABULARY, TARGET),
            "dec_mask": real[1].long(), "loss_mask": real[1].float(),
            "labels": torch.where(real[1], draw(VOCABULARY, TARGET), -1)}


def columns(batch):
    """As the program stacks them: [S, B]."""
    def index(length):
        return torch.arange(length)[:, None].expand(length, BATCH)
    return {"encoder_tokens": batch["text_enc"].T, "encoder_index": index(SOURCE),
            "encoder_length": batch["enc_mask"].sum(1, keepdim=True), "decoder_tokens": batch["text_dec"].T,
            "decoder_index": index(TARGET), "labels": batch["labels"].clamp_min(0).T, "loss_mask": batch["loss_mask"].T}


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(4)
    return [random_batch(generator) for _ in range(STEPS)]


@pytest.fixture(scope="module")
def outputs(batches, tmp_path_factory):
    """Everything in one process: name -> dtype -> tensors."""
    folder = tmp_path_factory.mktemp("t5s")
    save_file({f"{step}.{name}": value.contiguous().clone() for step, batch in enumerate(batches)
               for name, value in columns(batch).items()}, folder / "batches.safetensors")
    requests = [{"family": "t5", "name": f"{name}.{dtype}", "flags": COMMON + flags, "dtype": dtype,
                 "steps": STEPS if dtype == "fp64" else 0, "batches": str(folder / "batches.safetensors")}
                for name, (flags, _) in CASES.items() for dtype in ("fp64", "fp32")]
    (folder / "cases.json").write_text(json.dumps(requests))
    done = subprocess.run([DRIVER, folder / "cases.json", folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda name, dtype: load_file(folder / f"{name}.{dtype}.safetensors")


def reference(name, tensors):
    weights = {key.removeprefix("weight."): value for key, value in tensors.items() if key.startswith("weight.")}
    return ReferenceT5(weights, Options(**CASES[name][1]))


def assert_close(actual, expected, bound, scale=0.0):
    assert (actual - expected).norm() <= bound * max(expected.norm(), scale)


@pytest.mark.parametrize("dtype,bound", [("fp64", 1e-11), ("fp32", 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_logits_losses_and_gradients(outputs, batches, name, dtype, bound):
    ours, batch = outputs(name, dtype), batches[0]
    model = reference(name, ours)
    real = batch["dec_mask"].bool()
    assert not real.all() and not batch["enc_mask"].all()
    assert_close(ours["logits"].transpose(0, 1)[real], model.logits(batch).detach()[real], bound)
    loss = model.loss(batch)
    assert ours["loss.0"].item() == pytest.approx(loss.item(), rel=bound)
    loss.backward()
    assert {key for key in ours if key.startswith("gradient.")} == {"gradient." + key for key in model.weights}
    assert ("output_layer.bias" in model.weights) == (name not in ("gated", "published", "published-gated"))
    largest = max(weight.grad.norm() for weight in model.parameters())
    for key, weight in model.weights.items():  # a key's bias has no gradient but rounding
        assert_close(ours["gradient." + key], weight.grad, bound, 1e-3 * largest)


@pytest.mark.parametrize("name", ["megatron", "gated", "published"])
def test_curve(outputs, batches, name):
    ours = outputs(name, "fp64")
    model = reference(name, ours)
    matrices = [w for w in model.parameters() if w.dim() > 1]
    vectors = [w for w in model.parameters() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=LR)
    losses = []
    for step in range(STEPS):
        loss = model.loss(batches[step])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert ours["losses"][step].item() == pytest.approx(loss.item(), rel=1e-6), f"step {step}"
        assert ours["norms"][step].item() == pytest.approx(norm.item(), rel=1e-5), f"step {step}"
        losses.append(loss.item())
    assert abs(losses[-1] - losses[0]) > 1e-3  # the weights did move


def test_initial_weights(outputs):
    ours = outputs("megatron", "fp64")
    for name in ("embedding.word_embeddings", "embedding.position_embeddings", "encoder.layers.1.mlp.linear_fc1",
                 "decoder.layers.1.cross_attention.linear_q", "decoder.layers.1.cross_attention.linear_kv"):
        assert ours[f"weight.{name}.weight"].std().item() == pytest.approx(0.1, rel=0.1), name
    for name in ("encoder.layers.1.self_attention", "decoder.layers.1.self_attention",
                 "decoder.layers.1.cross_attention"):
        deviation = ours[f"weight.{name}.linear_proj.weight"].std().item()
        assert deviation == pytest.approx(0.1 / math.sqrt(2 * 2), rel=0.1), name


def test_megatrons_own_outputs(tmp_path):
    """tests/fixtures/models: weights, and the logits that Megatron-LM computed with them and a mask of the cross
    attention."""
    expected = load_file(MEGATRON)
    source, target = expected["encoder_tokens"], expected["decoder_tokens"]
    (samples, length), target_length = source.shape, target.shape[1]

    def index(rows):
        return torch.arange(rows)[:, None].expand(rows, samples)
    batch = {"encoder_tokens": source.T, "encoder_index": index(length),
             "encoder_length": expected["encoder_mask"].sum(1, keepdim=True), "decoder_tokens": target.T,
             "decoder_index": index(target_length), "labels": target.T, "loss_mask": torch.ones(target_length, samples)}
    save_file({f"0.{name}": value.contiguous().clone() for name, value in batch.items()}, tmp_path / "batch.safetensors")
    flags = ["--encoder-num-layers", "2", "--decoder-num-layers", "2", "--hidden-size", "16", "--num-attention-heads",
             "4", "--encoder-seq-length", str(length), "--decoder-seq-length", str(target_length),
             "--max-position-embeddings", "16", "--micro-batch-size", "2", "--train-iters", "1", "--lr", "1e-3",
             "--vocab-size", "60", "--tokenizer-type", "NullTokenizer", "--hidden-dropout", "0",
             "--attention-dropout", "0", "--no-bias-gelu-fusion"]
    request = {"family": "t5", "name": "a", "flags": flags, "dtype": "fp32", "steps": 0, "weights": str(MEGATRON),
               "batches": str(tmp_path / "batch.safetensors")}
    (tmp_path / "cases.json").write_text(json.dumps([request]))
    done = subprocess.run([DRIVER, tmp_path / "cases.json", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    real = expected["decoder_mask"].bool()
    assert not real.all() and not expected["encoder_mask"].all()
    ours = load_file(tmp_path / "a.safetensors")["logits"].transpose(0, 1)
    torch.testing.assert_close(ours[real], expected["logits"][real], atol=5e-6, rtol=1e-5)
