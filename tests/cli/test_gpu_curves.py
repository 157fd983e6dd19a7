"""Curves of 50 steps over NCCL are those of one GPU, whatever the layout; and collectives and their adjoints over NCCL."""

import subprocess

import pytest
import torch
from program import BINARY, NN_TEST, VOCABULARY, communicator_tests, environment, losses, needs_binary, needs_comm_test

GPUS = torch.cuda.device_count()
pytestmark = [needs_binary, pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")]

MODEL = ["--num-layers", "8", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512",
         "--max-position-embeddings", "512", "--micro-batch-size", "4", "--global-batch-size", "16", "--hidden-dropout", "0.1",
         "--attention-dropout", "0", "--lr", "1e-3", "--lr-warmup-iters", "10", "--train-iters", "50", "--eval-iters", "0",
         "--log-interval", "1", *VOCABULARY,
         "--mock-data", "--distributed-timeout-seconds-after-init", "60"]
SHARDED = ["--use-distributed-optimizer", "--overlap-param-gather"]
LAYOUTS = {"tp2": (2, ["--tp", "2"]), "tp2-sp": (2, ["--tp", "2", "--sp"]), "pp2": (2, ["--pp", "2"]),
           "pp2-interleaved": (2, ["--pp", "2", "--vpp", "2"]), "dp2": (2, []), "dp2-sharded": (2, SHARDED),
           "cp2-p2p": (2, ["--cp", "2", *SHARDED]), "cp2-all-gather": (2, ["--cp", "2", "--cp-comm-type", "all_gather"]),
           "cp2-a2a": (2, ["--cp", "2", "--cp-comm-type", "a2a"]), "tp2-cp2-sp": (4, ["--tp", "2", "--sp", "--cp", "2"]),
           "cp4-p2p": (4, ["--cp", "4", *SHARDED]), "cp4-all-gather": (4, ["--cp", "4", "--cp-comm-type", "all_gather"]),
           "cp4-a2a": (4, ["--cp", "4", "--cp-comm-type", "a2a"]), "tp4-sp": (4, ["--tp", "4", "--sp"]), "pp4-interleaved": (4, ["--pp", "4", "--vpp", "2"]),
           "tp2-pp2": (4, ["--tp", "2", "--sp", "--pp", "2"]), "dp4-sharded": (4, SHARDED),
           "tp2-dp2-sharded": (4, ["--tp", "2", "--sp", *SHARDED]),
           "pp2-dp2-interleaved": (4, ["--pp", "2", "--vpp", "2", *SHARDED])}
# What another order of adding costs; another seed costs some percent.
BOUNDS = {"bf16": 2e-3, "fp32": 1e-4}


def curve(logs, ranks, precision, *flags):
    command = [BINARY, "launch", "--nproc-per-node", str(ranks), "--log-dir", str(logs), "--", "pretrain", "gpt", *MODEL, *flags]
    if precision == "bf16":
        command.append("--bf16")
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment())
    assert result.returncode == 0, result.stderr[-2000:]
    values = losses(result.stdout)
    assert len(values) == 50
    return values


@pytest.fixture(scope="module", params=BOUNDS)
def one_gpu(request, tmp_path_factory):
    return request.param, curve(tmp_path_factory.mktemp("one"), 1, request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_curves_over_nccl_are_those_of_one_gpu(tmp_path, one_gpu, layout):
    ranks, flags = LAYOUTS[layout]
    if GPUS < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    precision, expected = one_gpu
    assert expected[-1] < 0.9 * expected[0]
    assert curve(tmp_path, ranks, precision, *flags) == pytest.approx(expected, rel=BOUNDS[precision])


@needs_comm_test
def test_collectives_and_their_adjoints_over_nccl(tmp_path):
    result = communicator_tests("nccl", tmp_path, "--gtest_filter=*Worlds*")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert "WorldsCollectives.AdjointPropertyHoldsForRandomShapes" in result.stdout
    if torch.cuda.can_device_access_peer(0, 1):
        assert "beside no product" not in (tmp_path / "rank-0.log").read_text(), "copy engines are not used"


@needs_comm_test
@pytest.mark.parametrize("windows", ["0", "1"])  # messages by NCCL's kernels, and by copy engines
def test_context_parallel_attention_over_nccl(tmp_path, monkeypatch, windows):
    monkeypatch.setenv("NCCL_WIN_ENABLE", windows)
    result = communicator_tests("nccl", tmp_path, "--gtest_filter=*Worlds*", program=NN_TEST)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert "[       OK ] WorldsContextParallel.BlocksOfOtherRanksGiveTheResultsOfOne" in result.stdout
