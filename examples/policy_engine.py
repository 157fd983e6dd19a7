"""Reinforcement learning by a framework that embeds Teratron: a worker with the names of verl's engines (BaseEngine), and rollouts
by Teratron's own engine on the weights that are trained.

    python policy_engine.py --threads 4 --tp 2 --pp 2 --steps 20
    teratron launch --nproc-per-node 4 -- $(which python) policy_engine.py --tp 2 --pp 2 --steps 20

The worker starts nothing, ends nothing and handles no signals. The example rewards even ids, with
advantages relative to a group of answers (GRPO) and the clipped ratio of PPO.
"""
import argparse
import contextlib
import dataclasses
import tempfile
from pathlib import Path

import teratron
import torch


class EngineRegistry:
    """Classes of engines by the kind of model and the backend.

    Example:
        engine = EngineRegistry.new("language_model", "teratron", config=config)
    """

    _engines = {}

    @classmethod
    def register(cls, model_type, backend):
        def decorator(engine):
            cls._engines[model_type, backend] = engine
            return engine
        return decorator

    @classmethod
    def new(cls, model_type, backend, **arguments):
        if (model_type, backend) not in cls._engines:
            raise KeyError(f"no engine for {model_type} by {backend}; there are {sorted(cls._engines)}")
        return cls._engines[model_type, backend](**arguments)


@dataclasses.dataclass
class Sequences:
    """Samples of different lengths, a row each.

    Args:
        ids: lists of token ids, prompts with answers. prompt_lengths: of the prompts. values: by name further rows: numbers, or
            tensors with an element for each token of the answer.
    """

    ids: list
    prompt_lengths: list
    values: dict = dataclasses.field(default_factory=dict)

    def __len__(self):
        return len(self.ids)

    def rows(self, which):
        """A part of the rows."""
        values = {name: [column[i] for i in which] for name, column in self.values.items()}
        return Sequences([self.ids[i] for i in which], [self.prompt_lengths[i] for i in which], values)

    def columns(self, length, rows):
        """The engine's columns [S, rows]: each answer's tokens are the labels that count; rows that are missing count nothing."""
        ids = torch.zeros(length + 1, rows, dtype=torch.long)
        mask = torch.zeros(length, rows)
        for row, (tokens, prompt) in enumerate(zip(self.ids, self.prompt_lengths)):
            if len(tokens) > length + 1:
                raise ValueError(f"a sequence has {len(tokens)} tokens, and seq_length allows {length + 1}")
            ids[:len(tokens), row] = torch.tensor(tokens)
            mask[prompt - 1:len(tokens) - 1, row] = 1
        return {"tokens": ids[:-1], "labels": ids[1:], "loss_mask": mask}


class _Pass(teratron.TrainStep):
    """The loss function of the call that is under way, for each micro-batch."""

    data = loss_function = None

    def begin(self, data, loss_function):
        self.data, self.loss_function = data, loss_function
        self.outputs = []
        self.done = 0

    def loss(self, losses, batch):
        """-losses are the log probabilities of the labels."""
        begin = self.done
        self.done += losses.shape[1]
        mine = self.data.rows(range(begin, min(self.done, len(self.data))))
        log_probs = [-losses[prompt - 1:len(ids) - 1, row] for row, (ids, prompt) in enumerate(zip(mine.ids, mine.prompt_lengths))]
        self.outputs += [(rows.detach(), {}) for rows in log_probs]
        if self.loss_function is None or not mine.ids:
            return (losses * 0.0).sum(), 1.0
        loss, metrics = self.loss_function({"log_probs": log_probs}, mine)
        self.outputs[-1][1].update(metrics, loss=loss.detach().item())
        return loss, 1.0


@EngineRegistry.register("language_model", "teratron")
class PolicyEngine:
    """A model in training, as verl's BaseEngine has it. All ranks call each method, in the same order.

    Args:
        config: a teratron.Config; its global_batch_size are the rows of a pass, micro_batch_size those of a forward.
        world: a World of run_ranks(); None: the process's. offload: a folder for to("cpu"); None: a temporary one.

    Example:
        engine = PolicyEngine(config)
        engine.initialize()
        with engine.train_mode():
            result = engine.train_batch(data, loss_function)
            engine.lr_scheduler_step()
    """

    def __init__(self, config, world=None, offload=None):
        self.config, self.world = config, world
        self.trainer = self._pass = self._lr = None
        self._offload = Path(offload) if offload else None
        self._mode = None

    def initialize(self):
        """Makes the model, with the weights that the config names (load=, hf=), or random ones."""
        self._pass = _Pass()
        self.trainer = teratron.Trainer(self.config, train_step=self._pass, dataset={}, world=self.world)
        self.trainer.load()

    # ---- Modes ----

    @contextlib.contextmanager
    def _in(self, mode):
        before, self._mode = self._mode, mode
        try:
            yield self
        finally:
            self._mode = before

    def train_mode(self):
        """A context in which passes compute gradients."""
        return self._in("train")

    def eval_mode(self):
        """A context in which passes only look."""
        return self._in("eval")

    # ---- Passes ----

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        """Forward, and unless forward_only backward, over this data-parallel rank's rows.

        Args:
            data: Sequences, at most global_batch_size / data-parallel size of them.
            loss_function: f({"log_probs": [tensor of each answer]}, rows) -> (loss, {metric: number}), for each micro-batch; the
                gradient is that of their mean. None: no loss, with forward_only.

        Returns:
            {"log_probs": [tensor of each row], "metrics": {name: [number of each micro-batch]}} where is_mp_src_rank_with_outputs(),
            on its stage's other ranks too; elsewhere nothing in them.
        """
        trainer = self.trainer
        rows = trainer.global_batch_size // self.get_data_parallel_size()
        if len(data) > rows:
            raise ValueError(f"{len(data)} rows are given, and global_batch_size allows {rows} on a data-parallel rank")
        self._pass.begin(data, loss_function)
        item = data.columns(self.config.seq_length, rows)
        if forward_only or self._mode == "eval":
            trainer.evaluate(item)
        else:
            trainer.compute_gradients(item)
        metrics = {}
        for _, values in self._pass.outputs:
            for name, value in values.items():
                metrics.setdefault(name, []).append(value)
        return {"log_probs": [log_probs for log_probs, _ in self._pass.outputs], "metrics": metrics}

    def optimizer_zero_grad(self):
        """Nothing: each backward pass begins with gradients of zero."""

    def optimizer_step(self):
        """Clips, and updates the weights. Returns the norm of the gradient."""
        result = self.trainer.update()
        self._lr = result.lr
        return result.grad_norm

    def lr_scheduler_step(self):
        """The learning rate of the next step; optimizer_step() has advanced it."""
        return self._lr

    def train_batch(self, data, loss_function):
        """A whole step."""
        self.optimizer_zero_grad()
        output = self.forward_backward_batch(data, loss_function)
        output["metrics"]["grad_norm"] = self.optimizer_step()
        return output

    def infer_batch(self, data, loss_function=None):
        """Log probabilities alone."""
        return self.forward_backward_batch(data, loss_function, forward_only=True)

    # ---- Rollouts ----

    def rollout(self, prompts, *, answers, max_new_tokens, seed, **options):
        """Sampled answers to prompts of ids, by all ranks together, the same on each.

        Returns:
            Sequences of len(prompts) * answers rows; values["sampled"]: log probabilities with which their tokens were sampled.
        """
        ids, lengths, sampled = [], [], []
        requests = [prompt for prompt in prompts for _ in range(answers)]
        for prompt, answer in zip(requests, self.trainer.generate(requests, seed=seed, max_new_tokens=max_new_tokens, logprobs=True,
                                                                  **options)):
            ids.append([*prompt, *answer["tokens"]])
            lengths.append(len(prompt))
            sampled.append(torch.tensor(answer["logprobs"][len(prompt) - 1:], dtype=torch.float64))
        return Sequences(ids, lengths, {"sampled": sampled})

    def mine(self, data):
        """This data-parallel rank's rows of samples that all ranks have."""
        return data.rows(range(self.get_data_parallel_rank(), len(data), self.get_data_parallel_size()))

    # ---- Weights ----

    def get_per_tensor_param(self):
        """(name in Hugging Face's model, whole tensor), one by one, on every rank: what another engine of rollouts takes."""
        return self.trainer.state_dict("hf")

    def to(self, device, model=True, optimizer=True):
        """"cpu": frees the device, with weights and optimizer in a folder; another device: takes them back."""
        if device == "cpu" and self.trainer is not None:
            if self._offload is None:
                self._offload = self._shared_folder()
            self.trainer.save(self._offload)
            self.trainer.close()
            self.trainer = None
        elif device != "cpu" and self.trainer is None:
            self.initialize()
            self.trainer.load(self._offload)

    def _shared_folder(self):
        """A folder that rank 0 makes, known to all."""
        name = tempfile.mkdtemp(prefix="teratron-") if self.trainer.rank == 0 else ""
        text = torch.zeros(4096, dtype=torch.uint8)
        text[:len(name)] = torch.tensor(list(name.encode()), dtype=torch.uint8)
        return Path(bytes(self.trainer.mesh.group().broadcast(text).tolist()).rstrip(b"\0").decode())

    def save_checkpoint(self, local_path, global_step=0, **_):
        """A checkpoint of Teratron in the folder, for any layout."""
        return self.trainer.save(local_path)

    def load_checkpoint(self, local_path, **_):
        """Goes on from save_checkpoint(). FileNotFoundError if there is none."""
        if not self.trainer.load(local_path):
            raise FileNotFoundError(f"there is no checkpoint in {local_path}")

    # ---- Ranks ----

    def get_data_parallel_rank(self):
        return self.trainer.mesh.group("dp").rank

    def get_data_parallel_size(self):
        return self.trainer.mesh.group("dp").size

    def get_data_parallel_group(self):
        return self.trainer.mesh.group("dp")

    def is_mp_src_rank_with_outputs(self):
        """True on one rank of each replica, of the last pipeline stage."""
        mesh = self.trainer.mesh
        stages = mesh.group("pp")
        return stages.rank == stages.size - 1 and mesh.group("tp").rank == 0 and mesh.group("cp").rank == 0


# ---- An algorithm on it ----

def reward(ids):
    """The share of even ids."""
    return sum(id % 2 == 0 for id in ids) / max(len(ids), 1)


def with_advantages(data, group):
    """Rewards, and how much better than the other answers of its prompt each is."""
    rewards = torch.tensor([reward(ids[length:]) for ids, length in zip(data.ids, data.prompt_lengths)]).view(-1, group)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    values = {**data.values, "reward": rewards.flatten().tolist(), "advantage": advantages.flatten().tolist()}
    return dataclasses.replace(data, values=values)


def policy_loss(output, rows, clip=0.2):
    """PPO's clipped ratio to the policy that sampled."""
    terms, counts = [], 0
    for log_probs, sampled, advantage in zip(output["log_probs"], rows.values["sampled"], rows.values["advantage"]):
        ratio = (log_probs - sampled.to(log_probs)).exp()
        terms.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).sum())
        counts += len(log_probs)
    return sum(terms) / counts, {"tokens": counts}


def config_of(tp=1, pp=1, world_size=None, **more):
    sizes = dict(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=24, max_position_embeddings=24, micro_batch_size=8,
                 global_batch_size=32, train_iters=100, lr=3e-3, lr_decay_style="constant", weight_decay=0.0, hidden_dropout=0,
                 attention_dropout=0, tokenizer_type="NullTokenizer", vocab_size=30, device="cpu")
    return teratron.Config(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, world_size=world_size, **{**sizes, **more})


def train(config, steps, world=None):
    """Trains; returns for each step the mean reward, and the mean and largest difference between the log probabilities of the
    engine that trains and of the one that sampled."""
    engine = EngineRegistry.new("language_model", "teratron", config=config, world=world)
    engine.initialize()
    history = []
    prompts = [[1 + i, 2 + i] for i in range(4)]
    for step in range(steps):
        data = with_advantages(engine.rollout(prompts, answers=8, max_new_tokens=16, seed=step), group=8)
        mine = engine.mine(data)
        with engine.train_mode():
            output = engine.train_batch(mine, policy_loss)
            engine.lr_scheduler_step()
        mean = torch.tensor(data.values["reward"]).mean().item()
        if not output["log_probs"]:
            history.append((mean, None, None))
            continue
        apart = torch.cat([(trained.double() - sampled).abs()
                           for trained, sampled in zip(output["log_probs"], mine.values["sampled"])])
        history.append((mean, apart.mean().item(), apart.max().item()))
        if engine.is_mp_src_rank_with_outputs() and engine.get_data_parallel_rank() == 0:
            print(f"step {step + 1}: reward {mean:.3f}, log probabilities apart by {history[-1][1]:.1e}, at most {history[-1][2]:.1e}")
    return history, engine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"tp": 1, "pp": 1, "steps": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, help="ranks in this process; by default the ranks of the job")
    args = parser.parse_args()
    config = config_of(args.tp, args.pp, args.threads)
    if args.threads:
        teratron.run_ranks(args.threads, lambda world: train(config, args.steps, world)[0])
    else:
        train(config, args.steps)


if __name__ == "__main__":
    main()
