"""--cpu-offloading-num-layers: the losses and weights of training without it, what plan says, and what is refused."""

import re
from pathlib import Path

import pytest
from program import VOCABULARY, assert_bitwise, losses, message, needs_binary, teratron, train, weights

pytestmark = needs_binary

# Hidden states of 1 MiB: smaller tensors stay where they are.
RUN = ["--num-layers", "4", "--hidden-size", "128", "--num-attention-heads", "4", "--seq-length", "512", *VOCABULARY, "--mock-data",
       "--micro-batch-size", "4", "--lr", "1e-3", "--lr-decay-style", "constant", "--eval-iters", "1", "--eval-interval", "2",
       "--train-iters", "2", "--device", "cpu", "--num-threads", "1", "--log-interval", "1", "--hidden-dropout", "0.1",
       "--position-embedding-type", "rope", "--swiglu"]
OFFLOAD = ["--cpu-offloading-num-layers", "2"]
SETTINGS = {
    "all-saved": [],
    "recompute": ["--recompute-granularity", "full"],
    "accumulation": ["--global-batch-size", "8"],
    "bf16-lora": ["--bf16", "--lora-rank", "4", "--lora-dropout", "0.1"],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_bitwise_the_same(name, tmp_path):
    run = lambda folder, *flags: train(*RUN, *SETTINGS[name], *flags, "--save", tmp_path / folder).stdout
    expected, offloaded = run("kept"), run("offloaded", *OFFLOAD)
    assert losses(offloaded) == losses(expected) and len(losses(expected)) >= 2
    assert_bitwise(weights(tmp_path / "offloaded", 2), weights(tmp_path / "kept", 2))


def test_pipelines_of_virtual_stages_train_the_same(tmp_path):
    layout = ["--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1", "--global-batch-size", "16"]
    run = lambda *flags: teratron("launch", "--nproc-per-node", "2", "--backend", "threads", "--log-dir", tmp_path, "--", "pretrain",
                                  "gpt", *RUN, *layout, *flags).stdout
    expected = losses(run())
    assert losses(run("--cpu-offloading-num-layers", "1")) == expected and len(expected) >= 2


def test_plan_moves_activations_to_the_host():
    def planned(*flags):
        text = teratron("plan", "gpt", *RUN, *flags).stdout
        row = next(line for line in text.splitlines() if line.split()[:1] == ["0"])
        host = re.search(r"up to (\S+) GiB of pinned host memory", text)
        return float(row.split()[5]), float(host[1]) if host else 0.0

    device, host = planned()
    assert host == 0.0
    less, two_layers = planned(*OFFLOAD)
    assert two_layers > 0.01 and device - less == pytest.approx(two_layers, abs=0.002)


def test_the_table_of_long_sequences_is_planned():
    """docs/long-sequences.md: peaks of all, offloaded, recomputed and both, with the host's memory; bold: it fits."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "long-sequences.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| [\d,]+ \|", line) and line.count("|") == 8]
    assert len(rows) == 5
    for tokens, kept, offloaded, host, recomputed, both, both_host in [[cell.strip() for cell in row] for row in rows]:
        length = int(tokens.replace(",", ""))
        command = ["plan", "gpt", "--model-preset", "llama3-8b", "--num-layers", 12, "--seq-length", length, "--max-position-embeddings", length,
                   "--micro-batch-size", 1, "--bf16", "--mock-data", "--loss-chunks", length // 2048, "--gpu-memory", "H100"]
        offload, full = ["--cpu-offloading-num-layers", 10], ["--recompute-granularity", "full"]
        for cell, on_host, flags in [(kept, "0", []), (offloaded, host, offload), (recomputed, "0", full), (both, both_host, [*offload, *full])]:
            said = teratron(*command, *flags).stdout
            row = next(line.split() for line in said.splitlines() if line.split()[:1] == ["0"])
            assert float(row[7]) == pytest.approx(float(cell.strip("*")), abs=0.051), (tokens, flags)
            assert (row[9] == "yes") == cell.startswith("**"), (tokens, flags)
            pinned = re.search(r"up to (\S+) GiB of pinned host memory", said)
            assert float(pinned[1] if pinned else 0) == pytest.approx(float(on_host), abs=0.051), (tokens, flags)


def test_buffers_are_always_retained():
    text = teratron("plan", "gpt", *RUN, *OFFLOAD, "--cpu-offloading-retain-pinned-cpu-buffers")
    assert "always allocated once and reused" in text.stdout + text.stderr


@pytest.mark.parametrize("flags, parts", [
    (["5"], ["--cpu-offloading-num-layers", "5", "at most 4 layers", "Use at most 4"]),
    (["-1"], ["--cpu-offloading-num-layers", "-1"]),
    (["some"], ["--cpu-offloading-num-layers", "some"]),
    (["1", "--cuda-graph-impl", "local"], ["--cuda-graph-impl local and --cpu-offloading-num-layers", "not captured"])])
def test_bad_values_are_refused(flags, parts):
    message(train(*RUN, "--cpu-offloading-num-layers", *flags, code=2), *parts)


def test_missing_host_memory_ends_the_run():
    message(train(*RUN, *OFFLOAD, code=7, fault="offload.allocate:throw"), "no pinned host memory for offloaded activations",
            "--cpu-offloading-num-layers")
