"""BERT against an independent model in PyTorch (logits, losses, all gradients, a curve), and against the outputs that
Megatron-LM itself computed."""

import json
import math
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_bert import Options, ReferenceBert

BINARY = os.environ.get("TERATRON_BINARY", "")
DRIVER = pathlib.Path(BINARY).resolve().parents[2] / "tests" / "parity_model" if BINARY else pathlib.Path()
MEGATRON = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "models" / "bert_a.safetensors"
pytestmark = pytest.mark.skipif(not DRIVER.is_file(), reason="TERATRON_BINARY names no build with tests")

STEPS, LENGTH, BATCH, VOCABULARY, PREDICTIONS = 20, 16, 3, 61, 4
LR, DECAY = 5e-3, 0.1
COMMON = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", str(LENGTH),
          "--max-position-embeddings", "16", "--micro-batch-size", str(BATCH), "--train-iters", str(STEPS),
          "--lr", str(LR), "--weight-decay", str(DECAY), "--init-method-std", "0.1", "--hidden-dropout", "0",
          "--attention-dropout", "0", "--vocab-size", "60", "--tokenizer-type", "NullTokenizer",
          "--make-vocab-size-divisible-by", "8"]
# name: flags, the same for the reference
CASES = {
    "megatron": ([], {}),
    "erf": (["--no-bias-gelu-fusion"], dict(tanh_gelu=False)),
    "openai-gelu": (["--openai-gelu"], dict(tanh_head=True)),
    "hugging-face": (["--apply-residual-connection-post-layernorm", "--no-bias-gelu-fusion", "--norm-epsilon", "1e-12"],
                     dict(residual_after_norm=True, tanh_gelu=False, eps=1e-12)),
    "one-loss": (["--bert-no-binary-head"], {}),
    "untied": (["--untie-embeddings-and-output-weights"], {}),
    "recompute": (["--recompute-granularity", "full", "--recompute-method", "uniform"], {}),
}


def random_batch(generator):
    """A batch as Megatron-LM's dataset makes it: [B, S]."""
    lengths = torch.randint(9, LENGTH + 1, (BATCH,), generator=generator)
    real = torch.arange(LENGTH)[None] < lengths[:, None]
    batch = {"text": torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator),
             "types": torch.randint(0, 2, (BATCH, LENGTH), generator=generator),
             "padding_mask": real.long(), "loss_mask": torch.zeros(BATCH, LENGTH),
             "is_random": torch.randint(0, 2, (BATCH,), generator=generator)}
    for row in range(BATCH):
        count = 1 + int(torch.randint(0, PREDICTIONS, (), generator=generator))
        batch["loss_mask"][row, torch.randperm(int(lengths[row]), generator=generator)[:count]] = 1
    labels = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    batch["labels"] = torch.where(batch["loss_mask"] > 0, labels, -1)
    return batch


def columns(batch):
    """As the program stacks them: [S, B]; predictions [B, P]."""
    positions = torch.zeros(BATCH, PREDICTIONS, dtype=torch.long)
    labels, mask = torch.zeros_like(positions), torch.zeros(BATCH, PREDICTIONS)
    bounds = []
    for row in range(BATCH):
        masked = batch["loss_mask"][row].nonzero().flatten()
        positions[row, :len(masked)] = masked
        labels[row, :len(masked)] = batch["labels"][row, masked]
        mask[row, :len(masked)] = 1
        length = int(batch["padding_mask"][row].sum())
        bounds += [row * LENGTH] + ([row * LENGTH + length] if length < LENGTH else [])
    index = torch.arange(LENGTH)[:, None].expand(LENGTH, BATCH)
    return {"tokens": batch["text"].T, "types": batch["types"].T, "sequence_index": index,
            "cu_seqlens": torch.tensor([*bounds, BATCH * LENGTH], dtype=torch.int32), "masked_positions": positions,
            "masked_labels": labels, "masked_loss_mask": mask, "is_random": batch["is_random"][:, None]}


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(4)
    return [random_batch(generator) for _ in range(STEPS)]


def drive(folder, requests):
    (folder / "cases.json").write_text(json.dumps([{"family": "bert", **request} for request in requests]))
    done = subprocess.run([DRIVER, folder / "cases.json", folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda name: load_file(folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def outputs(batches, tmp_path_factory):
    """Everything in one process: name -> dtype -> tensors."""
    folder = tmp_path_factory.mktemp("berts")
    save_file({f"{step}.{name}": value.contiguous().clone() for step, batch in enumerate(batches)
               for name, value in columns(batch).items()}, folder / "batches.safetensors")
    load = drive(folder, [
        {"name": f"{name}.{dtype}", "flags": COMMON + flags, "dtype": dtype, "steps": STEPS if dtype == "fp64" else 0,
         "batches": str(folder / "batches.safetensors")}
        for name, (flags, _) in CASES.items() for dtype in ("fp64", "fp32")])
    return lambda name, dtype: load(f"{name}.{dtype}")


def reference(name, tensors):
    weights = {key.removeprefix("weight."): value for key, value in tensors.items() if key.startswith("weight.")}
    return ReferenceBert(weights, Options(**CASES[name][1]))


def assert_close(actual, expected, bound, scale=0.0):
    assert (actual - expected).norm() <= bound * max(expected.norm(), scale)


@pytest.mark.parametrize("dtype,bound", [("fp64", 1e-11), ("fp32", 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_logits_losses_and_gradients(outputs, batches, name, dtype, bound):
    ours, batch = outputs(name, dtype), batches[0]
    model = reference(name, ours)
    real = batch["padding_mask"].bool()
    assert not real.all()
    logits = model.lm_logits(model(batch["text"], batch["types"], batch["padding_mask"])).detach()
    assert_close(ours["logits"].transpose(0, 1)[real], logits[real], bound)
    losses = model.losses(batch)
    assert len(losses) == sum(key.startswith("loss.") for key in ours) == (1 if name == "one-loss" else 2)
    for number, loss in enumerate(losses):
        assert ours[f"loss.{number}"].item() == pytest.approx(loss.item(), rel=bound)
    sum(losses).backward()
    assert {key for key in ours if key.startswith("gradient.")} == {"gradient." + key for key in model.weights}
    largest = max(weight.grad.norm() for weight in model.parameters())
    for key, weight in model.weights.items():  # a key's bias has no gradient but rounding
        assert_close(ours["gradient." + key], weight.grad, bound, 1e-3 * largest)


@pytest.mark.parametrize("name", ["megatron", "hugging-face", "one-loss"])
def test_curve(outputs, batches, name):
    ours = outputs(name, "fp64")
    model = reference(name, ours)
    matrices = [w for w in model.parameters() if w.dim() > 1]
    vectors = [w for w in model.parameters() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=LR)
    losses = []
    for step in range(STEPS):
        loss = sum(model.losses(batches[step]))
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
    for name in ("embedding.word_embeddings", "embedding.position_embeddings", "lm_head.dense", "pooler.dense",
                 "encoder.layers.1.mlp.linear_fc1"):
        assert ours[f"weight.{name}.weight"].std().item() == pytest.approx(0.1, rel=0.1), name
    for name in ("embedding.tokentype_embeddings", "binary_head"):
        assert ours[f"weight.{name}.weight"].std().item() == pytest.approx(0.1, rel=0.3), name
    for name in ("self_attention.linear_proj", "mlp.linear_fc2"):
        deviation = ours[f"weight.encoder.layers.1.{name}.weight"].std().item()
        assert deviation == pytest.approx(0.1 / math.sqrt(2 * 2), rel=0.1), name


def test_megatrons_own_outputs(tmp_path):
    """tests/fixtures/models: weights, and the logits that core_v0.7.0 computed with them."""
    expected = load_file(MEGATRON)
    real = expected["padding_mask"].bool()
    samples, length = real.shape
    bounds = [0, length, length + int(real[1].sum()), 2 * length]
    index = torch.arange(length)[:, None].expand(length, samples).contiguous()
    batch = {"tokens": expected["tokens"].T, "types": expected["types"].T, "sequence_index": index,
             "cu_seqlens": torch.tensor(bounds, dtype=torch.int32)}
    # One prediction; its loss is not compared.
    for name in ("masked_positions", "masked_labels", "is_random"):
        batch[name] = torch.zeros(samples, 1, dtype=torch.long)
    batch["masked_loss_mask"] = torch.ones(samples, 1)
    save_file({f"0.{name}": value.contiguous() for name, value in batch.items()}, tmp_path / "batch.safetensors")
    flags = ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "4", "--seq-length", str(length),
             "--max-position-embeddings", "16", "--micro-batch-size", "2", "--train-iters", "1", "--lr", "1e-3",
             "--vocab-size", "60", "--tokenizer-type", "NullTokenizer", "--hidden-dropout", "0",
             "--attention-dropout", "0"]
    ours = drive(tmp_path, [{"name": "a", "flags": flags, "dtype": "fp32", "steps": 0, "weights": str(MEGATRON),
                             "batches": str(tmp_path / "batch.safetensors")}])("a")
    torch.testing.assert_close(ours["logits"].transpose(0, 1)[real], expected["logits"][real], atol=5e-6, rtol=1e-5)
    log_odds = expected["binary_logits"].log_softmax(-1)
    assert ours["loss.1"].item() == pytest.approx(-log_odds[:, 0].mean().item(), rel=1e-5)
