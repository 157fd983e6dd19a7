"""Mixture of experts over many steps: curves of processes, resumes in every direction, and an even use of the experts on real text."""

import json
import math
import os
import pathlib

import pytest

from program import needs_binary, teratron
from test_experts import MODEL, RUN, assert_close, losses

pytestmark = needs_binary
LONG = os.environ.get("TERATRON_LONG_TESTS")
TEXT = pathlib.Path(os.environ.get("TERATRON_TEST_DATA", "")) / "tinyshakespeare.txt"

ROUTER = ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", "0.05",
          "--moe-shared-expert-intermediate-size", "16", "--moe-shared-expert-gate", "--moe-expert-capacity-factor", "1.25",
          "--moe-token-drop-policy", "position"]
SEQUENCES = ["--tensor-model-parallel-size", "2", "--sequence-parallel"]
# Layouts by their number of ranks; those of the first run in processes.
LAYOUTS = {
    "ep": (2, ["--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", "alltoall", "--use-distributed-optimizer"]),
    "tp-ep-etp": (8, [*SEQUENCES, "--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "2", "--use-distributed-optimizer"]),
    "pp-ep-tp": (8, [*SEQUENCES, "--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "4", "--expert-tensor-parallel-size", "1",
                     "--moe-token-dispatcher-type", "alltoall"]),
    "cp-ep": (4, ["--context-parallel-size", "2", "--expert-model-parallel-size", "4", "--moe-layer-recompute", "--use-distributed-optimizer"]),
    "vpp-etp": (4, ["--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1", "--expert-tensor-parallel-size", "2"]),
}


def run(folder, layout, iterations, *more):
    ranks, flags = LAYOUTS[layout] if layout else (1, [])
    command = ["pretrain", "gpt", *RUN, *ROUTER, "--train-iters", iterations, *flags, *more]
    if ranks > 1:
        backend = "processes" if layout == "ep" else "threads"
        command = ["launch", "--nproc-per-node", ranks, "--backend", backend, "--log-dir", folder / "logs", "--", *command]
    return losses(teratron(*command).stdout)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    values = run(folder, None, 50, "--save", folder / "run", "--save-interval", "25")
    assert len(values) == 50 and values[-1][0] < 0.95 * values[0][0]
    return folder / "run", values


@pytest.mark.parametrize("layout", LAYOUTS if LONG else ["ep"])
def test_curves_of_50_steps_are_those_of_one_rank(tmp_path, one_rank, layout):
    assert_close(run(tmp_path, layout, 50), one_rank[1])


def test_resumes_from_every_layout_in_another(tmp_path, one_rank):
    """Five steps in each layout, one after the other, in and out of one rank."""
    order = [None, *LAYOUTS, None] if LONG else [None, "ep", "vpp-etp"]
    for number, layout in enumerate(order):
        found = run(tmp_path, layout, 5 * (number + 1), "--save", tmp_path / "run", "--save-interval", "5", "--load", tmp_path / "run")
        assert_close(found, one_rank[1][5 * number: 5 * (number + 1)])


CHARACTERS = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "255"]
SIZES = ["--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "64", "--max-position-embeddings", "64",
         "--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear", "--hidden-dropout", "0",
         "--attention-dropout", "0", "--init-method-std", "0.05"]
TRAINING = ["--micro-batch-size", "16", "--global-batch-size", "16", "--train-iters", "500", "--lr", "3e-3", "--min-lr", "3e-4",
            "--lr-decay-style", "cosine", "--lr-warmup-iters", "20", "--weight-decay", "0.1", "--adam-beta2", "0.95", "--eval-iters", "0",
            "--split", "1,0,0", "--device", "cpu", "--num-threads", "1", "--log-interval", "1"]
WIDTH = 96  # of an expert, of which a token uses two


def train(folder, name, flags):
    data = folder / "text_text_document"
    process = teratron("pretrain", "gpt", *SIZES, *CHARACTERS, *TRAINING, "--data-path", data, "--run-dir", folder / name, *flags, timeout=900)
    assert process.returncode == 0
    events = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [event for event in events if event["type"] == "interval"]


@pytest.mark.skipif(not LONG or not TEXT.exists(), reason="trains for minutes on real text: ./run test --long, TERATRON_TEST_DATA")
def test_experts_are_used_evenly_and_beat_the_dense_model_of_equal_active_size(tmp_path):
    text = " ".join(str(byte) for byte in TEXT.read_bytes())
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    teratron("preprocess", "--input", tmp_path / "text.jsonl", "--output-prefix", tmp_path / "text", *CHARACTERS)
    dense = train(tmp_path, "dense", ["--ffn-hidden-size", 2 * WIDTH])
    experts = train(tmp_path, "experts", ["--ffn-hidden-size", 2 * WIDTH, "--num-experts", "8", "--moe-router-topk", "2", "--moe-ffn-hidden-size", WIDTH,
                                          "--moe-aux-loss-coeff", "1e-2"])
    losses_at_the_end = [sum(event["losses"]["lm loss"] for event in run[-50:]) / 50 for run in (dense, experts)]
    entropies = {layer: [event["layers"]["moe/router_entropy"][layer] for event in experts[-100:]] for layer in "0123"}
    print(f"loss {losses_at_the_end[0]:.4f} dense, {losses_at_the_end[1]:.4f} with experts; lowest entropies",
          {layer: round(min(values), 4) for layer, values in entropies.items()})
    assert losses_at_the_end[1] < losses_at_the_end[0] and not math.isnan(losses_at_the_end[1])
    assert all(min(values) > 0.9 for values in entropies.values())
