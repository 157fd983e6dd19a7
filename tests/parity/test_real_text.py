"""200 steps on real text: the losses are those of PyTorch training the same model on the same samples."""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch
import transformers

BINARY = os.environ.get("TERATRON_BINARY")
DATA = pathlib.Path(os.environ.get("TERATRON_TEST_DATA", ""))
pytestmark = [pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program"),
              pytest.mark.skipif(not (DATA / "tinyshakespeare.txt").exists(), reason="TERATRON_TEST_DATA holds no text")]

STEPS, BATCH, LENGTH, RATE, SEED = 200, 4, 32, 1e-3, 77
TOKENIZER = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", DATA / "gpt2-vocab.json", "--merge-file",
             DATA / "gpt2-merges.txt"]
MODEL = ["--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", LENGTH,
         "--max-position-embeddings", LENGTH, "--hidden-dropout", 0, "--attention-dropout", 0]
# Largest |loss / PyTorch's - 1| of a step, and of the mean of the last 50. In fp32 the first steps agree to 1e-7; later Adam
# magnifies rounding where gradients are nearly zero. bf16 rounds weights to three digits.
PRECISIONS = {"fp32": (["--device", "cpu"], 3e-4, 3e-5), "bf16": (["--device", "cpu", "--bf16"], 1e-2, 1e-3),
              "bf16 on a GPU": (["--device", "cuda", "--bf16"], 1e-2, 1e-3)}


def run(*args):
    result = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr


def torch_losses(model, samples):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        batch = torch.tensor(np.stack([samples(step * BATCH + i) for i in range(BATCH)]))
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.fixture(scope="module")
def shakespeare(tmp_path_factory):
    """A folder with the text as one document and the untrained model; and PyTorch's losses."""
    folder = tmp_path_factory.mktemp("shakespeare")
    (folder / "text.jsonl").write_text(json.dumps({"text": (DATA / "tinyshakespeare.txt").read_text()}) + "\n")
    run("preprocess", "--input", folder / "text.jsonl", "--output-prefix", folder / "text", *TOKENIZER)
    torch.manual_seed(SEED)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
                                                                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.save_pretrained(folder / "hf")
    run("ckpt", "convert", "--from-hf", folder / "hf", "--save", folder / "converted")
    tokens = np.fromfile(folder / "text_text_document.bin", dtype=np.uint16).astype(np.int64)
    order = np.arange((len(tokens) - 1) // LENGTH, dtype=np.uint32)
    assert len(order) >= STEPS * BATCH, "one epoch is enough"
    state = np.random.RandomState(SEED)
    state.shuffle(np.arange(1))  # the order of the documents, then that of the samples
    state.shuffle(order)
    return folder, torch_losses(model.train(), lambda i: tokens[order[i] * LENGTH: order[i] * LENGTH + LENGTH + 1])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_200_steps_on_real_text_follow_pytorch(shakespeare, tmp_path, precision):
    flags, of_a_step, of_the_end = PRECISIONS[precision]
    if "cuda" in flags and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    folder, expected = shakespeare
    run("pretrain", "gpt", *MODEL, *TOKENIZER, "--micro-batch-size", BATCH // 2, "--global-batch-size", BATCH, "--train-iters",
        STEPS, "--lr", RATE, "--lr-decay-style", "constant", "--weight-decay", 0.1, "--adam-beta2", 0.95, "--clip-grad", 1.0,
        "--data-path", folder / "text_text_document", "--split", "1,0,0", "--seed", SEED, "--eval-iters", 0, "--load",
        folder / "converted", "--finetune", "--run-dir", tmp_path, "--log-interval", 1, *flags)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = np.array([event["losses"]["lm loss"] for event in events if event["type"] == "step"])
    assert len(losses) == STEPS and expected[-1] < 0.75 * expected[0]
    assert losses[:10] == pytest.approx(expected[:10], rel=1e-6 if precision == "fp32" else of_a_step)
    assert np.abs(losses / expected - 1).max() < of_a_step
    assert abs(losses[-50:].mean() / expected[-50:].mean() - 1) < of_the_end
