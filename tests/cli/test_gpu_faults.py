"""Faults in NCCL jobs: message, exit code and time. Needs two GPUs."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
import torch
from jobs import rank_pids
from program import (BINARY, DIVERGENCES, MOCK, communicator_tests, curve, environment, kept, needs_binary, needs_comm_test, steps,
                     wait_for)

pytestmark = [needs_binary, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]

GPU = ["--device", "cuda", "--tp", "2", "--sp", "--log-interval", "1"]
ENDLESS = 10**8
WILD_KERNEL = """
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <nccl.h>
__global__ void wild() { *reinterpret_cast<volatile int*>(0x10) = 1; }
/// Before its fiftieth all-gather, rank 1 writes where nothing is.
extern "C" ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t group,
                                      cudaStream_t stream) {
  static int calls = 0;
  const char* rank = getenv("RANK");
  if (rank && !strcmp(rank, "1") && ++calls == 50) wild<<<1, 1, 0, stream>>>();
  static const auto next = reinterpret_cast<decltype(&ncclAllGather)>(dlsym(RTLD_NEXT, "ncclAllGather"));
  return next(from, to, count, type, group, stream);
}
"""


def job(run, *more, iterations=ENDLESS, interval=ENDLESS):
    return ["pretrain", "gpt", *kept(run, iterations, interval), *GPU, *map(str, more)]


def launch(run, *more, flags=(), variables=None, **counts):
    return subprocess.Popen([BINARY, "launch", "--nproc-per-node", "2", *map(str, flags), "--", *job(run, *more, **counts)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**environment(), **(variables or {})})


def running(run, *more, **others):
    """A job that has made some steps, and the pids of its ranks."""
    process = launch(run, *more, **others)
    end = time.monotonic() + 90
    while len(steps(run)) < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no steps"
        time.sleep(0.05)
    return process, rank_pids(process)


def ends(process, code, within):
    """What the job says on stderr when it ends so."""
    began = time.monotonic()
    output, errors = process.communicate(timeout=120)
    took = time.monotonic() - began
    assert process.returncode == code, f"{process.returncode}: {output[-2000:]}{errors}"
    assert took < within, f"{took} s: {errors}"
    print(f"took {took:.1f} s, and said: {errors}")
    return errors


def log_of(run, rank):
    return (run / "logs" / f"rank-{rank}.log").read_text()


EXPERTS = {name: ["--tp", "1", "--num-experts", "4", "--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", name,
                  "--micro-batch-size", "1"]
           for name in ("allgather", "alltoall")}
LAYOUTS = {"tp2": [], "cp2": ["--tp", "1", "--cp", "2", "--attention-dropout", "0"], **EXPERTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fault_01_killed_rank(tmp_path, layout):
    process, pids = running(tmp_path, *LAYOUTS[layout])
    os.kill(pids[1], signal.SIGKILL)
    errors = ends(process, 5, within=15)
    assert re.search(rf"error: rank 1 \(pid {pids[1]} on \S+\) was killed by signal 9 \(SIGKILL\), the first to fail, "
                     r"after iteration \d+", errors)
    assert re.search(rf"error: rank 1 \(pid {pids[1]} on \S+\) has died", log_of(tmp_path, 0))


def test_fault_01_restart_resumes_bitwise(tmp_path):
    counts = {"iterations": 400, "interval": 100}
    ends(launch(tmp_path / "whole", "--deterministic-mode", **counts), 0, within=90)
    process, pids = running(tmp_path / "broken", "--deterministic-mode", flags=["--max-restarts", "1"], **counts)
    wait_for(lambda: len(steps(tmp_path / "broken")) > 110, "a hundred steps")
    os.kill(pids[0], signal.SIGKILL)
    errors = ends(process, 0, within=90)
    assert "notice: restarting all ranks (1 of 1)" in errors
    assert curve(tmp_path / "broken") == curve(tmp_path / "whole")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fault_05_stopped_rank(tmp_path, layout):
    process, pids = running(tmp_path, "--distributed-timeout-seconds-after-init", 3, *LAYOUTS[layout])
    os.kill(pids[1], signal.SIGSTOP)
    errors = ends(process, 5, within=25)
    assert re.search(rf"timed out after 3 s: rank 1 \(pid {pids[1]} on \S+\) does not answer: it is stopped", errors)
    assert not os.path.exists(f"/proc/{pids[1]}"), "the stopped rank was ended too"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_fault_06_illegal_address(tmp_path):
    (tmp_path / "wild.cu").write_text(WILD_KERNEL)
    nccl = os.path.join(os.path.dirname(torch.__path__[0]), "nvidia", "nccl", "include")
    subprocess.run(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_90", "-I", nccl, "wild.cu", "-o", "wild.so"],
                   cwd=tmp_path, check=True)
    run = tmp_path / "run"
    errors = ends(launch(run, variables={"LD_PRELOAD": str(tmp_path / "wild.so")}), 5, within=90)
    assert re.search(r"error: rank 1 .*ended with exit code 5, the first to fail", errors)
    assert "illegal memory access" in errors
    assert "CUDA error: an illegal memory access" in errors
    # A rank that libtorch ends out of a destructor cannot tell its peers why.
    assert re.search(r"rank 1 (failed: CUDA error: an illegal|\(pid \d+ on \S+\) has died)", log_of(run, 0))


def test_fault_22_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        errors = ends(launch(tmp_path, flags=["--master-port", port]), 5, within=15)
    assert f"cannot listen on 127.0.0.1:{port}" in errors


def test_fault_23_different_settings(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen([BINARY, *job(tmp_path, *more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**environment(), **place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank, more in enumerate([[], ["--hidden-size", "32"]])]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert "hidden_size: rank 0 has 16, rank 1 has 32" in said[0] and "error" not in said[1]


def differing_job(tmp_path, test, how):
    # The timeout covers NCCL's initialization too, which takes seconds while other jobs run.
    return communicator_tests("nccl", tmp_path, f"--gtest_filter=*DISABLED_{test}/{how}", "--gtest_also_run_disabled_tests",
                              "--timeout=15")


@needs_comm_test
@pytest.mark.parametrize("how", DIVERGENCES)
def test_ranks_that_differ_are_named(tmp_path, how):
    """Both ranks hear, when the collective's time is over, which rank asked for what where they first differ. One that is
    stuck in the driver (it loads a kernel, for which it waits for the GPU) hears it from no exception: its process ends."""
    result = differing_job(tmp_path, "AreNamed", how)
    logs = [(tmp_path / f"rank-{rank}.log").read_text() for rank in range(2)]
    stuck = [log for log in logs if "error: the ranks of group [0 1] differ at their collective 2: rank 0:" in log]
    assert all("[  PASSED  ] 1 test" in log or log in stuck for log in logs), "\n".join(logs)
    assert result.returncode == (5 if stuck else 0), result.stderr


@needs_comm_test
@pytest.mark.parametrize("how", DIVERGENCES)
def test_ranks_that_differ_end_the_job(tmp_path, how):
    """The same, while they wait for their GPUs."""
    result = differing_job(tmp_path, "EndTheJob", how)
    assert result.returncode == 5, result.stdout[-2000:] + result.stderr
    assert re.search(r"the ranks of group \[0 1\] differ at their collective \d: rank 0: \w+", result.stderr), result.stderr
