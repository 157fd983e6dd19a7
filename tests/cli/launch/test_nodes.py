"""Machines without a shared disk: two launchers, each with another folder for --save and --load."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open
from jobs import start_job
from program import BINARY, MOCK, environment, free_port, losses, message, needs_binary, teratron, wait_for

pytestmark = needs_binary

RUN = [*MOCK, "--micro-batch-size", "1", "--global-batch-size", "4", "--log-interval", "1", "--save-interval", "2",
       "--num-attention-heads", "4", "--eval-iters", "0", "--use-distributed-optimizer"]
LAYOUTS = {"tp4": ["--tp", "4"], "dp4": [], "tp2": ["--tp", "2"]}


def start_nodes(folders, *flags, faults=("", "")):
    """A launcher of two ranks for each folder."""
    port = free_port()
    machines = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port]
    return [start_job(*RUN, *flags, "--save", folder, "--load", folder, fault=faults[node],
                      flags=[*machines, "--node-rank", node, "--log-dir", folder / "logs"])
            for node, folder in enumerate(folders)]


def run_nodes(folders, *flags, code=0, faults=("", "")):
    jobs = start_nodes(folders, *flags, faults=faults)
    outputs = [job.communicate(timeout=120) for job in jobs]
    codes = [job.returncode for job in jobs]
    if code is not None:
        assert codes == [code, code], outputs
    return outputs, codes


def tensors(*folders):
    """Every stored tensor of a checkpoint, with the file's name: bytes."""
    found = {}
    for folder in folders:
        for path in sorted(Path(folder).glob("shard-*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    found[path.name, name] = file.get_tensor(name).numpy().tobytes()
    return found


@pytest.fixture(scope="module", params=["tp4", "dp4"])
def uninterrupted(request, tmp_path_factory):
    """Six steps with a folder that both machines see: its layout, folder, losses of the steps 5 and 6."""
    folder = tmp_path_factory.mktemp("shared")
    outputs, _ = run_nodes([folder, folder], *LAYOUTS[request.param], "--train-iters", "6")
    assert "do not share" not in outputs[0][0] + outputs[0][1]
    assert not list(folder.glob(".teratron-probe*"))
    return request.param, folder, losses(outputs[1][0])


def test_a_run_is_killed_and_goes_on_as_with_a_shared_folder(uninterrupted, tmp_path):
    layout, shared, curve = uninterrupted
    folders = [tmp_path / "a", tmp_path / "b"]
    jobs = start_nodes(folders, *LAYOUTS[layout], "--train-iters", "6", faults=("", "ckpt.shard_created@rank=2,step=6:kill"))
    outputs = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [5, 5], outputs
    assert "node 0 (ranks 0, 1 on " in outputs[0][1] and str(folders[1]) in outputs[0][1], outputs[0][1]
    for node, folder in enumerate(folders):
        checkpoint = folder / "iter_0000004"
        assert {path.name[:11] for path in checkpoint.glob("shard-*")} == {f"shard-{rank:05}" for rank in
                                                                           (2 * node, 2 * node + 1)}
        assert (folder / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert (folders[0] / "iter_0000004/manifest.json").read_bytes() == (folders[1] / "iter_0000004/manifest.json").read_bytes()
    outputs, _ = run_nodes(folders, *LAYOUTS[layout], "--train-iters", "6")
    assert losses(outputs[1][0]) == curve[4:]
    assert tensors(*(folder / "iter_0000006" for folder in folders)) == tensors(shared / "iter_0000006")


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory):
    """Four steps as TP 4, saved after two and four of them, in folders a and b."""
    folders = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")]
    run_nodes(folders, *LAYOUTS["tp4"], "--train-iters", "4")
    return folders


def copies(folders, to):
    return [Path(shutil.copytree(folder, to / folder.name)) for folder in folders]


@pytest.mark.parametrize("layout", ["dp4", "tp2"] if os.environ.get("TERATRON_LONG_TESTS") else ["dp4"])
def test_another_layout_reads_what_the_nodes_have_between_them(two_folders, tmp_path, layout):
    folders = copies(two_folders, tmp_path)
    gathered = tmp_path / "all"
    for folder in folders:
        shutil.copytree(folder, gathered, dirs_exist_ok=True, ignore=shutil.ignore_patterns("logs", "*.lock"))
    outputs, _ = run_nodes(folders, *LAYOUTS[layout], "--train-iters", "6", "--override-opt-param-scheduler")
    expected, _ = run_nodes([gathered, gathered], *LAYOUTS[layout], "--train-iters", "6", "--override-opt-param-scheduler")
    assert len(losses(outputs[1][0])) == 2
    assert losses(outputs[1][0]) == losses(expected[1][0])
    assert tensors(*(folder / "iter_0000006" for folder in folders)) == tensors(gathered / "iter_0000006")


@pytest.mark.parametrize("node", [0, 1])
def test_a_lost_folder_is_named_with_its_node(two_folders, tmp_path, node):
    folders = copies(two_folders, tmp_path)
    shutil.rmtree(folders[node])
    outputs, _ = run_nodes(folders, *LAYOUTS["tp4"], "--train-iters", "6", "--override-opt-param-scheduler", code=4)
    assert f"node {node} (ranks {2 * node}, {2 * node + 1} on " in outputs[0][1], outputs[0][1]
    assert sorted(path.name for path in folders[1 - node].glob("iter_*")) == ["iter_0000002", "iter_0000004"]


def test_one_folder_alone(two_folders):
    first, second = two_folders
    said = teratron("ckpt", "inspect", second).stdout
    assert "node 0 (ranks 0, 1 on " in said and "are not here" in said and " shards here" in said
    said = teratron("ckpt", "verify", second).stdout
    assert "all hashes of the shards here match" in said and "node 0 (ranks 0, 1 on " in said
    message(teratron("ckpt", "convert", "--load", first, "--to-hf", first / "hf", code=4), "node 1 (ranks 2, 3 on ")
    message(teratron("pretrain", "gpt", *RUN, "--load", first, "--train-iters", "4", code=4), "node 1 (ranks 2, 3 on ")


def goes_on_from(folders, committed):
    assert (folders[0] / f"iter_{committed:07}").is_dir()
    assert not (folders[1] / "iter_0000004").exists()
    outputs, _ = run_nodes(folders, "--train-iters", "6", "--override-opt-param-scheduler", "--keep-last", "1")
    assert f"at iteration {committed}" in outputs[0][0], outputs[0][0]
    for folder in folders:
        assert [path.name for path in folder.glob("iter_*")] == ["iter_0000006"]


def test_the_first_node_dies_before_it_commits(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    run_nodes(folders, "--async-save", "--train-iters", "4", code=None, faults=("ckpt.before_commit@rank=0,step=4:kill", ""))
    goes_on_from(folders, 2)


KILLS = {"its shards are written": ("ckpt.before_manifest", "a/iter_0000004.partial-*/manifest.json", 2),
         "the other has committed": ("ckpt.before_follow", "a/iter_0000004/manifest.json", 4)}


@pytest.mark.parametrize("when", KILLS)
def test_a_launcher_is_killed_in_a_save(tmp_path, when):
    """kill -9, when the second node has its shards but has not committed; one checkpoint is whole on both."""
    folders = [tmp_path / "a", tmp_path / "b"]
    point, reached, committed = KILLS[when]
    jobs = start_nodes(folders, "--train-iters", "4", faults=("", f"{point}@rank=2,step=4:delay=60000"))
    wait_for(lambda: list(tmp_path.glob(reached)), reached)
    assert len(list(folders[1].glob("iter_0000004.partial-*/shard-*"))) >= 2
    jobs[1].kill()
    outputs = [job.communicate(timeout=60) for job in jobs]
    assert jobs[0].returncode == 5, outputs
    goes_on_from(folders, committed)


def test_signals_fresh_starts_and_locks(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    jobs = start_nodes(folders, "--train-iters", "100000", "--save-interval", "100000")
    log = folders[1] / "logs/rank-3.log"
    wait_for(lambda: log.exists() and "lm loss" in log.read_text(), "the first step")
    assert (folders[0] / "run.lock").exists() and (folders[1] / "run.lock").exists()
    jobs[1].send_signal(signal.SIGINT)
    outputs = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [75, 75], outputs
    for folder in folders:
        assert len(list(folder.glob("iter_*/manifest.json"))) == 1
        assert not (folder / "run.lock").exists()
    outputs, _ = run_nodes(folders, "--train-iters", "2", "--fresh")
    for folder in folders:
        assert len(list(folder.glob("replaced-1/iter_*"))) == 1
        assert [path.name for path in folder.glob("iter_*")] == ["iter_0000002"]


def test_the_folders_of_a_run_are_used_alike(tmp_path):
    """--load is the folder of --save on both machines, or on none."""
    port = free_port()
    machines = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port]
    jobs = [start_job(*RUN, "--train-iters", "2", "--save", tmp_path / "a", "--load", tmp_path / "ab"[:node + 1],
                      flags=[*machines, "--node-rank", node, "--log-dir", tmp_path / "logs"]) for node in range(2)]
    outputs = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [2, 2]
    assert 'load: ranks 0, 1 have "the folder of --save", ranks 2, 3 have "another folder than --save"' in outputs[0][1]


def test_an_exported_model_has_the_weights_of_both_nodes(two_folders, tmp_path):
    folders = copies(two_folders, tmp_path)
    run_nodes(folders, *LAYOUTS["tp4"], "--train-iters", "4", "--hf-out", tmp_path / "out")
    gathered = tmp_path / "all"
    for folder in folders:
        shutil.copytree(folder, gathered, dirs_exist_ok=True, ignore=shutil.ignore_patterns("logs"))
    teratron("ckpt", "convert", "--load", gathered, "--to-hf", tmp_path / "whole")
    files = [folder / "model.safetensors" for folder in (tmp_path / "out", tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_model_generates_from_the_folders_of_both_nodes(two_folders, tmp_path):
    prompt = ["--device", "cpu", "--prompt", "1 2 3", "--max-new-tokens", "8", "--greedy"]
    for folder in two_folders:
        shutil.copytree(folder / "iter_0000004", tmp_path / "iter_0000004", dirs_exist_ok=True)
    expected = teratron("generate", "--load", tmp_path, *prompt).stdout
    machines = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    jobs = [subprocess.Popen([BINARY, "launch", *map(str, machines), "--node-rank", str(node), "--log-dir", str(tmp_path / "logs"),
                              "--", "generate", "--load", str(folder), *prompt], env=environment(), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for node, folder in enumerate(two_folders)]
    outputs = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    assert expected.startswith("1 2 3 ") and outputs[0][0] == expected
