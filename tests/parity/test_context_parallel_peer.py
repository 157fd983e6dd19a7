"""bench/peers/torch_context_parallel.py on two CPU processes: the loss and every gradient of the unsharded model.

PyTorch has ring attention for GPUs only. Here attention gathers keys and values; the cut of the sequence, the rotary tables,
recomputation, loss chunks and the sums over ranks are the peer's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PEERS = Path(__file__).parents[2] / "bench" / "peers"
WORKER = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch_context_parallel import LongModel, RingLayer, inputs_and_labels, sharded_cut
from torch_gpt import Layer

rank, folder, recomputes, chunks = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "True", int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
SHAPE = dict(hidden=32, layers=2, heads=4, groups=2, ffn=48, sequence=32, vocabulary=50, rope=True, llama=True, rotary_base=500000.0)


def attention(self, q, k, v):
    quarter = SHAPE["sequence"] // 4
    whole = []
    for x in (k, v):
        (a, d), (b, c) = (part.split(quarter, 2) for part in differentiable.all_gather(x.contiguous()))
        whole.append(torch.cat((a, b, c, d), 2).repeat_interleave(self.heads // self.groups, 1))
    position = torch.arange(4 * quarter).split(quarter)
    mine = torch.cat((position[rank], position[3 - rank]))
    scores = q @ whole[0].transpose(2, 3) / q.size(3) ** 0.5
    return scores.masked_fill(torch.arange(4 * quarter) > mine[:, None], float("-inf")).softmax(3) @ whole[1]


def built(kind):
    torch.manual_seed(0)
    return kind(SHAPE)


class Whole(LongModel):
    layer = Layer


tokens = torch.randint(0, SHAPE["vocabulary"], (1, SHAPE["sequence"] + 1), generator=torch.Generator().manual_seed(1))
twin = built(Whole)
twin.loss = twin.loss_of_chunk
twin_loss = twin(tokens[:, :-1], tokens[:, 1:])
twin_loss.backward()

RingLayer.attention = attention
model = built(LongModel)
model.recomputes, model.loss_chunks = recomputes, chunks
model.shard(torch.float32)
inputs, labels = inputs_and_labels(tokens)
with sharded_cut(dist.init_device_mesh("cpu", (2,)), model, inputs, labels):
    assert inputs.size(1) == SHAPE["sequence"] // 2
    loss = model(inputs, labels)
    loss.backward()
mean = loss.detach().clone()
dist.all_reduce(mean)
torch.testing.assert_close(mean / 2, twin_loss.detach(), rtol=1e-6, atol=0)
expected = dict(twin.named_parameters())
for name, parameter in model.named_parameters():
    torch.testing.assert_close(parameter.grad.full_tensor(), expected[name.replace("_orig_mod.", "")].grad, rtol=1e-4, atol=1e-7)
assert len(expected) == sum(1 for _ in model.parameters()) > 10
dist.destroy_process_group()
"""


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="takes 20 s; needs TERATRON_LONG_TESTS")
@pytest.mark.parametrize("recomputes, chunks", [(False, 1), (True, 2)])
def test_loss_and_gradients_are_those_of_the_unsharded_model(tmp_path, recomputes, chunks):
    environment = {**os.environ, "PYTHONPATH": str(PEERS), "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo"}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path), str(recomputes), str(chunks)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) for rank in range(2)]
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)[-3000:]
