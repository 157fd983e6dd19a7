"""Old checkpoints on a file system that deletes slowly: no rank waits for it."""

import time

import pytest
from jobs import launch
from program import JOB, needs_binary, weights

pytestmark = needs_binary


@pytest.mark.parametrize("flags", [[], ["--async-save"]])
def test_slow_removals_do_not_fail_a_job(tmp_path, flags):
    """The three entries of an old checkpoint take longer than a collective may; they are removed by the end."""
    run, began = tmp_path / "run", time.monotonic()
    launch(2, *JOB, *flags, "--save", run, "--save-interval", 2, "--keep-last", 1, "--distributed-timeout-seconds-after-init", 4,
           fault="ckpt.removing:delay=2000")
    assert time.monotonic() - began > 6
    assert sorted(path.name for path in run.iterdir() if path.name.startswith("iter_")) == ["iter_0000004"]
    assert weights(run, 4)
