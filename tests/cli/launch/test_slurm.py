"""Jobs that Slurm's srun starts, where there is a Slurm that takes them."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from program import BINARY, JOB, environment, kept, losses, needs_binary, steps, wait_for


def srun_works():
    if not shutil.which("srun"):
        return False
    try:
        return subprocess.run(["srun", "--overcommit", "-n", "2", "true"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


pytestmark = [needs_binary, pytest.mark.skipif(not srun_works(), reason="needs a Slurm that runs two tasks")]


def srun(ranks, *job):
    return subprocess.Popen(["srun", "--overcommit", "-n", str(ranks), BINARY, "pretrain", "gpt", *job], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


@pytest.mark.parametrize("ranks, layout", [(2, ["--tp", "2", "--sp"]), (2, ["--pp", "2"]),
                                           (4, ["--tp", "2", "--use-distributed-optimizer"])])
def test_curve_is_that_of_one_rank(one_rank, ranks, layout):
    output, errors = srun(ranks, *JOB, *layout).communicate(timeout=90)
    assert losses(output) == pytest.approx(one_rank, rel=1e-5), errors


@pytest.fixture
def running(tmp_path):
    """An endless job of two ranks."""
    process = srun(2, *kept(tmp_path, 10**8, 10**8), "--tp", "2", "--log-interval", "1")
    wait_for(lambda: len(steps(tmp_path)) > 3, "steps")
    yield process
    process.kill()


def pid_of(rank, run):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:  # it has ended meanwhile, or is not ours
            continue
        if command[0] == BINARY.encode() and str(run).encode() in command and f"SLURM_PROCID={rank}".encode() in variables:
            return int(process.name)
    raise AssertionError(f"no rank {rank}")


def test_signal_saves_on_all_ranks(running, tmp_path):
    for rank in range(2):  # as `scancel --signal=TERM` and `sbatch --signal` do
        os.kill(pid_of(rank, tmp_path), signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 75
    assert list(tmp_path.glob("iter_*"))


def test_fault_01_killed_rank(running, tmp_path):
    os.kill(pid_of(1, tmp_path), signal.SIGKILL)
    errors = running.communicate(timeout=60)[1]
    assert "rank 1" in errors and "has died" in errors
    assert "task 0: Exited with exit code 5" in errors
