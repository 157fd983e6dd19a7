"""Logits and training curves of tiny random models against transformers and PyTorch."""

import json
import math
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

BINARY = os.environ.get("TERATRON_BINARY")
pytestmark = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")

VOCABULARY = 131
LENGTH = 16
STEPS = 40
BATCH = 4


def run(*args, code=0):
    result = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1)
    flags = ["--position-embedding-type", "learned_absolute"]
    return transformers.GPT2LMHeadModel(config), flags


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1,
        tie_word_embeddings=False, rms_norm_eps=1e-5)
    flags = ["--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu",
             "--untie-embeddings-and-output-weights", "--disable-bias-linear", "--group-query-attention",
             "--num-query-groups", "2", "--ffn-hidden-size", "48"]
    return transformers.LlamaForCausalLM(config), flags


MODERN = dict(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, hidden_size=32, intermediate_size=48,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1,
              tie_word_embeddings=False)


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**MODERN, sliding_window=5)), None


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**MODERN, head_dim=16)), None


# Flags, or None: the settings come from config.json.
FAMILIES = {"gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen3": qwen3}


@pytest.fixture(params=sorted(FAMILIES))
def family(request, tmp_path):
    torch.manual_seed(5)
    model, flags = FAMILIES[request.param]()
    with torch.no_grad():  # norms and biases that do something
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "hf")
    run("ckpt", "convert", "--from-hf", tmp_path / "hf", "--save", tmp_path / "converted")
    return model.eval(), ["--hf-config", tmp_path / "hf"] if flags is None else flags, tmp_path


def test_logits_equal_transformers(family):
    model, _, folder = family
    lines = [torch.randint(0, VOCABULARY, (n,)).tolist() for n in (LENGTH, 1, 7)]
    (folder / "ids.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")
    run("logits", "--load", folder / "converted", "--input", folder / "ids.txt", "--output",
        folder / "logits.safetensors")
    ours = load_file(folder / "logits.safetensors")
    for number, line in enumerate(lines):
        with torch.no_grad():
            expected = model(torch.tensor([line])).logits[0]
        assert ours[f"logits.{number}"].shape == expected.shape
        torch.testing.assert_close(ours[f"logits.{number}"], expected, atol=1e-4, rtol=1e-4)


def write_dataset(prefix, tokens):
    """One document of u16 tokens in Megatron's format."""
    tokens.astype("<u2").tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2))
        file.write(struct.pack("<i", len(tokens)) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1))


def learning_rate(step, peak, floor, warmup):
    """Of the step that comes after `step` steps."""
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / (STEPS - warmup)
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def mean_loss(model, batch):
    """The loss to differentiate, and the one to report."""
    logits = model(batch[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    return loss, loss


def torch_curve(model, samples, loss_of=mean_loss):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        batch = torch.tensor(np.stack([samples(step * BATCH + i) for i in range(BATCH)]))
        objective, loss = loss_of(model, batch)
        optimizer.zero_grad()
        objective.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, 5e-3, 5e-4, 5)
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def check_training(family, tokens, loss_of, *more):
    """Trains on a document of tokens, here and in PyTorch."""
    model, flags, folder = family
    write_dataset(folder / "tokens", tokens)
    order = np.arange((len(tokens) - 1) // LENGTH, dtype=np.uint32)
    state = np.random.RandomState(77)
    state.shuffle(np.arange(1))
    state.shuffle(order)
    run("pretrain", "gpt", "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length",
        LENGTH, "--max-position-embeddings", LENGTH, "--micro-batch-size", 2, "--global-batch-size", BATCH,
        "--train-iters", STEPS, "--lr", 5e-3, "--min-lr", 5e-4, "--lr-decay-style", "cosine",
        "--lr-warmup-iters", 5, "--weight-decay", 0.1, "--adam-beta2", 0.95, "--clip-grad", 0.7,
        "--hidden-dropout", 0, "--attention-dropout", 0, "--data-path", folder / "tokens", "--split", "1,0,0",
        "--tokenizer-type", "NullTokenizer", "--vocab-size", VOCABULARY - 1, "--seed", 77, "--eval-iters", 0,
        "--load", folder / "converted", "--finetune", "--run-dir", folder / "run", "--log-interval", 1,
        "--device", "cpu", *flags, *more)
    events = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["type"] == "step"]
    assert len(steps) == STEPS
    expected, norms = torch_curve(
        model.train(), lambda i: tokens[order[i] * LENGTH: order[i] * LENGTH + LENGTH + 1], loss_of)
    for step, loss, norm in zip(steps, expected, norms):
        assert step["losses"]["lm loss"] == pytest.approx(loss, rel=1e-4)
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert expected[-1] < 0.97 * expected[0]  # the weights did move


def something_to_learn():
    tokens = np.random.RandomState(3).randint(0, VOCABULARY, size=STEPS * BATCH * LENGTH + 50)
    tokens[1::2] = (tokens[::2][: len(tokens[1::2])] * 7 + 3) % VOCABULARY
    return tokens


def test_training_follows_pytorch(family):
    check_training(family, something_to_learn(), mean_loss)


END = VOCABULARY - 1  # of a document, for the NullTokenizer


def masked_losses(model, batch):
    """Sum over the tokens that do not follow the end of a document, and their number, of each micro-batch of two."""
    mask = batch[:, :-1] != END
    logits = model(batch[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none") * mask
    return losses.view(2, -1).sum(1), mask.view(2, -1).sum(1)


def by_token(model, batch):
    losses, counts = masked_losses(model, batch)
    return losses.sum() / counts.sum(), losses.sum() / counts.sum()


def by_microbatch(model, batch):
    losses, counts = masked_losses(model, batch)
    return (losses / counts).mean(), losses.sum() / counts.sum()


@pytest.mark.parametrize("family", ["llama"], indirect=True)
@pytest.mark.parametrize("loss_of, more", [(by_token, ["--calculate-per-token-loss"]), (by_microbatch, [])])
def test_uneven_microbatches_follow_pytorch(family, loss_of, more):
    tokens = something_to_learn()
    state = np.random.RandomState(9)
    for begin in range(0, len(tokens), 3 * LENGTH):  # every third sample is nearly all ends of documents
        part = tokens[begin:begin + LENGTH]
        part[state.rand(len(part)) < 0.85] = END
    check_training(family, tokens, loss_of, "--eod-mask-loss", *more)
