"""Settings of `teratron launch` from flags and from Accelerate's config file, valid and invalid."""

import json
import os
import re
import shutil
import subprocess

import pytest
from program import (BINARY, JOB, TINY, VOCABULARY, environment, free_port, losses, message, needs_binary, processes, teratron,
                     train)

pytestmark = needs_binary

ACCELERATE = """compute_environment: LOCAL_MACHINE
deepspeed_config: {{}}
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
fsdp_config: {{}}
machine_rank: {rank}
main_process_ip: {ip}
main_process_port: {port}
main_training_function: main
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: true
mixed_precision: '{precision}'
num_machines: {machines}
num_processes: {processes}
rdzv_backend: static
same_network: true
use_cpu: {cpu}
"""
ONE_MACHINE = {"rank": 0, "ip": "null", "port": "null", "machines": 1, "processes": 2, "cpu": "true", "precision": "no"}


def configuration(folder, name="accelerate.yaml", **values):
    file = folder / name
    file.write_text(ACCELERATE.format(**{**ONE_MACHINE, **values}))
    return file


def launch(file, *flags, command=("pretrain", "gpt", *JOB), **expected):
    return teratron("launch", "--config_file", file, "--log-dir", file.parent / "logs", *flags, "--", *command, **expected)


SHOW = ("/bin/sh", "-c", "echo $RANK of $WORLD_SIZE, machine $GROUP_RANK, at $MASTER_ADDR:$MASTER_PORT by $TERATRON_BACKEND")


def shown(file, *flags):
    """The environment of each rank on this machine."""
    shutil.rmtree(file.parent / "logs", ignore_errors=True)
    launch(file, *flags, command=SHOW)
    return sorted(log.read_text().strip() for log in (file.parent / "logs").iterdir())


# ---- Accelerate's file ----

def test_one_machine(tmp_path, one_rank):
    result = launch(configuration(tmp_path))
    assert losses(result.stdout) == pytest.approx(one_rank, rel=1e-5)
    assert re.search(r" tensor_model_parallel_size \.+ 2\n", result.stdout)
    assert "using world size: 2," in result.stdout and " bf16 " not in result.stdout


def test_two_machines(tmp_path, one_rank):
    """Two launchers, each with its machine's file: same address and port, another rank."""
    port = free_port()
    files = [configuration(tmp_path, f"machine{rank}.yaml", rank=rank, ip="127.0.0.1", port=port, machines=2, processes=4)
             for rank in range(2)]
    codes, outputs = processes([[BINARY, "launch", "--config_file", str(file), "--log-dir", str(file.with_suffix("")), "--",
                                 "pretrain", "gpt", *JOB] for file in files], [{}, {}])
    assert codes == [0, 0], outputs
    assert losses(outputs[0]) == [] and losses(outputs[1]) == pytest.approx(one_rank, rel=1e-5)
    assert "using world size: 4," in outputs[0] and re.search(r" use_distributed_optimizer \.+ True\n", outputs[0])
    assert [sorted(log.name for log in file.with_suffix("").iterdir()) for file in files] == [
        ["rank-0.log", "rank-1.log"], ["rank-2.log", "rank-3.log"]]


def test_machines_with_different_settings(tmp_path):
    """Rank 0 reports the difference; the other machine's launcher refers to it."""
    port = free_port()
    files = [configuration(tmp_path, f"machine{rank}.yaml", rank=rank, ip="127.0.0.1", port=port, machines=2, precision=precision)
             for rank, precision in enumerate(["no", "bf16"])]
    codes, outputs = processes([[BINARY, "launch", "--config_file", str(file), "--log-dir", str(file.with_suffix("")), "--",
                                 "pretrain", "gpt", *JOB] for file in files], [{}, {}])
    assert codes == [2, 2], outputs
    assert "bf16: rank 0 has false, rank 1 has true" in outputs[0] and "config_file" not in outputs[0]
    assert "see the machine of rank 0" in outputs[1] and "rank 1" in outputs[1]


@pytest.mark.parametrize("second,says", [({"rank": 1, "processes": 4}, "was started as one of 4 ranks, rank 0 as one of 6"),
                                         ({"rank": 1, "processes": 6}, "of 6 was started twice")])
def test_machines_that_were_started_wrong(tmp_path, second, says):
    """The third would complete the job."""
    port = free_port()
    files = [configuration(tmp_path, f"machine{i}.yaml", ip="127.0.0.1", port=port, **{"machines": 3, "processes": 6, **values})
             for i, values in enumerate([{}, {"rank": 1}, {"machines": second["processes"] // 2, **second}])]
    codes, outputs = processes([[BINARY, "launch", "--config_file", str(file), "--log-dir", str(file.with_suffix("")), "--",
                                 "pretrain", "gpt", *JOB] for file in files], [{}] * 3)
    assert codes == [2, 2, 2], outputs
    assert all(says in output and "a different --node-rank" in output for output in outputs), outputs


def test_precision(tmp_path):
    file = configuration(tmp_path, precision="bf16")
    result = launch(file)
    assert re.search(r" bf16 \.+ True\n", result.stdout)
    assert losses(result.stdout) == losses(launch(configuration(tmp_path), command=("pretrain", "gpt", *JOB, "--bf16")).stdout)
    message(launch(configuration(tmp_path, precision="int3"), code=2), f"{file}:13", "mixed_precision = 'int3'", "bf16")


def test_flags_win_over_the_file(tmp_path):
    port = free_port()
    file = configuration(tmp_path, rank=1, ip="192.0.2.1", port=1, machines=2, processes=6)
    here = ["--num_machines", "1", "--machine_rank", "0", "--main_process_ip", "127.0.0.1", "--main_process_port", port]
    assert shown(file, *here, "--num_processes", "2") == [
        f"{rank} of 2, machine 0, at 127.0.0.1:{port} by processes" for rank in range(2)]
    assert [line.split(",")[0] for line in shown(file, *here)] == [f"{rank} of 6" for rank in range(6)]
    assert shown(file, "--nproc-per-node", "1") == ["1 of 2, machine 1, at 192.0.2.1:1 by processes"]
    assert [line.split(",")[0] for line in shown(file, "--node-rank", "1")] == ["3 of 6", "4 of 6", "5 of 6"]


def test_gpus(tmp_path):
    file = configuration(tmp_path)
    file.write_text(file.read_text() + "gpu_ids: 3,1\n")
    result = launch(file, command=("/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES"))
    assert result.stdout == "3,1\n3,1\n"
    assert f"notice: launch uses only its own keys of {file}; for the others, pass --config-file {file} to /bin/sh too" in result.stderr


def test_a_file_wins_over_its_base(tmp_path):
    configuration(tmp_path, "base.yaml", machines=2, rank=1, ip="192.0.2.1", port=7, processes=2)
    file = tmp_path / "mine.yaml"
    file.write_text("base: base.yaml\nmachine_rank: 0\nnum_machines: ~\nmain_process_ip: localhost\nnum-processes: 1\n")
    assert shown(file) == ["0 of 1, machine 0, at localhost:7 by processes"]


def test_flags_of_the_command_win_over_the_file(tmp_path):
    file = configuration(tmp_path)
    assert "tensor-model-parallel size: 1," in launch(file, command=("pretrain", "gpt", *JOB, "--tp", "1")).stdout
    text = message(launch(file, command=("pretrain", "gpt", *JOB, "--device", "cuda"), code=2))
    assert "GPU" in text, "use_cpu of the file was overridden"


BAD_KEYS = [({"port": 70000}, 8, ["main_process_port = 70000", "65535"]), ({"port": "abc"}, 8, ["main_process_port = 'abc'"]),
            ({"port": -1}, 8, ["main_process_port = -1"]), ({"port": "[1, 2]"}, 8, ["main_process_port", "one value"]),
            ({"rank": 2, "machines": 2, "ip": "localhost"}, 6, ["machine_rank = 2", "machine 2 of 2", "num_machines"]),
            ({"rank": 1}, 6, ["machine_rank = 1", "machine 1 of 1", "num_machines"]),
            ({"rank": -1}, 6, ["machine_rank = -1"]),
            ({"machines": 2}, 14, ["num_machines = 2", "no rendezvous address", "main_process_ip"]),
            ({"machines": 2, "ip": "''"}, 7, ["main_process_ip is empty"]),
            ({"machines": 0}, 14, ["num_machines = 0"]), ({"processes": 0}, 15, ["num_processes = 0"]),
            ({"machines": 2, "processes": 3, "ip": "localhost"}, 15, ["num_processes = 3", "2 machines", "multiple"]),
            ({"machines": 2, "port": 0, "ip": "localhost"}, 8, ["main_process_port = 0", "the same"]),
            ({"cpu": "perhaps"}, 18, ["use_cpu = 'perhaps'", "true or false"])]


@pytest.mark.parametrize("values,line,says", BAD_KEYS)
def test_bad_keys(tmp_path, values, line, says):
    file = configuration(tmp_path, **values)
    text = message(launch(file, code=2), f"error: {file}:{line}:", *says)
    assert len(text.splitlines()) == 1, text
    assert not (tmp_path / "logs").exists(), "nothing was started"


def test_all_bad_keys_are_reported(tmp_path):
    text = message(launch(configuration(tmp_path, port=70000, rank="x", processes="many"), code=2), "main_process_port",
                   "machine_rank", "num_processes")
    assert len(text.splitlines()) == 3, text


def test_the_launchers_keys_are_not_reported_as_unused(tmp_path):
    result = launch(configuration(tmp_path))
    assert "num_processes" not in result.stdout + result.stderr, result.stderr
    alone = train(*JOB, "--config-file", configuration(tmp_path), "--tp", "1")
    assert re.search("notice: only `teratron launch --config-file` uses: .*num_machines, num_processes", alone.stdout + alone.stderr)


# ---- flags ----

@pytest.mark.parametrize("args,says", [
    ([], "nothing to start"), (["--nproc-per-node", "0", "--", "env"], "--nproc-per-node"),
    (["--backend", "gloo", "--", "env"], "gloo"), (["--nnodes", "2", "--node-rank", "2", "--", "env"], "machine 2 of 2"),
    (["--nnodes", "2", "--", "env"], "--master-addr"), (["--config-file", "none.yaml", "--", "env"], "none.yaml"),
    (["--nnodes", "2", "--backend", "threads", "--", "env"], "one machine"),
    (["--backend", "nccl", "--use-cpu", "--", "env"], "NCCL needs GPUs"),
    (["--nnodes", "2", "--master-addr", "localhost", "--master-port", "0", "--", "env"], "--master-port = 0"),
    (["--master-port", "70000", "--", "env"], "--master-port"),
    (["--nproc-per-node", "4", "--num-processes", "2", "--", "env"], "--nproc-per-node = 4 contradicts --num-processes = 2"),
    (["--nproc-per-nod", "2", "--", "env"], "unknown flag --nproc-per-nod. Did you mean --nproc-per-node?"),
    (["--tp", "2", "--", "env"], "follow its name"), (["-np", "2", "env"], "unknown flag -np"), (["--", "./none"], "./none: is not an executable program"),
    (["--", "/etc/passwd"], "/etc/passwd: is not an executable program"), (["--", "/etc/"], "/etc/: is not an executable program"),
    (["--num-processes", "3", "--nnodes", "2", "--master-addr", "localhost", "--", "env"], "3 ranks on 2 machines")])
def test_wrong_launches(args, says):
    message(teratron("launch", *args, code=2), says)


def test_what_launch_needs_is_missing(tmp_path):
    (tmp_path / "logs").mkdir()
    path = os.environ["PATH"]
    os.environ["PATH"] = str(tmp_path)
    try:
        message(teratron("launch", "--backend", "mpi", "--", "env", code=2), "mpirun is not installed", "--backend processes")
    finally:
        os.environ["PATH"] = path
    message(teratron("launch", "--nproc-per-node", "2", "--master-addr", "no.such.host.invalid", "--log-dir", tmp_path, "--",
                     "env", code=5), "no.such.host.invalid", "--master-addr (main_process_ip)")


def test_an_address_for_ranks_of_one_process_is_ignored_with_a_notice(tmp_path):
    result = teratron("launch", "--backend", "threads", "--master-port", "7", "--log-dir", tmp_path, "--", "env")
    assert "notice: --master-port has no effect with --backend threads" in result.stderr


def test_environment_is_inherited(tmp_path):
    script = tmp_path / "show"
    script.write_text("#!/bin/sh\necho \"$RANK of $WORLD_SIZE $NCCL_DEBUG $LOCAL_RANK\"\n")
    script.chmod(0o755)
    os.environ["NCCL_DEBUG"] = "WARN"
    try:
        result = teratron("launch", "--nproc-per-node", "2", "--backend", "processes", "--log-dir", tmp_path, "--", script)
    finally:
        del os.environ["NCCL_DEBUG"]
    assert sorted(result.stdout.split("\n")) == ["", "0 of 2 WARN 0", "1 of 2 WARN 1"]


@pytest.mark.parametrize("layout", [[], ["--pp", "2"]])
@pytest.mark.parametrize("documents", [41, 3])
def test_fault_23_different_data(tmp_path, layout, documents):
    """Two machines with other files under the same name; that of the second has no text left for validation."""
    port, started = free_port(), []
    for node, count in enumerate([41, documents]):
        folder = tmp_path / str(node)
        folder.mkdir()
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"{i % 50} 7 {node} 9 " * 30}) + "\n" for i in range(count)))
        teratron("preprocess", "--input", folder / "text.jsonl", "--output-prefix", folder / "my", *VOCABULARY)
        machine = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        job = [*TINY, *VOCABULARY, "--data-path", "my_text_document", "--global-batch-size", "4", "--train-iters", "4", *layout,
               "--eval-iters", "1", "--eval-interval", "2"]
        started.append(subprocess.Popen([BINARY, "launch", "--nproc-per-node", "1", *machine, "--", "pretrain", "gpt", *job],
                                        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()))
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], errors
    assert re.search(r"the ranks read different data; train: rank 0 has \d+ samples \(checksum \w{8}\), rank 1 has", errors[0])
