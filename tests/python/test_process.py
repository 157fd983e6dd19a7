"""Signals, fork and the end of a process."""
import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, signal, sys, threading, time

def interrupted_after(steps):
    def wait():
        while len(steps) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()

for step in (None, Same):
    trainer = teratron.Trainer(C(train_iters=100000), train_step=step)
    steps = []
    interrupted_after(steps)
    try:
        while True:
            steps.append(trainer.step())
    except KeyboardInterrupt:
        before = trainer.iteration
        assert before >= 3 and trainer.step().iteration == before + 1, "no step is lost"
        print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)

def work(world):
    trainer = teratron.Trainer(C(train_iters=100000, world_size=2, tensor_model_parallel_size=2), world=world)
    while True:
        ranks.append(trainer.step())

ranks = []
interrupted_after(ranks)
try:
    teratron.run_ranks(2, work)
except KeyboardInterrupt:
    print("interrupted ranks", signal.getsignal(signal.SIGINT) is signal.default_int_handler)

# At once: before there are ranks, or while they begin.
try:
    interrupted_after([1, 2, 3])
    teratron.run_ranks(2, work)
except KeyboardInterrupt:
    print("interrupted at once")
"""


def test_ctrl_c_raises_between_steps(script):
    done = script(INTERRUPTED, timeout=600)  # it ends by itself, however busy the machine is
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted True"] * 2 + ["interrupted ranks True", "interrupted at once"]


END = """
import os, signal, sys, torch
trainer = teratron.Trainer(C(), train_step=Same)
trainer.step()
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        trainer.step()
    except RuntimeError as error:
        os._exit(0 if "fork()" in str(error) else 1)
    os._exit(2)
print("child", os.waitpid(child, 0)[1])
data = torch.utils.data.TensorDataset(torch.arange(8.0))
print("loader", sum(len(x) for (x,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)))
print("parent", trainer.step().iteration)
saving = teratron.Trainer(C(save="kept", async_save=True))
saving.step()
saving._engine.save()
raise ValueError("with trainers in the traceback")
"""


def test_children_of_fork_are_refused_and_the_end_is_quiet(script, tmp_path):
    done = script(END)
    assert done.stdout.splitlines() == ["child 0", "loader 8", "parent 2"], done.stderr
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: with trainers in the traceback")
    assert "nanobind" not in done.stderr and "leak" not in done.stderr
    assert (tmp_path / "kept/latest_checkpointed_iteration.txt").read_text().strip() == "1"
