"""A training loop put together from teratron.nn: a mesh, parallel layers, a pipeline, gradient buffers, an optimizer, a schedule
of its rate and checkpoints, without Trainer.

    teratron launch --nproc-per-node 8 -- $(which python) own_loop.py --tp 2 --pp 2 --steps 10 --folder run
    python own_loop.py --threads 8 --tp 2 --pp 2 --steps 10 --folder run       # the ranks as threads of one process

The other ranks are data-parallel and shard the optimizer (ZeRO-1). The loop goes on from the newest checkpoint in the folder and
saves one. examples/own_loop/main.cpp is the same in C++, with the same losses.
"""
import argparse
import math

import teratron
import torch
from teratron import nn

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, PADDED = 4, 32, 4, 16, 31, 256
MICRO_BATCH, GLOBAL_BATCH = 2, 16
STD = 0.02
OUTPUT_STD = 0.02 / math.sqrt(2.0 * LAYERS)  # of what is added to the residual


class Stage(torch.nn.Module):
    """The layers of this rank's pipeline stage, with the embeddings on the first and the loss on the last."""

    def __init__(self, root, pipeline, parallel):
        super().__init__()
        self.pipeline, self.parallel = pipeline, parallel
        if pipeline.is_first or pipeline.is_last:  # of one name, hence tied
            self.words = nn.VocabParallelEmbedding(root / "embedding" / "word_embeddings", VOCABULARY, HIDDEN, parallel, PADDED, STD)
        if pipeline.is_first:
            self.positions = nn.Embedding(root / "embedding" / "position_embeddings", SEQUENCE, HIDDEN, parallel, STD)
        self.layers = torch.nn.ModuleList(
            nn.TransformerLayer(root / "decoder" / "layers" / i, HIDDEN, HEADS, parallel, std=STD, output_std=OUTPUT_STD)
            for i in pipeline.layers(LAYERS))
        if pipeline.is_last:
            self.final_norm = nn.Norm(root / "decoder" / "final_layernorm", HIDDEN, parallel)
            self.output = nn.OutputLayer(self.words, parallel)

    def forward(self, hidden, batch):
        """Hidden states [S, B, H] for the next stage, S of this rank under sequence parallelism; on the last the sum of the
        losses of all tokens that count."""
        places = batch.sequence_index  # [S, B]
        if self.pipeline.is_first:
            hidden = self.positions(self.parallel.sequence_shard(places), self.words(batch.tokens))
        for layer in self.layers:
            hidden = layer(hidden, places)
        if not self.pipeline.is_last:
            return nn.apply_bias_grad(hidden)
        normed, _ = self.final_norm(hidden)
        return (self.output(normed, batch.labels) * batch.loss_mask).sum()


class Training:
    """One rank's part of a training."""

    def __init__(self, world, tp, pp, folder):
        self.mesh, self.folder = teratron.Mesh(world, tp=tp, pp=pp), folder
        self.root = nn.Scope(dtype=torch.float32, device="cpu", seed=1234)
        self.pipeline = nn.Pipeline(self.mesh, self.root)
        parallel = nn.Parallel(self.mesh, sequence_parallel=tp > 1)
        self.stage = Stage(self.root, self.pipeline, parallel)
        self.buffers = nn.GradBuffers(self.root, self.mesh, sharded=True)
        self.optimizer = nn.Optimizer(self.buffers)
        self.schedule = nn.LRSchedule(max_lr=1e-2, warmup_samples=5 * GLOBAL_BATCH, decay_samples=6 * GLOBAL_BATCH,
                                      decay_style="constant")
        self.replicas = self.mesh.group("dp").size
        if GLOBAL_BATCH % (MICRO_BATCH * self.replicas) != 0:
            raise ValueError(f"{self.replicas} data-parallel ranks do not divide the batch of {GLOBAL_BATCH}")
        self.hidden_shape = (SEQUENCE // tp, MICRO_BATCH, HIDDEN)
        self.step = 0

    def train_step(self, batches):
        """One step; returns the mean loss of its tokens."""
        microbatches = GLOBAL_BATCH // MICRO_BATCH // self.replicas
        tokens = GLOBAL_BATCH * SEQUENCE  # all count
        total = torch.zeros(1, dtype=torch.float64)

        def forward(_, hidden):
            output = self.stage(hidden, next(batches))
            if not self.pipeline.is_last:
                return output
            total.add_(output.detach())
            return output / tokens  # gradients are summed

        self.buffers.zero_grad()
        self.pipeline.run(forward, hidden_shape=self.hidden_shape, microbatches=microbatches,
                          before_last=self.buffers.set_last_microbatch)
        self.buffers.finish_grad_sync()
        self.optimizer.step(self.schedule.lr, self.schedule.weight_decay)
        self.schedule.step(GLOBAL_BATCH)
        return self.mesh.group("dp", "pp").all_reduce(total).item() / tokens

    def run(self, steps):
        """Trains until so many steps are done; returns the losses of those that it did."""
        self.load()
        samples = nn.MockGPTDataset(steps * GLOBAL_BATCH, SEQUENCE, VOCABULARY)
        batches = nn.Batches(samples, self.mesh, seq_length=SEQUENCE, micro_batch_size=MICRO_BATCH,
                             consumed_samples=self.step * GLOBAL_BATCH)
        losses = []
        while self.step < steps:
            losses.append(self.train_step(batches))
            self.step += 1
            if self.mesh.rank == self.mesh.world_size - 1:
                print(f"step {self.step}: loss {losses[-1]!r}", flush=True)
        self.save()
        return losses

    def save(self):
        state = {"step": self.step, "schedule": self.schedule.state_dict()}
        nn.save(self.folder, self.step, mesh=self.mesh, scope=self.root, optimizer=self.optimizer, state=state)

    def load(self):
        state = nn.load(self.folder, mesh=self.mesh, scope=self.root, optimizer=self.optimizer)
        if state is not None:
            self.step = state["step"]
            self.schedule.load_state_dict(state["schedule"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tp", "pp"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, help="ranks in this process; by default the ranks of the job")
    args = parser.parse_args()

    def work(world):
        return Training(world, args.tp, args.pp, args.folder).run(args.steps)

    if args.threads:
        teratron.run_ranks(args.threads, work)
    else:
        work(teratron.World.join())


if __name__ == "__main__":
    main()
