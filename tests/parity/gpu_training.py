"""Small runs on GPUs, of models that train on sentences."""

import json
import os
import subprocess

import pytest
import torch

from sentences import write_sentences

BINARY = os.environ.get("TERATRON_BINARY")
needs_gpu = [
    pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

STEPS = 20
COMMON = ["--hidden-size", "64", "--num-attention-heads", "4", "--max-position-embeddings", "64", "--micro-batch-size", "4",
          "--global-batch-size", "8", "--lr", "2e-3", "--lr-decay-style", "linear", "--log-interval", "5", "--eval-iters", "0",
          "--device", "cuda"]
NO_DROPOUT = ["--hidden-dropout", "0", "--attention-dropout", "0"]
DROPOUT = ["--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
MOCK = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "500"]
LAYOUTS = {
    "dp2": ["--use-distributed-optimizer"],
    "tp2": ["--tensor-model-parallel-size", "2"],
    "tp2-sp": ["--tensor-model-parallel-size", "2", "--sequence-parallel"],
    "pp2": ["--pipeline-model-parallel-size", "2"],
}


def sentences(folder):
    """Flags of sentences whose samples are often shorter than the rows."""
    tokenizer = write_sentences(folder, documents=200, longest=20)
    command = [BINARY, "preprocess", "--input", str(folder / "text.json"), "--output-prefix", str(folder / "my"), *tokenizer,
               "--split-sentences"]
    subprocess.run(command, check=True, timeout=120)
    return [*tokenizer, "--data-path", str(folder / "my_text_sentence"), "--split", "1,0,0"]


def train(family, shape, folder, name, *flags, gpus=1):
    """The losses of each step; `folder`/`name` holds the run."""
    launch = ["launch", "--nproc-per-node", str(gpus), "--"] if gpus > 1 else []
    length = [] if "--train-iters" in flags else ["--train-iters", str(STEPS)]
    command = [BINARY, *launch, "pretrain", family, *COMMON, *shape, *length, "--save", str(folder / name), "--load",
               str(folder / name), *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    events = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = {event["iteration"]: event for event in events if event["type"] == "step"}
    return [steps[i]["losses"] for i in sorted(steps)]


def close(actual, expected, rel):
    assert len(actual) == len(expected)
    for name in expected[0]:
        assert [step[name] for step in actual] == pytest.approx([step[name] for step in expected], rel=rel), name
