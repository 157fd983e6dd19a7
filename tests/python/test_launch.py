"""Four processes, tensor-parallel 2 x pipeline-parallel 2, with losses and samples in Python."""
import json
import os
import sys

import pytest
import teratron
from small import GRID, C, losses

RANK = """
import json, sys, torch
trainer = teratron.Trainer(C(**GRID))
groups = {axis: (trainer.mesh.group(axis).rank, trainer.mesh.group(axis).size) for axis in ("tp", "pp", "dp")}
batches = trainer.batches("train")
shapes = None
fed = []
for _ in range(3):
    item = None if batches is None else next(batches)
    shapes = None if item is None else {name: list(item[name].shape) for name in item}
    fed.append(trainer.step(item).loss)
json.dump({
    "rank": (trainer.rank, trainer.world_size, trainer.world.rank, trainer.world.size),
    "groups": groups,
    "shapes": shapes,
    "fed": fed,
    "main": trainer.is_main_process,
    "gathered": trainer.gather([trainer.rank]).tolist(),
    "average": trainer.average(torch.tensor(3.0)).item(),
    "sum": trainer.mesh.group().all_reduce(torch.tensor([1.0 + trainer.rank])).item(),
    "pair": trainer.mesh.group("tp").all_gather(torch.tensor([trainer.rank])).tolist(),
    "whole": sum(tensor.numel() for _, tensor in trainer.state_dict("teratron")),
}, open(f"{sys.argv[1]}/rank-{trainer.rank}.json", "w"))
"""


@pytest.fixture(scope="module")
def expected():
    """Losses of rank threads on the same grid, and the number of weights."""
    def work(world):
        with teratron.Trainer(C(world_size=4, **GRID), world=world) as trainer:
            return losses(trainer, 3)
    with teratron.Trainer(C()) as trainer:
        weights = sum(tensor.numel() for _, tensor in trainer.state_dict("teratron"))
    return teratron.run_ranks(4, work)[0], weights


def test_launched_ranks_train_on_samples_of_python(script, launch, tmp_path, expected):
    done = script(RANK, tmp_path, launch=launch(4), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    for number, rank in enumerate(ranks):
        assert rank["rank"] == [number, 4, number, 4]
        assert rank["groups"] == {"tp": [number % 2, 2], "pp": [number // 2, 2], "dp": [0, 1]}
        assert (rank["shapes"] is None) == (number % 2 != 0)
        assert rank["main"] == (number == 3)
        assert rank["gathered"] == [number] and rank["average"] == 3.0 and rank["sum"] == 10.0
        assert rank["pair"] == [number - number % 2, number - number % 2 + 1]
        assert (rank["fed"], rank["whole"]) == expected
    assert ranks[2]["shapes"] == {"tokens": [64, 4], "labels": [64, 4], "loss_mask": [64, 4]}


AGENT = """
import json, sys
trainer = teratron.Trainer(C(tensor_model_parallel_size=2))
fed = losses(trainer, 2)
json.dump({"rank": trainer.rank, "size": trainer.world_size, "fed": fed}, open(f"{sys.argv[1]}/rank-{trainer.rank}.json", "w"))
"""


def test_torchrun_starts_ranks_and_torch_may_come_first(script, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                "localhost:0", "--no-python"]
    done = script(AGENT, tmp_path, launch=torchrun, first="import torch", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    assert done.returncode == 0, done.stdout + done.stderr

    def work(world):
        with teratron.Trainer(C(world_size=2, tensor_model_parallel_size=2), world=world) as trainer:
            return losses(trainer, 2)

    expected = teratron.run_ranks(2, work)[0]
    for rank in range(2):
        assert json.loads((tmp_path / f"rank-{rank}.json").read_text()) == {"rank": rank, "size": 2, "fed": expected}


FAILS = """
trainer = teratron.Trainer(C(tensor_model_parallel_size=2))
trainer.step()
if trainer.rank == 1:
    raise ValueError("of rank 1")
while True:
    trainer.step()
"""


def test_a_rank_that_raises_ends_the_others(script, launch):
    done = script(FAILS, launch=launch(2))
    assert done.returncode != 0 and "ValueError: of rank 1" in done.stdout + done.stderr
    assert os.environ.get("RANK") is None
