"""Texts that several GPUs generate together are those of one GPU."""

import json
import subprocess

import pytest
import torch

import gpu_training
from gpu_training import BINARY, MOCK, NO_DROPOUT, two_gpus

pytestmark = [*gpu_training.needs_gpu, two_gpus]
SHAPE = ["--num-layers", "4", "--seq-length", "1024", "--max-position-embeddings", "1024", "--position-embedding-type", "rope",
         "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear"]
# Longer than the time between two looks at pending collectives.
REQUESTS = [{"tokens": list(range(1, 9)), "top_k": 1, "max_new_tokens": 900}, {"tokens": [5], "top_k": 1, "max_new_tokens": 40}]
LAYOUTS = {"tp2": (2, ["--tp", "2"]), "pp2": (2, ["--pp", "2"]), "tp2-pp2": (4, ["--tp", "2", "--pp", "2"]), "tp4": (4, ["--tp", "4"])}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    gpu_training.train("gpt", SHAPE, folder, "run", *MOCK, *NO_DROPOUT, "--max-position-embeddings", "1024", "--hidden-size", "256")
    return folder / "run"


def texts(checkpoint, folder, ranks, *flags):
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in REQUESTS))
    launch = ["launch", "--nproc-per-node", str(ranks), "--log-dir", str(folder / "logs"), "--"] if ranks > 1 else []
    command = [BINARY, *launch, "generate", "--load", str(checkpoint), "--input", str(folder / "in.jsonl"), "--output",
               str(folder / "out.jsonl"), "--device", "cuda", *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line)["tokens"] for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_gpus_generate_the_texts_of_one(tmp_path, checkpoint, layout):
    ranks, flags = LAYOUTS[layout]
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    expected = texts(checkpoint, alone, 1)
    assert [len(tokens) for tokens in expected] == [900, 40]
    assert texts(checkpoint, together, ranks, *flags) == expected
