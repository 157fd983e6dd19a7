"""Runs that are killed while a checkpoint is written in the background."""

import signal

from program import assert_bitwise, each, kept, needs_binary, train, weights

pytestmark = needs_binary

# Where the run is killed, and the newest whole checkpoint then.
POINTS = [("shard_block", 3), ("shard_done", 3), ("before_commit", 3), ("after_commit", 6), ("end", 6)]


def test_kill_while_saving_in_the_background(tmp_path, unbroken):
    """The training goes on meanwhile; what it did after the last whole checkpoint is done again."""
    def check(case, folder):
        point, newest = case
        run = folder / "run"
        command = [*kept(run, 9, 3), "--async-save"]
        train(*command, code=-signal.SIGKILL, fault=f"ckpt.{point}@step=6:kill;ckpt.shard_created@step=6:delay=300")
        assert_bitwise(weights(run, newest), weights(unbroken, newest))
        assert f"at iteration {newest}" in train(*command).stdout
        for iteration in (6, 9):
            assert_bitwise(weights(run, iteration), weights(unbroken, iteration))
        assert not list(run.glob("*partial*")), "leftovers are swept"

    each(POINTS, check, tmp_path)


def test_without_memory_for_a_copy(tmp_path, unbroken):
    """Then training waits for the saves, and says so."""
    run = tmp_path / "run"
    result = train(*kept(run, 9, 3), "--async-save", fault="host_memory.prepare:throw")
    assert result.stderr.count("warning: --async-save: ") == 1, result.stderr
    assert "of host memory cannot be prepared" in result.stderr and "waits for every save" in result.stderr
    for iteration in (3, 6, 9):
        assert_bitwise(weights(run, iteration), weights(unbroken, iteration))
