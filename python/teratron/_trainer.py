"""Training, step by step or as a whole."""
import inspect
import json
import os
import time

import torch

from ._config import Config
from ._errors import ConfigError
from ._interrupt import deferred_interrupt
from ._load import close_at_exit, engine
from ._model import StageMaker
from ._progress import Progress
from ._ranks import Mesh, World
from ._state import assigned, hf_state, teratron_state
from ._steps import Batch, EngineDataset, EngineStep, LossFunction, StepResult, TrainStep, check_hooks, samples_for_engine


class Trainer(Progress):
    """One rank's model, optimizer and data, as Config describes them.

    Args:
        config: a Config. Its world_size is the number of ranks.
        train_step: a class derived from TrainStep, an object of one, a function loss(losses, batch), or a train step of
            teratron.accelerate.
        train_step_kwargs: keyword arguments of the class.
        dataset: {"train": object, "valid": ..., "test": ...} in place of the settings' data: object[i] gives the columns of
            sample i, {"tokens": [S], "labels": [S], "loss_mask": [S]}, or {"text": [S + 1]}, as tensors, arrays or lists;
            len(object) is the number of samples, which are taken in order. Called on a thread, on ranks that read.
        callbacks: objects of Callback, for train().
        param_groups: f(name, shape) -> ParamGroup, or None to leave the parameter as it is. Called with the names in
            checkpoints and whole shapes; the answer must be the same on all ranks.
        model: f(stage) -> torch.nn.Module, in place of the family's model: see Stage.
        world: a World of run_ranks(); None: the process's, World.join().

    All methods are collective: every rank calls them in the same order. Hooks may raise anything; it leaves the method as
    it is. Threads take turns, and hooks may not call methods of their trainer; callbacks may, but close(). Ctrl-C raises
    KeyboardInterrupt between steps, a second one within a hook. A Trainer is closed with `with`, close(), or at the end of the
    process; until then it holds its memory, and the lock of the folder save=.

    Raises:
        ConfigError: settings that a training needs are missing, such as data.
        DataError, CheckpointError, OutOfMemory, NumericsError, Error: as the failure is.
        RuntimeError: in a process of fork(), in a dispatch mode of torch, after close().

    Example:
        with teratron.Trainer(config) as trainer:
            trainer.load()
            for _ in range(100):
                result = trainer.step()
            trainer.save()
    """

    closing_order = 0

    def __init__(self, config, *, train_step=None, train_step_kwargs=None, dataset=None, callbacks=(), param_groups=None,
                 model=None, world=None):
        if not isinstance(config, Config):
            raise TypeError(f"config is a {type(config).__name__}, not a teratron.Config")
        self.config = config
        self.callbacks = list(callbacks)
        if world is not None and not isinstance(world, World):
            raise TypeError(f"world is a {type(world).__name__}, not a teratron.World")
        self.world = world if world is not None else World.join(config)
        if self.world.size != config.world_size:
            problem = (f"the settings are for {config.world_size} ranks, and the world has {self.world.size}",
                       "world_size", f"Give Config world_size={self.world.size}")
            raise ConfigError(f"{problem[1]}: {problem[0]}. {problem[2]}", [problem])
        check_hooks(dataset, self.callbacks)
        self._step = self._made(train_step, train_step_kwargs or {})
        hooks = {}
        if self._step is not None:
            hooks["step"] = EngineStep(self._step)
        if dataset is not None:
            hooks["datasets"] = {split: EngineDataset(data, split) for split, data in dataset.items() if data is not None}
        if param_groups is not None:
            hooks["param_groups"] = param_groups
        if model is not None:
            hooks["model"] = StageMaker(model)
        self._engine = engine.Trainer(config._settings, self.world._rank, hooks)
        self._has_loaded = False
        self.mesh = Mesh(self._engine.mesh)
        close_at_exit(self)

    def _made(self, step, kwargs):
        if step is None:
            if kwargs:
                raise TypeError("train_step_kwargs are given, and no train_step")
            return None
        adapt = getattr(step, "adapted_for", None)
        if adapt is not None:  # a class of teratron.accelerate
            return adapt(self, kwargs)
        if inspect.isclass(step):
            return step(**kwargs)
        if kwargs:
            raise TypeError("train_step_kwargs are for a class, and train_step is not one")
        return LossFunction(step) if inspect.isroutine(step) and not isinstance(step, TrainStep) else step

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Frees the model and the data, and waits for a save and a step that are under way. Later calls do nothing."""
        self._engine.close()

    # ---- Steps ----

    def step(self, *item):
        """One step over global_batch_size samples.

        Args:
            item: none: the samples are the settings' or the dataset's next ones. An item of batches(), or columns of that
                shape by name: these samples; None on ranks where batches() is None.

        Returns:
            A StepResult. On one GPU the step may still run: reading the result waits for it, so a loop that reads it later,
            or not in each step, keeps the GPU busy. An error of the device or a NaN is then raised there, or by the next call.

        Example:
            trainer.step(); trainer.step({"tokens": tokens, "labels": labels})
        """
        if len(item) > 1:
            raise TypeError(f"step() takes an item of batches() or nothing, not {len(item)} arguments")
        start = time.perf_counter()
        with deferred_interrupt():
            outcome = self._engine.step_on(samples_for_engine(item[0])) if item else self._engine.step()
        if outcome.is_known:
            return StepResult(**{**outcome.values(), "seconds": time.perf_counter() - start})
        return StepResult.awaited(lambda: self._values_of(outcome))

    def _values_of(self, outcome):
        with deferred_interrupt():
            if not outcome.is_known:
                self._engine.finish_step()
            return outcome.values()

    def compute_gradients(self, item):
        """The first half of step(item): forward and backward of its samples, and the sum over the ranks. update() is the
        second; without it nothing has changed.

        Example:
            trainer.compute_gradients(item); norm = trainer.update().grad_norm
        """
        with deferred_interrupt():
            self._engine.compute_gradients(samples_for_engine(item))

    def update(self):
        """The second half of a step: clips the gradients of compute_gradients() and steps the optimizer and its schedule.

        Returns:
            A StepResult.

        Raises:
            RuntimeError: no gradients were computed since the last update.
        """
        with deferred_interrupt():
            return StepResult(**self._engine.update())

    def evaluate(self, split="valid", iters=None):
        """Mean losses without training; the counters stay as they are.

        Args:
            split: "valid", "test" or "train"; or an item of batches(), as for step().
            iters: batches of global_batch_size samples; None: the setting eval_iters.

        Returns:
            A StepResult; its grad_norm is None.

        Example:
            math.exp(trainer.evaluate("valid", 10).loss)
        """
        with deferred_interrupt():
            if isinstance(split, str):
                values = self._engine.evaluate(split, self.config.eval_iters if iters is None else iters)
            else:
                values = self._engine.evaluate_on(samples_for_engine(split))
        result = StepResult(**{**values, "iteration": self.iteration, "grad_norm": None})
        for callback in self.callbacks:
            callback.on_evaluate(self, result)
        return result

    def train(self):
        """Trains to the planned end as `teratron pretrain` does: with its log, evaluations and saves. Goes on from a
        checkpoint as the command does, unless load() was called. A callback, or Ctrl-C, ends it early, after a save.

        Returns:
            The last StepResult; None if there was no step.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when the training is saved.

        Example:
            teratron.Trainer(config, callbacks=[Stop()]).train()
        """
        last = None

        def on_step(values):
            nonlocal last
            last = StepResult(**values)
            answers = [callback.on_step(self, last) for callback in self.callbacks]
            return not interrupted() and not any(answer is False for answer in answers)

        with deferred_interrupt() as interrupted:
            if not self._has_loaded:
                self.load()
            self._engine.train(on_step)
            for callback in self.callbacks:
                callback.on_end(self)
        return last

    def batches(self, split="train"):
        """The samples that this data-parallel rank would be given, as an iterator; None on ranks that do not read: all but
        the first of each tensor-parallel group, and pipeline stages without data.

        Args:
            split: "train", "valid" or "test"; it begins after the samples that the training has consumed.

        Returns:
            An iterator of Batch, or None. Each is a step's micro-batches: columns [S, micro_batch_size * micro-batches].

        Example:
            batches = trainer.batches("train")
            trainer.step(next(batches) if batches is not None else None)
        """
        reader = self._engine.read(split)
        if reader is None:
            return None
        batches = self._read(reader)
        close_at_exit(batches)
        return batches

    @staticmethod
    def _read(reader):
        while (columns := reader.next()) is not None:
            yield Batch(columns)

    def logits(self, item):
        """Logits of a step's samples, without dropout.

        Args:
            item: as for step().

        Returns:
            [S, B, V] of this data-parallel rank on the last pipeline stage (under context parallelism of its tokens); None
            on other stages.

        Example:
            trainer.logits(next(trainer.batches("valid"))).argmax(-1)
        """
        return self._engine.logits(samples_for_engine(item))

    def generate(self, prompts, *, seed=None, **options):
        """Texts of the model as it is now, computed by all its ranks, each of which gives the same prompts.

        Args:
            prompts: a list of texts, or of lists of token ids (of a T5 the encoder's).
            seed: of sampling; None: the setting. Prompts and their sequences draw different numbers.
            **options: max_new_tokens (64), temperature, top_k (1: greedy), top_p, top_p_decay, top_p_bound, num_beams,
                length_penalty, num_return_sequences, stop, stop_token, logprobs, add_BOS, as of a line of `teratron
                generate --input`.

        Returns:
            A list of dicts in the order of the prompts, the same on every rank: prompt_tokens, tokens (new ones), text,
            finish_reason; logprobs if asked, of the prompt's tokens but the first, then of the new ones; with several
            sequences prompt_tokens and choices.

        Raises:
            ConfigError: an option is out of range, or the model does not generate. DataError: an unknown option.

        Example:
            trainer.generate(["1 2 3"], max_new_tokens=5, top_k=1)[0]["text"]
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a text; give a list of texts, [prompt]")
        return self._generate([{"prompt" if isinstance(prompt, str) else self._ids_name: _plain(prompt), **options}
                               for prompt in prompts], seed)

    def _generate(self, requests, seed):
        return [json.loads(answer) for answer in self._engine.answers([json.dumps(request) for request in requests], seed)]

    @property
    def _ids_name(self):
        return "encoder_tokens" if self.config.program == "t5" else "tokens"

    # ---- Checkpoints and weights ----

    def load(self, folder=None):
        """Goes on with the run in the folder save=, or from load=, or takes the weights of hf= or pretrained_checkpoint=.

        Args:
            folder: of a checkpoint to go on from in place of these.

        Returns:
            Whether there was something to load; False: the weights are random.

        Raises:
            CheckpointError: the checkpoint is damaged, or another model's.

        Example:
            if not trainer.load(): print("from scratch")
        """
        self._has_loaded = True
        return self._engine.load() if folder is None else self._engine.load_from(os.fsdecode(folder))

    def save(self, folder=None):
        """Saves to the folder save=, complete when it returns.

        Args:
            folder: another one.

        Returns:
            The folder.

        Raises:
            ConfigError: there is no save=.
            Error: the disk is full, or refuses.

        Example:
            teratron.Checkpoint(trainer.save()).iteration
        """
        if folder is None:
            folder = self._engine.save()
        else:
            self._engine.save_to(folder := os.fsdecode(folder))
        for callback in self.callbacks:
            callback.on_save(self, folder)
        return folder

    def parameters(self):
        """This rank's parameters: a list of (name, tensor). The tensors are views without gradient: writing to one changes
        the model's weight, not the optimizer's master copy of it (load_state_dict() changes both).

        Example:
            norm = sum(p.float().pow(2).sum() for _, p in trainer.parameters())
        """
        return self._engine.parameters()

    def state_dict(self, format="hf"):
        """The model's whole weights, one after another, on every rank: never more than one copy of a tensor.

        Args:
            format: "hf": names and shapes of Hugging Face's model; "teratron": those of checkpoints.

        Returns:
            An iterator of (name, tensor). All ranks must read it to its end.

        Raises:
            CheckpointError: no model of Hugging Face has these settings.

        Example:
            model.load_state_dict(dict(trainer.state_dict()), strict=False)
        """
        if format not in ("hf", "teratron"):
            raise ValueError(f"format is '{format}': use 'hf' or 'teratron'")
        return hf_state(self._engine) if format == "hf" else teratron_state(self._engine)

    def load_state_dict(self, state, format="hf"):
        """Takes whole weights, the same on every rank: a dict, or pairs of (name, tensor).

        Args:
            state: every tensor of state_dict(format); of a generator one tensor is held at a time for "teratron".
            format: as for state_dict().

        Raises:
            KeyError: names that are missing, or for "teratron" that the model does not have; for "hf" others are ignored, such
                as those of tied weights. The weights are then changed in part.
            DataError: another shape.

        Example:
            trainer.load_state_dict(hf_model.state_dict())
        """
        assigned(self._engine, state, format)

    # ---- Data-parallel ranks ----

    def gather(self, tensor):
        """[n, ...] of each data-parallel rank -> [dp * n, ...] on all of them; a number counts as [1].

        Example:
            trainer.gather(predictions)
        """
        tensor = torch.as_tensor(tensor)
        return self._engine.gather(tensor.reshape(1) if tensor.dim() == 0 else tensor)

    def average(self, tensor):
        """The mean of a tensor over the data-parallel (and context-parallel) ranks.

        Example:
            trainer.average(torch.tensor(accuracy))
        """
        return self._engine.average(torch.as_tensor(tensor))


def _plain(prompt):
    return prompt if isinstance(prompt, str) else [int(id) for id in prompt]
