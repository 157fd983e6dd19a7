"""Runs that are stopped or killed, and checkpoints that are damaged: nothing is lost, nothing silently wrong."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from program import (BINARY, MOCK, assert_bitwise, curve, each, kept, message, needs_binary, start, steps, teratron, train,
                     wait_for, weights)

pytestmark = needs_binary

ITERATIONS = 250


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_saves_and_the_same_command_resumes(tmp_path, number):
    run = tmp_path / "run"
    command = kept(run, ITERATIONS, 1000)
    process = start(command)
    wait_for(lambda: len(steps(run)) >= 5, "five steps")
    process.send_signal(number)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 75, output[-2000:]
    stopped = int((run / "latest_checkpointed_iteration.txt").read_text())
    assert 5 <= stopped < ITERATIONS
    assert steps(run) == list(range(1, stopped + 1))

    again = train(*command).stdout
    assert f"loading checkpoint from {run / f'iter_{stopped:07d}'} at iteration {stopped}" in again
    assert steps(run) == list(range(1, ITERATIONS + 1))
    if number == signal.SIGINT:
        check_finished(run, command)


def check_finished(run, command):
    last = run / f"iter_{ITERATIONS:07d}" / "manifest.json"
    manifest = last.read_bytes()
    done = train(*command).stdout
    assert "already finished" in done and "--fresh" in done
    assert last.read_bytes() == manifest
    assert steps(run) == list(range(1, ITERATIONS + 1))

    fresh = train(*command, "--fresh").stdout
    assert "loading checkpoint" not in fresh and "already finished" not in fresh
    assert steps(run) == list(range(1, ITERATIONS + 1))
    assert last.read_bytes() != manifest


def test_second_signal_ends_at_once(tmp_path):
    each([(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)], check_second_signal, tmp_path)


def check_second_signal(signals, folder):
    run = folder / "run"
    process = start(kept(run, 100000, 100000), fault="ckpt.begin:delay=20000")
    wait_for(lambda: len(steps(run)) >= 2, "two steps")
    process.send_signal(signals[0])
    time.sleep(0.3)
    assert process.poll() is None  # saving, slowly
    began = time.monotonic()
    process.send_signal(signals[1])
    process.communicate(timeout=10)
    assert process.returncode == 128 + signals[1]
    assert time.monotonic() - began < 2
    assert not list(run.glob("iter_*"))


POINTS = ["begin", "partial_created", "shard_created", "shard_block", "before_shard_sync", "shard_done",
          "before_manifest", "manifest_written", "before_commit", "after_commit", "after_tracker", "end"]
COMMITTED = POINTS.index("after_commit")


def test_kill_while_saving_loses_nothing(tmp_path, unbroken):
    def check(point, folder):
        run = folder / "run"
        train(*kept(run, 9, 3), code=-signal.SIGKILL, fault=f"ckpt.{point}@step=6:kill")
        newest = 6 if POINTS.index(point) >= COMMITTED else 3
        whole = sorted(path.name for path in run.glob("iter_*") if "partial" not in path.name)
        assert whole == [f"iter_{i:07d}" for i in range(3, newest + 1, 3)]
        assert_bitwise(weights(run, newest), weights(unbroken, newest))

        resumed = train(*kept(run, 9, 3))
        assert f"at iteration {newest}" in resumed.stdout
        for iteration in (6, 9):
            assert_bitwise(weights(run, iteration), weights(unbroken, iteration))
        assert not list(run.glob("*partial*")), "leftovers are swept"
        assert (run / "latest_checkpointed_iteration.txt").read_text() == "9"
        assert set(steps(run)) == set(range(1, 10))

    each(POINTS, check, tmp_path)


def test_kill_between_the_saves_of_new_and_old(tmp_path, unbroken):
    """A new checkpoint takes the place of an old one of the same iteration in one exchange."""
    run = shutil.copytree(unbroken, tmp_path / "run")
    train(*kept(run, 9, 3), "--ckpt-step", "3", "--seed", "4", "--hidden-dropout", "0.3", code=-signal.SIGKILL,
          fault="ckpt.exchanged@step=6:kill")
    assert not all(a.equal(b) for a, b in zip(weights(run, 6).values(), weights(unbroken, 6).values()))
    assert_bitwise(weights(run, 9), weights(unbroken, 9))


def test_curve_after_a_kill_is_the_unbroken_one(tmp_path, unbroken):
    run = tmp_path / "run"
    train(*kept(run, 9, 3), code=-signal.SIGKILL, fault="ckpt.before_commit@step=9:kill")
    train(*kept(run, 9, 3))
    assert curve(run) == curve(unbroken)


def test_full_disk_at_the_last_save(tmp_path):
    run = tmp_path / "run"
    text = message(train(*kept(run, 2, 10), code=4, fault="file.write@step=2:errno=ENOSPC"), "space", str(run))
    assert "shard-00000.safetensors" in text
    assert not list(run.glob("iter_*"))
    train(*kept(run, 2, 10))
    assert weights(run, 2)


def test_full_disk_between(tmp_path, unbroken):
    """Training goes on without that checkpoint, and says so."""
    run = tmp_path / "run"
    result = train(*kept(run, 9, 3), fault="file.write@step=6:errno=ENOSPC")
    assert "warning" in result.stderr and "space" in result.stderr.lower()
    assert sorted(path.name for path in run.glob("iter_*")) == ["iter_0000003", "iter_0000009"]
    assert_bitwise(weights(run, 9), weights(unbroken, 9))


REFUSALS = ["EROFS", "EACCES", "EPERM", "EIO", "ESTALE", "EDQUOT"]


def test_refused_save_between(tmp_path, unbroken):
    """Whatever the file system refuses, training goes on and the next interval saves."""
    def check(case, folder):
        name, flags = case
        run = folder / "run"
        result = train(*kept(run, 9, 3), *flags, fault=f"file.write@step=6:errno={name}")
        assert "warning" in result.stderr and "the next save tries again" in result.stderr
        assert sorted(path.name for path in run.glob("iter_*")) == ["iter_0000003", "iter_0000009"]
        assert_bitwise(weights(run, 9), weights(unbroken, 9))

    each([(name, flags) for name in REFUSALS for flags in ([], ["--async-save"])], check, tmp_path)


def test_refused_last_save(tmp_path):
    def check(case, folder):
        name, flags = case
        message(train(*kept(folder / "run", 4, 2), *flags, code=4, fault=f"file.write@step=4:errno={name}"), "shard-00000")
        assert [path.name for path in (folder / "run").glob("iter_*")] == ["iter_0000002"]

    each([(name, flags) for name in REFUSALS[:4] for flags in ([], ["--async-save"])], check, tmp_path)


@pytest.mark.parametrize("doomed", ["metrics.jsonl", ""])
def test_log_removed_during_the_run(tmp_path, unbroken, doomed):
    """The run is finished and saved: it does not fail because its log was removed."""
    run = tmp_path / "run"
    job = start(kept(run, 9, 3), fault="ckpt.end@step=6:delay=1500")
    wait_for((run / "iter_0000006").exists, "the second checkpoint")
    (run / doomed).rename(tmp_path / "elsewhere")
    output = job.communicate(timeout=60)[0]
    assert job.returncode == 0, output
    assert "warning: report.html is not written" in output and "metrics.jsonl" in output
    assert_bitwise(weights(run, 9), weights(unbroken, 9))


def truncate(path):
    os.truncate(path, path.stat().st_size - 100)


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


DAMAGE = {"bytes": truncate, "tensor": flip_bit, "missing": os.unlink}


def test_damaged_shard(tmp_path, unbroken):
    def check(says, folder):
        run = shutil.copytree(unbroken, folder / "run")
        shard = run / "iter_0000009" / "shard-00000.safetensors"
        size = shard.stat().st_size
        DAMAGE[says](shard)
        command = kept(run, 9, 3)
        text = message(train(*command, "--ckpt-step", "9", code=4), says, shard)
        assert says != "bytes" or (str(size) in text and str(size - 100) in text), text
        assert (run / "iter_0000009").exists(), "a checkpoint that was named is not put aside"

        result = train(*command)
        assert "iter_0000009" in result.stderr, "falling back is loud"
        assert "at iteration 6" in result.stdout
        assert_bitwise(weights(run, 9), weights(unbroken, 9))
        assert list(run.glob("iter_0000009*.bad*")), "the damaged one is put aside"

    each(DAMAGE, check, tmp_path)


def test_all_checkpoints_damaged(tmp_path, unbroken):
    run = shutil.copytree(unbroken, tmp_path / "run")
    for path in run.glob("iter_*/shard-00000.safetensors"):
        truncate(path)
    message(train(*kept(run, 12, 3), code=4), "iter_0000003", "iter_0000006", "iter_0000009")
    assert len(list(run.glob("iter_*"))) == 3, "nothing is deleted"


def test_checkpoint_of_another_model(tmp_path, unbroken):
    run = shutil.copytree(unbroken, tmp_path / "run")
    for folders, code in [(["--save", run], 2), (["--save", run, "--load", run], 2), (["--load", run], 4)]:
        result = train(*MOCK, "--train-iters", "12", *folders, "--hidden-size", "32", "--num-layers", "3", code=code)
        message(result, "hidden_size: 16 in the checkpoint, 32 in this run", "num_layers: 2 in", "iter_0000009")
    assert not list(run.glob("*.bad*"))


def test_checkpoint_that_is_not_there(tmp_path, unbroken):
    command = [*MOCK, "--train-iters", "1", "--load"]
    message(train(*command, unbroken, "--ckpt-step", "7", code=4), "iteration 7", "iter_0000009")
    message(train(*command, tmp_path / "none", "--exit-on-missing-checkpoint", code=4), tmp_path / "none")


def test_unwritable_save(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = train(*MOCK, "--train-iters", "1", "--save", tmp_path / "file" / "run", code=2)
    assert "iteration" not in result.stdout.split("end of arguments")[1], "told before training"
    message(result, tmp_path / "file" / "run")


def test_huge_learning_rate(tmp_path):
    run = tmp_path / "run"
    text = message(train(*kept(run, 6, 1), "--lr", "1e30", "--clip-grad", "0", "--lr-decay-style", "constant", code=6),
                   "nan", "iteration", "--lr", "computed once more", "is the first that is not finite")
    bad = int(re.search(r"at iteration (\d+)", text)[1])
    ids = run / f"nan-iteration-{bad:07d}-rank-0.txt"
    assert str(ids) in text and len(ids.read_text().splitlines()) == 2, "the batch is kept"
    teratron("logits", "--load", run, "--input", ids, "--output", tmp_path / "out.safetensors", "--device", "cpu")
    assert all(tensor.isfinite().all() for tensor in weights(run, bad - 1).values()), "as they were"
    assert not (run / f"iter_{bad:07d}").exists()


@pytest.mark.skipif(bool({"asan", "tsan"} & set(Path(BINARY or "").parts)), reason="a sanitizer needs all addresses")
def test_out_of_memory_tells_what_is_needed_and_how_to_need_less():
    """An embedding of two billion tokens and 16 channels needs 119 GiB; 64 GiB are available."""
    result = train(*MOCK, "--vocab-size", "2000000000", "--train-iters", "1", code=7, memory=64 << 30)
    message(result, "out of host memory: 119.21 GiB", "weights 119.21", "gradients 119.21", "optimizer 238.42",
            "peak 715.26", "--tensor-model-parallel-size 2: 357.63 instead of 715.26 GiB", "--loss-chunks 8: ",
            "--micro-batch-size 1 (now 2): 596.05")
