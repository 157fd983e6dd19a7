"""Multi-rank jobs: the same numbers with every launcher and backend."""

import signal
import socket
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from jobs import BACKENDS, launch, mpirun, needs_mpirun, start_two_machines
from program import (BINARY, DIVERGENCES, JOB, MOCK, communicator_tests, environment, free_port, kept, losses, message,
                     needs_binary, needs_comm_test, processes, steps, teratron, wait_for)

pytestmark = needs_binary

LAYOUTS = {"tp2": (2, ["--tp", "2"]), "dp2": (2, []), "tp2dp2": (4, ["--tp", "2", "--use-distributed-optimizer"])}


# ---- the same job, started in every way ----

@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_losses_of_one_rank(tmp_path, one_rank, backend, layout):
    ranks, flags = LAYOUTS[layout]
    result = launch(ranks, *JOB, *flags, flags=["--backend", backend, "--log-dir", tmp_path])
    assert losses(result.stdout) == pytest.approx(one_rank, rel=1e-5)
    assert "padded vocab" in result.stdout and "tensor-model-parallel size" in result.stdout
    logs = 1 if backend == "threads" else ranks
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank-{rank}.log" for rank in range(logs)]
    (tmp_path / "by-umask").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    assert losses((tmp_path / f"rank-{logs - 1}.log").read_text()) == pytest.approx(one_rank, rel=1e-5)


CURVE = [*MOCK, "--num-layers", "4", "--global-batch-size", "8", "--train-iters", "50", "--lr", "3e-3", "--log-interval",
         "1", "--micro-batch-size"]
SHARDED = ["--use-distributed-optimizer", "--overlap-param-gather", "--overlap-grad-reduce"]
CURVES = {"tp2": (2, ["8", "--tp", "2"]), "tp2-sp": (2, ["8", "--tp", "2", "--sp"]), "pp2": (2, ["4", "--pp", "2"]),
          "pp4-interleaved": (4, ["2", "--pp", "4", "--pipeline-model-parallel-layout", "Et|t|t||||t|L"]), "dp2": (2, ["4"]),
          "dp4-sharded": (4, ["2", *SHARDED]),
          "everything": (8, ["2", "--tp", "2", "--sp", "--pp", "2", "--vpp", "2", *SHARDED])}


@pytest.fixture(scope="module")
def one_rank_for_50_steps():
    return losses(teratron("pretrain", "gpt", *CURVE, "8").stdout)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("layout", CURVES)
def test_curves_of_50_steps_are_those_of_one_rank(tmp_path, one_rank_for_50_steps, backend, layout):
    ranks, flags = CURVES[layout]
    curve_of_job = losses(launch(ranks, *CURVE, *flags, flags=["--backend", backend, "--log-dir", tmp_path]).stdout)
    assert len(curve_of_job) == 50 and one_rank_for_50_steps[-1] < 0.9 * one_rank_for_50_steps[0]
    assert curve_of_job == pytest.approx(one_rank_for_50_steps, rel=1e-4)


@needs_comm_test
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_collectives_and_their_adjoints_in_a_job(tmp_path, backend):
    result = communicator_tests(backend, tmp_path, "--gtest_filter=*Worlds*")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert "WorldsCollectives.AdjointPropertyHoldsForRandomShapes" in result.stdout


@needs_comm_test
@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("how", DIVERGENCES)
def test_ranks_that_differ_are_named_in_a_job(tmp_path, backend, how):
    result = communicator_tests(backend, tmp_path, f"--gtest_filter=*DISABLED_AreNamed/{how}",
                                "--gtest_also_run_disabled_tests")
    logs = [(tmp_path / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert all("1 test from" in log and "FAILED" not in log for log in logs), logs
    # The job has failed, for which mpirun has its own exit code.
    assert backend == "mpi" or result.returncode == 0, result.stderr


@needs_comm_test
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_ranks_that_differ_end_the_job(tmp_path, backend):
    result = communicator_tests(backend, tmp_path, "--gtest_filter=*DISABLED_EndTheJob/order",
                                "--gtest_also_run_disabled_tests")
    assert result.returncode == 5, result.stderr
    assert ("the ranks of group [0 1] differ at their collective 2: rank 0: all_reduce(sum) fp32 [4]; rank 1: "
            "all_reduce(sum) fp32 [1048576]") in result.stderr


@needs_mpirun
def test_mpirun_without_the_launcher(one_rank):
    result = subprocess.run(mpirun(2, "pretrain", "gpt", *JOB, "--tp", "2"), capture_output=True, text=True, timeout=60,
                            env=environment())
    assert result.returncode == 0, result.stderr[-2000:]
    assert losses(result.stdout) == pytest.approx(one_rank, rel=1e-5)


def test_torchrun(tmp_path):
    """Its agent hosts the TCPStore, instead of rank 0."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
                "--no-python"]
    (code,), (output,) = processes([[*torchrun, BINARY, "pretrain", "gpt", *JOB, "--tp", "2"]], [{}])
    assert code == 0, output[-2000:]
    assert losses(output) == losses(launch(2, *JOB, "--tp", "2", flags=["--log-dir", tmp_path]).stdout)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_variables_of_other_launchers(one_rank, launcher):
    port, command = free_port(), [BINARY, "pretrain", "gpt", *JOB, "--tp", "2"]
    if launcher == "torchrun":
        variables = [{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost",
                      "MASTER_PORT": str(port)} for rank in range(2)]
    else:
        variables = [{"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank),
                      "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port)} for rank in range(2)]
    codes, outputs = processes([command, command], variables)
    assert codes == [0, 0], outputs
    assert losses(outputs[1]) == pytest.approx(one_rank, rel=1e-5)
    assert losses(outputs[0]) == []


SRUN = """#!/bin/bash
# srun --ntasks N PROGRAM ARGUMENTS..., as Slurm starts them in a job of one machine.
[ "$1" = --ntasks ] && tasks=$2 && shift 2
trap 'kill -TERM $(jobs -p)' TERM
for ((task = 0; task < tasks; ++task)); do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_NODELIST=localhost "$@" &
done
code=0
for task in $(jobs -p); do
  while kill -0 "$task" 2>/dev/null; do wait "$task" && ended=0 || ended=$?; done
  ((ended > code)) && code=$ended
done
exit $code
"""


@pytest.fixture
def slurm(tmp_path):
    """Starts an srun in the environment of a batch job whose id maps to a free port."""
    script = tmp_path / "srun"
    script.write_text(SRUN)
    script.chmod(0o755)
    number = next(number for number in range(7000, 8000) if not taken(20000 + number))
    variables = {"SLURM_JOB_ID": f"1{number:04}", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    return lambda ranks, *args: subprocess.Popen([script, "--ntasks", str(ranks), BINARY, *map(str, args)], text=True,
                                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                 env={**environment(), **variables})


def taken(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_srun(slurm, one_rank):
    process = slurm(2, "pretrain", "gpt", *JOB, "--tp", "2")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert losses(output) == pytest.approx(one_rank, rel=1e-5)


def test_the_end_of_slurms_time_saves_and_exits_75(slurm, tmp_path):
    """sbatch --signal=TERM@120: srun forwards the signal to all tasks."""
    run = tmp_path / "run"
    process = slurm(2, "pretrain", "gpt", *kept(run, 100000, 100000), "--tp", "2")
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 75, output[-1000:]
    assert int((run / "latest_checkpointed_iteration.txt").read_text()) == steps(run)[-1]


def test_two_machines(tmp_path, one_rank):
    launchers = start_two_machines(*JOB, *LAYOUTS["tp2dp2"][1], flags=["--log-dir", tmp_path])
    outputs = [launcher.communicate(timeout=90) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert losses(outputs[0][0]) == [] and losses(outputs[1][0]) == pytest.approx(one_rank, rel=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank-{rank}.log" for rank in range(4)]


# ---- inference with a tensor-parallel model ----

@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_parallel_ranks_use_a_model(tmp_path, unbroken, backend):
    (tmp_path / "ids.txt").write_text("1 2 3\n4 5\n")
    ranks = ["launch", "--nproc-per-node", "2", "--backend", backend, "--log-dir", tmp_path, "--"]

    def logits(start, name):
        teratron(*start, "logits", "--load", unbroken, "--input", tmp_path / "ids.txt", "--output", tmp_path / name,
                 "--device", "cpu")
        return load_file(tmp_path / name)

    alone, cut = logits([], "alone"), logits(ranks, "cut")
    assert alone.keys() == cut.keys() == {"logits.0", "logits.1"}
    for name, expected in alone.items():
        assert cut[name].shape == expected.shape and (cut[name] - expected).abs().max() < 1e-5
    text = ["generate", "--load", unbroken, "--prompt", "1 2", "--max-new-tokens", "8", "--device", "cpu", "--seed", "3"]
    assert teratron(*ranks, *text, "--tp", "2").stdout == teratron(*text).stdout


@pytest.mark.parametrize("ranks,flags,says", [
    (2, ["--prompt", "1", "--tp", "4"], ["tensor_model_parallel_size = 4", "2 ranks"]),
    (3, ["--prompt", "1"], ["not divisible by tensor_model_parallel_size = 3"]), (2, [], ["--prompt"])])
def test_wrong_cuts_of_a_model_in_use(tmp_path, unbroken, ranks, flags, says):
    result = teratron("launch", "--nproc-per-node", ranks, "--log-dir", tmp_path, "--", "generate", "--load", unbroken,
                      "--device", "cpu", *flags, code=2)
    message(result, *says)
