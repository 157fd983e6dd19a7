"""Evaluations of the whole validation split: every sample once, whatever the layout, also where ranks share experts."""

import json
import re

import numpy
import pytest
from program import VOCABULARY, needs_binary, teratron
from safetensors.numpy import load_file

pytestmark = needs_binary

LENGTH, SAMPLES = 16, 7  # which no number of ranks below divides
MODEL = ["--num-layers", 4, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", LENGTH, "--max-position-embeddings", LENGTH,
         "--hidden-dropout", 0, "--attention-dropout", 0, "--num-experts", 4, "--moe-router-topk", 2, "--moe-layer-freq", "[0,1,1,1]",
         "--init-method-std", 0.3]
# Training batches are divided by all of them.
RUN = [*MODEL, *VOCABULARY, "--micro-batch-size", 1, "--global-batch-size", 8, "--lr", "1e-3", "--lr-decay-style", "constant", "--eval-iters", 1,
       "--device", "cpu", "--num-threads", 1, "--log-interval", 1]
LAYOUTS = [(2, ["--expert-model-parallel-size", 2]),
           (4, ["--expert-model-parallel-size", 4, "--moe-token-dispatcher-type", "alltoall"]),
           (4, ["--expert-model-parallel-size", 2, "--expert-tensor-parallel-size", 2]),
           (4, ["--tensor-model-parallel-size", 2, "--sequence-parallel", "--expert-tensor-parallel-size", 4]),
           (4, ["--pipeline-model-parallel-size", 2, "--num-layers-per-virtual-pipeline-stage", 1, "--expert-model-parallel-size", 2])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two texts, and a model that was trained for a step. The one of validation is cut into 7 samples and some tokens more."""
    folder = tmp_path_factory.mktemp("data")
    random = numpy.random.default_rng(3)
    texts = {"train": random.integers(0, 60, 40 * LENGTH), "valid": random.integers(0, 60, SAMPLES * LENGTH + 5)}
    for name, tokens in texts.items():
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": " ".join(map(str, tokens))}) + "\n")
        teratron("preprocess", "--input", folder / f"{name}.jsonl", "--output-prefix", folder / name, *VOCABULARY)
    paths = [flag for name in texts for flag in (f"--{name}-data-path", folder / f"{name}_text_document")]
    teratron("pretrain", "gpt", *RUN, *paths, "--train-iters", 1, "--save", folder / "run")
    return folder, paths, texts["valid"]


def pretrain(logs, ranks, *flags):
    command = ["pretrain", "gpt", *RUN, *flags]
    if ranks > 1:
        command = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", logs, "--", *command]
    return teratron(*command).stdout


def expected_loss(folder, tokens, out):
    """From the logits of all samples."""
    samples = [tokens[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(SAMPLES)]
    (out / "ids.txt").write_text("".join(" ".join(map(str, sample[:-1])) + "\n" for sample in samples))
    teratron("logits", "--load", folder / "run", "--input", out / "ids.txt", "--output", out / "logits.safetensors", "--device", "cpu")
    logits = load_file(out / "logits.safetensors")
    losses = []
    for i, sample in enumerate(samples):
        rows = logits[f"logits.{i}"].astype(numpy.float64)
        losses += list(numpy.log(numpy.exp(rows).sum(1)) - rows[numpy.arange(LENGTH), sample[1:]])
    return numpy.mean(losses)


def test_every_sample_counts_once_in_every_layout(data, tmp_path):
    folder, paths, tokens = data
    expected = expected_loss(folder, tokens, tmp_path)
    for ranks, flags in [(1, []), *LAYOUTS]:
        said = pretrain(tmp_path / "logs", ranks, *paths, "--load", folder / "run", "--skip-train", "--train-iters", 1, "--full-validation", *flags)
        [loss] = re.findall(r"validation loss at the end of training for val data \| lm loss value: ([0-9.E+-]+)", said)
        assert float(loss) == pytest.approx(expected, rel=1e-5), flags


def test_in_training_and_after_epochs(data, tmp_path):
    _, paths, _ = data
    whole = ["--full-validation", "--eval-interval", 2, "--train-iters", 4]
    epochs = ["--num-train-epochs", 2, "--eval-interval", 100]
    patterns = {r"validation loss at iteration \d+ \| lm loss value: ([0-9.E+-]+)": (whole, 2), r"eval_loss: ([0-9.]+)": (epochs, 2)}
    for pattern, (flags, count) in patterns.items():
        one, two = ([float(loss) for loss in re.findall(pattern, pretrain(tmp_path / "logs", ranks, *paths, *flags, *layout))]
                    for ranks, layout in [(1, []), LAYOUTS[0]])
        assert len(one) == count and one == pytest.approx(two, rel=1e-5), flags
