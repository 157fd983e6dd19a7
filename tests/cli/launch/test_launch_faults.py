"""Faults in multi-rank jobs: which process reports them, and how the job ends."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from jobs import BACKENDS, launch, mpirun, rank_pids, start_job, start_two_machines
from program import BINARY, JOB, curve, environment, free_port, kept, message, needs_binary, processes, steps, teratron, wait_for

pytestmark = needs_binary

TWO_BY_TWO = ["--tp", "2", "--use-distributed-optimizer", "--global-batch-size", "4"]


def test_fault_01_killed_rank(tmp_path):
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 100000), "--tp", "2", "--log-interval", "1", flags=["--nproc-per-node", 2])
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    pids = rank_pids(process)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 5
    assert re.search(rf"error: rank 1 \(pid {pids[1]} on \S+\) was killed by signal 9 \(SIGKILL\), the first to fail, "
                     r"after iteration \d+", errors), errors
    said = (run / "logs" / "rank-0.log").read_text()
    assert re.search(rf"error: rank 1 \(pid {pids[1]} on \S+\) has died", said), said[-1000:]


def test_fault_01_names_the_iteration_of_short_lines(tmp_path):
    job = kept(tmp_path, 100000, 100000)
    process = start_job(*job, "--tp", "2", "--log-interval", "1", "--log-format", "short", flags=["--nproc-per-node", 2])
    wait_for(lambda: len(steps(tmp_path)) >= 3, "three steps")
    os.kill(rank_pids(process)[1], signal.SIGKILL)
    assert re.search(r"rank 1 .* the first to fail, after iteration \d+", process.communicate(timeout=30)[1])


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_fault_01_restart_resumes_bitwise(tmp_path, backend):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    flags = ["--nproc-per-node", 2, "--backend", backend, "--max-restarts", 1]
    launch(2, *kept(whole, 60, 10), "--tp", "2", flags=["--backend", "processes"])
    process = start_job(*kept(broken, 60, 10), "--tp", "2", flags=flags, fault="comm.collective:delay=2")
    wait_for(lambda: len(steps(broken)) >= 15, "fifteen steps")
    os.kill(rank_pids(process, backend)[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, output[-1000:] + errors
    assert "notice: restarting all ranks (1 of 1)" in errors
    assert re.search(r"loading checkpoint from \S+ at iteration [1-5]0", output)
    assert curve(broken) == curve(whole)
    assert (broken / "logs" / "rank-1.attempt-1.log").exists()


@pytest.mark.parametrize("rank", [0, 3])
def test_restarts_of_two_machines(tmp_path, rank):
    """A dead rank ends those on the other machine too, whose launcher restarts its own."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    launch(4, *kept(whole, 60, 10), *TWO_BY_TWO, flags=["--backend", "processes"])
    launchers = start_two_machines(*kept(broken, 60, 10), *TWO_BY_TWO, flags=["--max-restarts", 1, "--log-dir", tmp_path],
                                   fault="comm.collective:delay=2")
    wait_for(lambda: len(steps(broken)) >= 15, "fifteen steps")
    os.kill(rank_pids(launchers[rank // 2])[rank % 2], signal.SIGKILL)
    outputs = [launcher.communicate(timeout=90) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert all("notice: restarting all ranks (1 of 1)" in errors for _, errors in outputs)
    assert re.search(r"loading checkpoint from \S+ at iteration [1-5]0", outputs[0][0])
    assert curve(broken) == curve(whole)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("code,starts", [(5, 3), (2, 1), (6, 1), (75, 1)])
def test_only_exit_code_5_starts_the_ranks_again(tmp_path, backend, code, starts):
    result = teratron("launch", "--nproc-per-node", 2, "--backend", backend, "--max-restarts", 2, "--log-dir", tmp_path,
                      "--", "/bin/sh", "-c", f"exit {code}", code=code)
    assert result.stderr.count("notice: restarting all ranks") == starts - 1
    attempts = [tmp_path / f"rank-0{again}.log" for again in ("", ".attempt-1", ".attempt-2")]
    assert [log.exists() for log in attempts] == [number < starts for number in range(3)]


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_fault_05_stopped_rank(tmp_path, backend):
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 100000), "--tp", "2", "--distributed-timeout-seconds-after-init", "2",
                        flags=["--nproc-per-node", 2, "--backend", backend])
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    pids = rank_pids(process, backend)
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    _, errors = process.communicate(timeout=40)
    assert time.monotonic() - began < 20
    assert process.returncode == 5
    assert re.search(rf"timed out after 2 s: rank 1 \(pid {pids[1]} on \S+\) does not answer: it is stopped", errors), errors
    wait_for(lambda: not os.path.exists(f"/proc/{pids[1]}"), "the end of the stopped rank too")


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_fault_05_all_ranks_stopped(tmp_path, backend):
    """Only the launcher can detect it."""
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 100000), "--tp", "2", "--distributed-timeout-seconds-after-init", "2",
                        flags=["--nproc-per-node", 2, "--backend", backend])
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    pids = rank_pids(process)
    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(0.7)
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 5
    assert "error: all ranks on this machine were stopped for 2 s" in errors
    assert errors.count("SIGSTOP") >= len(pids) and f"`kill -CONT {pids[0]}` resumes it" in errors
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_fault_22_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = launch(2, *JOB, code=5, flags=["--master-port", port, "--log-dir", tmp_path])
        message(result, f"cannot listen on 127.0.0.1:{port}", "in use", "another port")


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="takes a minute; the C++ tests of Rendezvous cover it too")
def test_fault_22_missing_rank():
    port = free_port()
    variables = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    began = time.monotonic()
    codes, outputs = processes([[BINARY, "pretrain", "gpt", *JOB, "--distributed-timeout-minutes", "1"]], [variables])
    assert codes == [5] and 55 < time.monotonic() - began < 75
    assert f"ranks 1, 2 of 3 did not join at 127.0.0.1:{port} within 60 s" in outputs[0]


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("wrong,says", [
    (["--hidden-size", "32"], "hidden_size: rank 0 has 16, rank 1 has 32"),
    (["--train-iters", "7"], "train_iters: rank 0 has 4, rank 1 has 7"),
    (["--hidden-size", "15"], "rank 1 of 2 rejected the settings")])
def test_fault_23_different_settings(backend, wrong, says):
    port, arguments = free_port(), ["pretrain", "gpt", *JOB, "--tp", "2"]
    began = time.monotonic()
    if backend == "mpi":
        codes, outputs = processes([[*mpirun(1, *arguments), ":", "-np", "1", BINARY, *arguments, *wrong]], [{}])
    else:
        variables = [{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                     for rank in range(2)]
        codes, outputs = processes([[BINARY, *arguments], [BINARY, *arguments, *wrong]], variables)
        assert "error" not in outputs[1], "reported once"
    assert set(codes) == {2} and time.monotonic() - began < 30
    assert outputs[0].count(says) == 1, outputs[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_settings_are_reported_once(tmp_path, backend):
    result = launch(2, *JOB, "--tp", "3", code=2, flags=["--backend", backend, "--log-dir", tmp_path])
    message(result, "tensor_model_parallel_size", "3")


def test_invalid_settings_are_reported_before_gpus_are_needed():
    port, command = free_port(), [BINARY, "pretrain", "gpt", *JOB, "--overlap-param-gather"]
    variables = [{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                  "TERATRON_BACKEND": "nccl"} for rank in range(2)]
    codes, outputs = processes([command, command], variables)
    assert codes == [2, 2]
    assert "--overlap-param-gather needs --use-distributed-optimizer" in outputs[0], outputs[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failure_of_one_rank_keeps_its_exit_code(tmp_path, backend):
    result = launch(2, *JOB, "--tp", "2", code=5, fault="comm.collective@rank=1,step=3:throw",
                    flags=["--backend", backend, "--log-dir", tmp_path])
    assert "comm.collective" in message(result)


@pytest.fixture
def default_sighup():
    """Restores the default action where the tests run under nohup, whose children ignore SIGHUP."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("backend", BACKENDS)
def test_signal_saves_and_exits_75(tmp_path, backend, number):
    """A terminal that closes may send SIGHUP again and again, until the job has ended."""
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 100000), "--tp", "2", flags=["--nproc-per-node", 2, "--backend", backend])
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    process.send_signal(number)
    end = time.monotonic() + 30
    while number == signal.SIGHUP and process.poll() is None and time.monotonic() < end:
        process.send_signal(number)
        time.sleep(0.001)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 75, output[-1000:] + errors
    assert int((run / "latest_checkpointed_iteration.txt").read_text()) == steps(run)[-1]


def test_a_signal_resumes_a_stopped_rank_so_that_all_save(tmp_path):
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 2), "--tp", "2", fault="comm.collective@rank=1,step=4,hit=1:stop",
                        flags=["--nproc-per-node", 2, "--backend", "processes"])
    wait_for(lambda: "T" in [Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] for pid in rank_pids(process)], "a stopped rank")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 75, output[-1000:] + errors
    assert int((run / "latest_checkpointed_iteration.txt").read_text()) == steps(run)[-1]


def test_a_signal_ends_ranks_that_wait_for_one_that_hangs(tmp_path):
    """Long before the collective's time is over, which is ten minutes."""
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 2), "--tp", "2", fault="comm.collective@rank=1,step=4:delay=600000",
                        flags=["--nproc-per-node", 2, "--backend", "processes"])
    wait_for(lambda: (run / "iter_0000002").exists() and len(steps(run)) == 3, "three steps")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 143 and time.monotonic() - began < 25
    assert "error: signal 15 was not answered: no step or save ended" in errors and "last checkpoint" in errors, errors


def test_a_signal_ends_ranks_whose_save_hangs(tmp_path):
    """The second save; the checkpoint of the first one stays whole."""
    run = tmp_path / "run"
    process = start_job(*kept(run, 100000, 2), "--tp", "2", fault="ckpt.before_manifest@rank=0,hit=2:delay=600000",
                        flags=["--nproc-per-node", 2, "--backend", "processes"])
    wait_for(lambda: (run / "iter_0000002").exists() and len(steps(run)) == 4, "four steps")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and time.monotonic() - began < 35
    assert "no step or save ended" in errors, errors
    assert (run / "latest_checkpointed_iteration.txt").read_text().strip() == "2"
    teratron("ckpt", "verify", run / "iter_0000002")


def test_interrupt_before_training(tmp_path):
    process = subprocess.Popen([BINARY, "launch", "--nproc-per-node", "2", "--backend", "processes", "--log-dir", str(tmp_path),
                                "--", "/bin/sh", "-c", "echo here; exec sleep 30"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    wait_for(lambda: all((tmp_path / f"rank-{rank}.log").exists() and "here" in (tmp_path / f"rank-{rank}.log").read_text()
                         for rank in range(2)), "two ranks")
    process.send_signal(signal.SIGTERM)  # SIGINT may be ignored where the tests run in the background
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 143, errors
    assert "signal 15 (SIGTERM) forwarded: ranks in training save and stop after this step; a second one ends them" in errors
    assert "signal 15 (SIGTERM) received before training began: nothing was saved" in errors


def test_appends_to_the_logs_of_earlier_jobs(tmp_path):
    for word in ("first", "second"):
        teratron("launch", "--nproc-per-node", 2, "--backend", "processes", "--log-dir", tmp_path, "--", "/bin/echo", word)
    for rank in range(2):
        log = (tmp_path / f"rank-{rank}.log").read_text()
        assert re.fullmatch(r"first\n---- \d{4}-\d\d-\d\d [\d:.]+, the job of launcher \d+ ----\nsecond\n", log), log


def test_a_second_job_writes_nothing_into_the_logs_of_the_first(tmp_path):
    run = tmp_path / "run"
    job, ranks = [*kept(run, 100000, 100000), "--tp", "2", "--log-interval", "1000000"], ["--nproc-per-node", 2]
    first = start_job(*job, flags=ranks)
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    logs = {path: path.read_text() for path in (run / "logs").iterdir()}
    second = start_job(*job, flags=ranks)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 2 and "another job is writing to this directory" in errors, errors
    assert f"notice: {run}/logs/rank-0.log belongs to a job that is running" in errors
    assert {path: path.read_text() for path in logs} == logs
    assert "another job is writing" in (run / "logs" / f"rank-0.launcher-{second.pid}.log").read_text()
    assert not (run / "metrics.previous.jsonl").exists()

    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=30)
    assert first.returncode == 75
    for text in (output, (run / "logs" / "rank-0.log").read_text()):
        assert f"\nstopped by signal 15 after saving iteration {steps(run)[-1]}; start again to go on\n" in text
        assert "after training is done" not in text


def test_a_second_run_in_a_folder_of_metrics_is_rejected(tmp_path):
    job = ["pretrain", "gpt", *JOB, "--train-iters", "100000", "--run-dir", tmp_path]
    first = subprocess.Popen([BINARY, *map(str, job)], stdout=subprocess.DEVNULL, env=environment())
    wait_for(lambda: len(steps(tmp_path)) >= 3, "three steps")
    message(teratron(*job, code=2), "another job is writing to this directory", tmp_path)
    assert not (tmp_path / "metrics.previous.jsonl").exists()
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=20) == 75
