"""300 steps on real text: hybrids of attention and a recurrence learn as a transformer of the same size does."""

import json
import os
import pathlib
import re
import subprocess

import pytest

BINARY = os.environ.get("TERATRON_BINARY")
TEXT = pathlib.Path(os.environ.get("TERATRON_TEST_DATA", "")) / "tinyshakespeare.txt"
pytestmark = [pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program"),
              pytest.mark.skipif(not TEXT.exists(), reason="TERATRON_TEST_DATA holds no text"),
              pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="trains three models (--long)")]

STEPS, BATCH, LENGTH = 300, 8, 128
# A mixer has about as many weights as attention's 4 h^2: 3 h d of a recurrence with d = 4 h / 3.
SIZES = ["--hidden-size", 128, "--ffn-hidden-size", 512, "--num-attention-heads", 4, "--mamba-num-heads", 10, "--mamba-head-dim", 16,
         "--mamba-num-groups", 1, "--mamba-state-dim", 12, "--linear-num-key-heads", 4, "--linear-num-value-heads", 8, "--linear-key-head-dim",
         12, "--linear-value-head-dim", 16, "--normalization", "RMSNorm", "--disable-bias-linear", "--hidden-dropout", 0, "--attention-dropout", 0]
PATTERNS = {"transformer": ("*-*-*-*-", ["--position-embedding-type", "rope"]),
            "mamba": ("M-M-*-M-", ["--position-embedding-type", "none"]),
            "delta": ("G-G-*-G-", ["--position-embedding-type", "none"])}


def run(*args):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The text in tokens of a small vocabulary, which leaves most weights to the layers."""
    folder = tmp_path_factory.mktemp("text")
    run("tokenizer", "train", "--input", TEXT, "--vocab-size", 512, "--output", folder / "tokenizer", "--special-tokens", "<|endoftext|>")
    tokenizer = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder / "tokenizer"]
    (folder / "text.jsonl").write_text(json.dumps({"text": TEXT.read_text()}) + "\n")
    run("preprocess", "--input", folder / "text.jsonl", "--output-prefix", folder / "text", *tokenizer)
    return [*tokenizer, "--data-path", folder / "text_text_document", "--split", "1,0,0"]


def test_hybrids_reach_the_loss_of_a_transformer(data, tmp_path):
    """All see each sample once, in one order: the mean of the last 50 losses is of text that was not learned."""
    parameters, losses = {}, {}
    for name, (pattern, flags) in PATTERNS.items():
        text = run("pretrain", "mamba", "--hybrid-layer-pattern", pattern, *flags, *SIZES, *data, "--seq-length", LENGTH,
                   "--max-position-embeddings", LENGTH, "--micro-batch-size", BATCH, "--global-batch-size", BATCH, "--train-iters", STEPS, "--lr", 3e-3,
                   "--min-lr", 3e-4, "--lr-decay-style", "cosine", "--lr-warmup-iters", 20, "--clip-grad", 1.0, "--weight-decay", 0.1,
                   "--adam-beta2", 0.95, "--eval-iters", 0, "--log-interval", 1, "--device", "cpu", "--run-dir", tmp_path / name)
        parameters[name] = int(re.search(r"model parallel rank \(0, 0\): (\d+)", text).group(1))
        events = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        steps = [event["losses"]["lm loss"] for event in events if event["type"] == "step"]
        assert len(steps) == STEPS
        losses[name] = sum(steps[-50:]) / 50
        assert losses[name] < 0.7 * steps[0]
        print(f"{name}: {parameters[name]} parameters, loss {losses[name]:.4f}")
    for name in ("mamba", "delta"):
        assert parameters[name] == pytest.approx(parameters["transformer"], rel=0.01)
        assert losses[name] < 1.02 * losses["transformer"], losses
