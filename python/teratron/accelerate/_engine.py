"""What Accelerator.prepare() returns for a model, an optimizer and a schedule."""
import torch

from .._columns import engine_columns
from ._generate import megatron_generate


class Output(dict):
    """What a model returns: loss, a tensor without dimensions, and logits [B, S, V] or None."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class MegatronLMDummyScheduler:
    """Stands for the learning-rate schedule in Accelerator.prepare().

    Args:
        optimizer: torch's.
        total_num_steps, warmup_num_steps: steps of all data-parallel ranks together, as Accelerate counts them.

    Example:
        scheduler = MegatronLMDummyScheduler(optimizer, total_num_steps=1000, warmup_num_steps=100)
    """

    def __init__(self, optimizer, total_num_steps=None, warmup_num_steps=0, **kwargs):
        self.optimizer, self.total_num_steps, self.warmup_num_steps, self.kwargs = optimizer, total_num_steps, warmup_num_steps, kwargs


class MegatronLMOptimizerWrapper:
    """The engine's optimizer, which steps with the model: step() and zero_grad() do nothing.

    Example:
        model, optimizer = accelerator.prepare(model, optimizer, loader)[:2]
    """

    def __init__(self, engine, optimizer):
        self._engine, self.optimizer = engine, optimizer
        self.defaults, self.param_groups = optimizer.defaults, optimizer.param_groups

    def step(self):
        """Nothing: the model's call has stepped."""

    def zero_grad(self, set_to_none=None):
        """Nothing: gradients live for one call of the model."""

    @property
    def step_was_skipped(self):
        """Whether the last step left the weights as they were."""
        return self._engine.skipped


class MegatronLMSchedulerWrapper:
    """The engine's schedule, which steps with the model.

    Example:
        scheduler.get_last_lr()
    """

    def __init__(self, engine, scheduler):
        self._engine, self.scheduler = engine, scheduler

    def step(self, *args, **kwargs):
        """Nothing: the model's call has stepped."""

    def get_last_lr(self):
        """A list with the learning rate of the next step."""
        return [self._engine.lr]


class MegatronEngine(torch.nn.Module):
    """A prepared model: a call in training is a whole step, in evaluation a forward pass.

    Example:
        model.train(); loss = model(**batch).loss
        model.eval(); loss = model(**batch).loss
    """

    def __init__(self, trainer, plugin):
        super().__init__()
        self.trainer = trainer
        self.skipped = False
        self.lr = trainer.config.lr
        self.total_loss_dict = {}
        self._returns_logits = plugin.return_logits
        self._shapes, self._eod = dict(trainer._engine.columns()), trainer.tokenizer.eod

    def train(self, mode=True):
        """The next calls train, or with mode=False evaluate."""
        self.training = mode
        return self

    def eval(self):
        """The next calls evaluate."""
        return self.train(False)

    def parameters(self, recurse=True):
        """This rank's parameters."""
        return iter(tensor for _, tensor in self.trainer.parameters())

    @property
    def iteration(self):
        """Steps of the whole training so far."""
        return self.trainer.iteration

    def _item(self, batch):
        if not self.trainer._engine.reads:
            return None
        return engine_columns(self.trainer.config.program, batch, self._shapes, self._eod)

    def train_step(self, **batch):
        """A step; returns ({name: loss}, 1 if it was skipped else 0, gradient norm, None)."""
        result = self.trainer.step(self._item(batch))
        self.skipped, self.lr = result.skipped, result.lr
        self.total_loss_dict = {name: self.total_loss_dict.get(name, 0.0) + loss for name, loss in result.losses.items()}
        return self._reduced(result), int(result.skipped), result.grad_norm, None

    def eval_step(self, **batch):
        """A forward pass; returns {name: loss}."""
        return self._reduced(self.trainer.evaluate(self._item(batch)))

    @staticmethod
    def _reduced(result):
        return {name: torch.tensor(loss) for name, loss in result.losses.items()}

    def forward(self, **batch):
        """The loss of a batch of the prepared loaders, averaged over the data-parallel ranks, the same on every rank; with
        return_logits also the logits of this data-parallel rank, [B, S, V] on the last pipeline stage, None on others."""
        logits = self.logits(**batch) if self._returns_logits else None
        losses = self.train_step(**batch)[0] if self.training else self.eval_step(**batch)
        return Output(loss=sum(losses.values()), logits=logits)

    def logits(self, **batch):
        """[B, S, V] on the last pipeline stage, None on others."""
        logits = self.trainer.logits(self._item(batch))
        return None if logits is None else logits.transpose(0, 1)

    def save_checkpoint(self, folder):
        """A checkpoint of Teratron in the folder, with latest_checkpointed_iteration.txt."""
        self.trainer.save(folder)

    def load_checkpoint(self, folder):
        """Goes on from the folder's newest checkpoint. CheckpointError if there is none."""
        if not self.trainer.load(folder):
            from .._errors import CheckpointError
            problem = ("there is no checkpoint", str(folder), "Name a folder of save_state()")
            raise CheckpointError(f"{problem[1]}: {problem[0]}. {problem[2]}", [problem])

    def megatron_generate(self, inputs, attention_mask=None, max_length=None, max_new_tokens=None, num_beams=None, temperature=None,
                          top_k=None, top_p=None, length_penalty=None, **kwargs):
        """Goes on from prompts, by all ranks together.

        Args:
            inputs: ids [B, S]. attention_mask: [B, S], 1 for tokens; padding is on the right. None: no padding.
            max_length: tokens with the prompt; or max_new_tokens. None: up to the model's positions.
            num_beams: of a beam search, for a single prompt, which gives the best sequence. length_penalty: of it (1.0).
            temperature: of sampling (1.0). top_k, top_p: what is sampled from; without them all ids.
            **kwargs: top_p_decay, top_p_bound, add_BOS (an end of document before each prompt), stop_token (the end of
                document), random_seed (0).

        Returns:
            ids [B, L] on every rank, prompts included; rows that end earlier are filled with the stop token.

        Raises:
            ValueError: several prompts for beams, both lengths, or a mask with padding before tokens. TypeError: another argument.
            ConfigError: an argument out of range.

        Example:
            tokens = model.megatron_generate(ids, mask, max_new_tokens=64, top_p=0.8, top_p_decay=0.5, temperature=0.9)
        """
        return megatron_generate(self.trainer, inputs, attention_mask, max_length=max_length, max_new_tokens=max_new_tokens,
                                 num_beams=num_beams, temperature=temperature, top_k=top_k, top_p=top_p,
                                 length_penalty=length_penalty, **kwargs)
