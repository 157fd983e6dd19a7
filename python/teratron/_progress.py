"""What a Trainer tells of itself."""
import torch


class Progress:
    """Counters, sizes and places of a training; Trainer derives from it.

    Example:
        while trainer.iteration < trainer.train_iters:
            trainer.step()
    """

    @property
    def iteration(self):
        """Steps of the whole training so far."""
        return self._engine.iteration

    @property
    def consumed_samples(self):
        """Samples of the whole training so far."""
        return self._engine.consumed_samples

    @property
    def train_iters(self):
        """Steps of the whole training."""
        return self._engine.train_iters

    @property
    def global_batch_size(self):
        """Samples of the next step, over all ranks."""
        return self._engine.global_batch_size

    @property
    def micro_batch_size(self):
        """Samples of a forward pass of a rank."""
        return self.config.micro_batch_size

    @property
    def micro_batches(self):
        """Forward passes of the next step."""
        return self._engine.micro_batches

    @property
    def rank(self):
        """This rank's number."""
        return self.world.rank

    @property
    def world_size(self):
        """The number of ranks."""
        return self.world.size

    @property
    def is_main_process(self):
        """True on the last rank, which has the losses before others and writes the logs, as with Megatron-LM."""
        return self.rank == self.world_size - 1

    @property
    def device(self):
        """A torch.device: the model's."""
        return torch.device(self._engine.device)

    @property
    def tokenizer(self):
        """The Tokenizer of the settings."""
        from ._files import Tokenizer
        return Tokenizer._of(self.config._settings.tokenizer())
