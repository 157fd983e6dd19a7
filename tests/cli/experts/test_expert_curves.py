"""Mixture of experts over many steps: curves of processes, resumes in every direction, and an even use of the experts on real text."""

import json
import math
import os
import pathlib

import numpy
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


TRAINING = ["--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear", "--hidden-dropout", "0",
            "--attention-dropout", "0", "--init-method-std", "0.05", "--lr-decay-style", "cosine", "--weight-decay", "0.1", "--adam-beta2", "0.95",
            "--eval-iters", "0", "--split", "1,0,0", "--device", "cpu", "--num-threads", "1", "--log-interval", "1"]


def successions(length=30000, symbols=200):
    """Each symbol has its successor, which follows it nine times of ten: a table that few weights cannot hold."""
    random = numpy.random.default_rng(5)
    successor, words, symbol = random.permutation(symbols), [], 0
    while len(words) < length:
        words.append(symbol)
        symbol = successor[symbol] if random.random() < 0.9 else random.integers(symbols)
    return words


def flags_of(layers, hidden, heads, length, batch, steps, rate):
    return ["--num-layers", layers, "--hidden-size", hidden, "--num-attention-heads", heads, "--seq-length", length, "--max-position-embeddings", length,
            "--micro-batch-size", batch, "--global-batch-size", batch, "--train-iters", steps, "--lr", rate, "--min-lr", rate / 10]


# Text, its vocabulary, the model, the width of an expert, of which a token uses two.
CASES = {
    "successions": (successions, 255, flags_of(2, 16, 2, 64, 8, 100, 1e-2), 8),
    "real text": (lambda: list(TEXT.read_bytes()), 255, flags_of(4, 64, 4, 64, 16, 500, 3e-3), 96),
}


def train(folder, name, flags):
    teratron("pretrain", "gpt", *TRAINING, "--data-path", folder / "text_text_document", "--run-dir", folder / name, *flags, timeout=900)
    events = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [event for event in events if event["type"] == "interval"]


@pytest.mark.parametrize("case", CASES)
def test_experts_are_used_evenly_and_beat_the_dense_model_of_equal_active_size(tmp_path, case):
    if case == "real text" and (not LONG or not TEXT.exists()):
        pytest.skip("trains for minutes: ./run test --long, TERATRON_TEST_DATA")
    text, vocabulary, sizes, width = CASES[case]
    words = ["--tokenizer-type", "NullTokenizer", "--vocab-size", vocabulary]
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": " ".join(map(str, text()))}) + "\n")
    teratron("preprocess", "--input", tmp_path / "text.jsonl", "--output-prefix", tmp_path / "text", *words)
    sizes = [*sizes, *words, "--lr-warmup-iters", 10, "--ffn-hidden-size", 2 * width]
    dense = train(tmp_path, "dense", sizes)
    experts = train(tmp_path, "experts", [*sizes, "--num-experts", "8", "--moe-router-topk", "2", "--moe-ffn-hidden-size", width,
                                          "--moe-aux-loss-coeff", "1e-2"])
    last = len(dense) // 10
    losses_at_the_end = [sum(event["losses"]["lm loss"] for event in run[-last:]) / last for run in (dense, experts)]
    layers = experts[-1]["layers"]["moe/router_entropy"]
    entropies = {layer: [event["layers"]["moe/router_entropy"][layer] for event in experts[-2 * last:]] for layer in layers}
    print(f"loss {losses_at_the_end[0]:.4f} dense, {losses_at_the_end[1]:.4f} with experts; lowest entropies",
          {layer: round(min(values), 4) for layer, values in entropies.items()})
    assert losses_at_the_end[1] < losses_at_the_end[0] and not math.isnan(losses_at_the_end[1])
    assert all(min(values) > 0.9 for values in entropies.values())
