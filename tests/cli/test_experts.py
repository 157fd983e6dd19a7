"""Mixture of experts on the command line: the same losses in every layout, also across a resume in another one."""

import json
import math
import os
import re
import signal

import pytest
from jobs import rank_pids, start_job
from program import VOCABULARY, message, needs_binary, steps, teratron, wait_for

pytestmark = needs_binary

MODEL = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32",
         "--max-position-embeddings", "32", "--swiglu", "--disable-bias-linear", "--hidden-dropout", "0",
         "--attention-dropout", "0", "--num-experts", "8", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "24",
         "--moe-aux-loss-coeff", "1e-2", "--moe-z-loss-coeff", "1e-3", "--moe-layer-freq", "([0]+[1]*3)", "--init-method-std", "0.1"]
RUN = [*MODEL, *VOCABULARY, "--mock-data", "--micro-batch-size", "1", "--global-batch-size", "4", "--lr", "1e-3",
       "--lr-decay-style", "constant", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1", "--log-interval", "1", "--override-opt-param-scheduler",
       "--check-weight-hash-across-dp-replicas-interval", "2"]
# Layouts by their number of ranks.
LAYOUTS = [
    (8, ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-model-parallel-size", "4", "--moe-grouped-gemm",
         "--moe-token-dispatcher-type", "alltoall", "--use-distributed-optimizer"]),
    (4, ["--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "2"]),
    (4, ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-model-parallel-size", "4",
         "--expert-tensor-parallel-size", "1", "--use-distributed-optimizer"]),
]


def run(logs, ranks, flags, iterations, *more):
    command = ["pretrain", "gpt", *RUN, "--train-iters", iterations, *flags, *more]
    if ranks > 1:
        command = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", logs, "--", *command]
    return teratron(*command).stdout


def losses(text):
    """Per iteration: loss, load-balancing loss, z-loss."""
    number = r"([0-9.E+-]+)"
    return [tuple(map(float, row)) for row in re.findall(
        rf"lm loss: {number} \| load_balancing_loss: {number} \| z_loss: {number} \|", text)]


def assert_close(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other):
        assert a == pytest.approx(b, rel=2e-5), f"{a} {b}"


def test_layouts_and_resumes_have_the_losses_of_one_rank(tmp_path):
    whole = losses(run(tmp_path / "logs", 1, [], 8, "--save", tmp_path / "one", "--save-interval", "4"))
    assert len(whole) == 8 and whole[0][1] >= 1.0, whole
    for number, (ranks, flags) in enumerate(LAYOUTS):
        folder = tmp_path / str(number)
        first = run(tmp_path / "logs", ranks, flags, 4, "--save", folder, "--save-interval", "4")
        assert_close(losses(first), whole[:4])
        ranks, flags = LAYOUTS[(number + 1) % len(LAYOUTS)]
        assert_close(losses(run(tmp_path / "logs", ranks, flags, 8, "--load", folder)), whole[4:])


def test_loads_are_written(tmp_path):
    run(tmp_path / "logs", 1, ["--moe-expert-capacity-factor", "0.5"], 2, "--run-dir", tmp_path)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    layers = [event["layers"] for event in events if event["type"] == "interval"][-1]
    assert sorted(layers["moe/expert_load"]) == ["1", "2", "3"]
    for layer, loads in layers["moe/expert_load"].items():
        assert len(loads) == 8 and math.isclose(sum(loads), 1.0, rel_tol=1e-9)
        assert 0.4 < layers["moe/drop_rate"][layer] < 1.0
        entropy = -sum(share * math.log(share) for share in loads if share > 0) / math.log(8)
        assert math.isclose(layers["moe/router_entropy"][layer], entropy, rel_tol=1e-9)


def test_bad_combinations():
    for flags, words in [(["--expert-model-parallel-size", "3"], ["--num-experts", "8"]),
                         (["--moe-expert-capacity-factor", "0"], ["--moe-expert-capacity-factor", "drops every token"]),
                         (["--moe-router-load-balancing-type", "aux_loss", "none"], ["'none'", "alone"]),
                         (["--moe-layer-freq", "[1,0"], ["--moe-layer-freq"])]:
        message(teratron("pretrain", "gpt", *RUN, "--train-iters", "1", *flags, code=2), *words)
    message(teratron("pretrain", "bert", *RUN, "--train-iters", "1", code=2), "--num-experts", "gpt")


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_an_expert_rank_that_hangs_or_dies_is_named(tmp_path, dispatcher, sent):
    process = start_job(*RUN, "--train-iters", "100000", "--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", dispatcher,
                        "--distributed-timeout-seconds-after-init", "2", "--run-dir", tmp_path, flags=["--nproc-per-node", 2, "--log-dir", tmp_path / "logs"])
    wait_for(lambda: len(steps(tmp_path)) >= 3, "three steps")
    pids = rank_pids(process)
    os.kill(pids[1], sent)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 5
    rank = rf"rank 1 \(pid {pids[1]} on \S+\)"
    if sent == signal.SIGSTOP:
        assert re.search(rf"error: .*group \[0 1\].* timed out after 2 s: {rank} does not answer: it is stopped", errors), errors[-2000:]
    else:
        assert re.search(rf"error: {rank} was killed by signal 9 \(SIGKILL\), the first to fail, after iteration \d+", errors), errors[-2000:]
        assert re.search(rf"error: {rank} has died", (tmp_path / "logs/rank-0.log").read_text())
