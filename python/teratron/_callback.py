"""What a whole training calls."""


class Callback:
    """What Trainer.train() calls. Derive from it and override what is of interest; all ranks call it.

    Example:
        class Stop(teratron.Callback):
            def on_step(self, trainer, result):
                return result.loss > 2.0

        teratron.Trainer(config, callbacks=[Stop()]).train()
    """

    def on_step(self, trainer, result):
        """After each step, with its StepResult. False, on any rank, ends the training of all after the next step at most."""

    def on_evaluate(self, trainer, result):
        """After Trainer.evaluate(), with its StepResult."""

    def on_save(self, trainer, folder):
        """After Trainer.save()."""

    def on_end(self, trainer):
        """After the end of train(), when everything is saved."""
