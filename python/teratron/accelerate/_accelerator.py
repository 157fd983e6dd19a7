"""Accelerator, as far as a training with Megatron-LM uses it."""
import contextlib
import enum
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from .._config import Config
from .._load import engine
from .._steps import ParamGroup
from .._trainer import Trainer
from ._data import Loader, MegatronLMDummyDataLoader
from ._engine import MegatronEngine, MegatronLMDummyScheduler, MegatronLMOptimizerWrapper, MegatronLMSchedulerWrapper
from ._groups import gather_across_data_parallel_groups, set_trainer
from ._plugin import MegatronLMPlugin
from ._train_steps import EngineTrainStep, made, train_step_args

_PROGRAMS = {"bert": "bert", "megatron-bert": "bert", "t5": "t5", "mt5": "t5"}
_PRETRAINING = ("maskedlm", "pretraining")  # in the names of BERT's classes


class DistributedType(str, enum.Enum):
    """How ranks train together; here always MEGATRON_LM.

    Example:
        if accelerator.distributed_type == DistributedType.MEGATRON_LM: ...
    """

    NO = "NO"
    MULTI_GPU = "MULTI_GPU"
    MEGATRON_LM = "MEGATRON_LM"


class Accelerator:
    """Prepares a model, an optimizer, a schedule and loaders for Teratron's engine; the flow of Accelerate's scripts.

    Args:
        megatron_lm_plugin: a MegatronLMPlugin; None: one of the environment.
        mixed_precision: "no", "fp16" or "bf16". cpu: trains on the CPU.
        gradient_accumulation_steps: must be 1: micro-batches are the plugin's num_micro_batches.
        world: a World of run_ranks(); None: the process's.

    Example:
        accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin(tp_degree=2))
        model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss); optimizer.step(); scheduler.step(); optimizer.zero_grad()
        accelerator.save_state("run")
    """

    def __init__(self, megatron_lm_plugin=None, mixed_precision=None, cpu=False, gradient_accumulation_steps=1, world=None, **others):
        if gradient_accumulation_steps != 1:
            raise ValueError("gradient_accumulation_steps must be 1: set num_micro_batches of MegatronLMPlugin")
        self.state = SimpleNamespace(megatron_lm_plugin=megatron_lm_plugin or MegatronLMPlugin(),
                                     distributed_type=DistributedType.MEGATRON_LM, mixed_precision=mixed_precision or "no")
        self.gradient_accumulation_steps = 1
        self.sync_gradients = True
        self._cpu, self._world, self._engine, self._others = cpu, world, None, others

    # ---- Ranks ----

    @property
    def distributed_type(self):
        """DistributedType.MEGATRON_LM."""
        return self.state.distributed_type

    @property
    def num_processes(self):
        """The number of ranks."""
        return self._world.size if self._world is not None else engine.launched_ranks()

    @property
    def process_index(self):
        """This rank's number."""
        return self._world.rank if self._world is not None else engine.launched_rank()

    @property
    def is_main_process(self):
        """True on the last rank, which has the losses."""
        return self.process_index == self.num_processes - 1

    is_local_main_process = is_main_process
    is_last_process = is_main_process

    @property
    def device(self):
        """A torch.device: the model's; before prepare() where it will be."""
        return torch.device("cpu" if self._cpu or not torch.cuda.is_available() else "cuda") if self._engine is None else self.trainer.device

    @property
    def trainer(self):
        """The teratron.Trainer of prepare()."""
        if self._engine is None:
            raise RuntimeError("call prepare() first")
        return self._engine.trainer

    def print(self, *values, **options):
        """print() on the main process."""
        if self.is_main_process:
            print(*values, **options)

    def wait_for_everyone(self):
        """Waits for all ranks."""
        if self._engine is not None:
            self.trainer.mesh.group().barrier()

    # ---- Training ----

    def prepare(self, *objects):
        """Makes the training that the objects describe.

        Args:
            *objects: a model of transformers, whose configuration is taken and whose weights are not; a torch optimizer (Adam or
                SGD), MegatronLMDummyScheduler, and DataLoaders or MegatronLMDummyDataLoader three times. A DataLoader gives
                input_ids [B, S] (GPT), with attention_mask, labels, token_type_ids and next_sentence_label (BERT), with
                attention_mask, labels and perhaps decoder_input_ids (T5).

        Returns:
            What takes their places, in the same order.

        Raises:
            ValueError: no loader, another schedule or optimizer. ConfigError: settings that do not fit.
        """
        models = [thing for thing in objects if isinstance(thing, torch.nn.Module)]
        if len(models) != 1:
            raise AssertionError(f"prepare() takes one model, not {len(models)}")
        loaders = [thing for thing in objects if isinstance(thing, (torch.utils.data.DataLoader, MegatronLMDummyDataLoader))]
        if not loaders:
            raise ValueError("prepare() needs a DataLoader or MegatronLMDummyDataLoader: it says the size of a batch")
        optimizer = next((thing for thing in objects if isinstance(thing, torch.optim.Optimizer)), None)
        scheduler = next((thing for thing in objects if isinstance(thing, MegatronLMDummyScheduler)), None)
        if any(isinstance(thing, torch.optim.lr_scheduler.LRScheduler) for thing in objects):
            raise ValueError("the schedule must be a MegatronLMDummyScheduler")
        self._make(models[0], optimizer, scheduler, loaders)
        splits = iter(("train", "valid", "test"))
        return tuple(self._prepared(thing, splits) for thing in objects)

    def _make(self, model, optimizer, scheduler, loaders):
        plugin = self.state.megatron_lm_plugin
        dummy = next((loader for loader in loaders if isinstance(loader, MegatronLMDummyDataLoader)), None)
        ranks = self.num_processes
        plugin.data_parallel_size = ranks // (plugin.tp_degree * plugin.pp_degree * (plugin.context_parallel_size or 1))
        if dummy is not None:
            plugin.megatron_dataset_flag = True
            plugin.micro_batch_size = dummy.dataset_args["micro_batch_size"]
        else:
            choose = min if plugin.is_train_batch_min else max
            plugin.micro_batch_size = choose(loader.batch_size for loader in loaders)
        plugin.global_batch_size = plugin.data_parallel_size * plugin.micro_batch_size * plugin.num_micro_batches
        fields = {**self._data_settings(model, dummy, loaders), **self._optimizer_settings(optimizer), **self._schedule_settings(scheduler),
                  "micro_batch_size": plugin.micro_batch_size, "global_batch_size": plugin.global_batch_size}
        if self.state.mixed_precision != "no":
            fields[self.state.mixed_precision] = True
        if self._cpu:
            fields["device"] = "cpu"
        fields = {**fields, **{name: value for name, value in plugin.settings().items()}}
        with tempfile.TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            config = Config(program=_program(model), world_size=ranks, hf_config=str(Path(folder) / "config.json"), **fields)
            trainer = Trainer(config, train_step=self._train_step(plugin), dataset=None if dummy else {},
                              param_groups=self._param_groups(plugin, config), world=self._world)
        set_trainer(trainer)
        self._engine = MegatronEngine(trainer, plugin)

    def _data_settings(self, model, dummy, loaders):
        program = _program(model)
        fields = dict(dummy.dataset_args) if dummy is not None else self._loader_settings(model, program, loaders[0])
        given = {**fields, **(self.state.megatron_lm_plugin.other_megatron_args or {})}
        return {**self._tokenizer_settings(program, getattr(model.config, "vocab_size", None), given), **fields}

    @staticmethod
    def _loader_settings(model, program, loader):
        first = next(iter(loader))
        if "input_ids" not in first:
            raise ValueError(f"a DataLoader must give input_ids [B, S], and this one gives {', '.join(first)}")
        length = first["input_ids"].shape[1]
        if program == "t5":
            return dict(encoder_seq_length=length, decoder_seq_length=first["labels"].shape[1], eval_iters=1,
                        max_position_embeddings=max(length, first["labels"].shape[1]))
        fields = dict(seq_length=length, eval_iters=1)
        if program == "bert":  # any number of tokens may be masked
            fields.update(mask_prob=1.0, bert_binary_head="next_sentence_label" in first)
        return fields

    @staticmethod
    def _tokenizer_settings(program, vocabulary, given):
        """The tokenizer that files are for; without files ids are all there is, and the last one ends a document."""
        if given.get("tokenizer_type"):
            return {}
        if given.get("vocab_file"):
            return {"tokenizer_type": "GPT2BPETokenizer" if given.get("merge_file") else "BertWordPieceLowerCase"}
        if given.get("tokenizer_model"):
            return {"tokenizer_type": "HuggingFaceTokenizer"}
        return {"tokenizer_type": "NullTokenizer", "vocab_size": vocabulary - 1} if vocabulary else {}

    @staticmethod
    def _optimizer_settings(optimizer):
        if optimizer is None:
            return {}
        defaults, name = optimizer.defaults, type(optimizer).__name__.lower()
        fields = {"lr": float(defaults["lr"]), "weight_decay": defaults.get("weight_decay", 0.0)}
        if "adam" in name:
            fields.update(optimizer="adam", adam_beta1=defaults["betas"][0], adam_beta2=defaults["betas"][1], adam_eps=defaults["eps"])
        elif "sgd" in name:
            fields.update(optimizer="sgd", sgd_momentum=defaults["momentum"])
        else:
            raise ValueError(f"{type(optimizer).__name__} is neither Adam nor SGD")
        return fields

    def _schedule_settings(self, scheduler):
        plugin = self.state.megatron_lm_plugin
        if plugin.train_iters or plugin.train_samples:
            return {}
        if scheduler is None or not scheduler.total_num_steps:
            raise ValueError("the number of steps is not known: give MegatronLMDummyScheduler total_num_steps, or the plugin train_iters")
        fields = {"train_iters": max(1, scheduler.total_num_steps // plugin.data_parallel_size)}
        warmup = scheduler.warmup_num_steps // plugin.data_parallel_size
        if warmup and not (plugin.lr_warmup_iters or plugin.lr_warmup_samples or plugin.lr_warmup_fraction):
            fields["lr_warmup_iters"] = warmup
        return fields

    def _train_step(self, plugin):
        accelerator = self

        class Step:
            """The plugin's class, or that of the model's family, adapted to the engine."""

            @staticmethod
            def adapted_for(trainer, _):
                args = train_step_args(trainer)
                args.megatron_dataset_flag = plugin.megatron_dataset_flag
                return EngineTrainStep(made(plugin.custom_train_step_class or _default_step(trainer.config.program), args,
                                            plugin.custom_train_step_kwargs or {}, accelerator), trainer)

        custom = (plugin.custom_train_step_class, plugin.custom_get_batch_function, plugin.custom_loss_function)
        return Step if any(custom) else None

    @staticmethod
    def _param_groups(plugin, config):
        if plugin.no_wd_decay_cond is None and plugin.scale_lr_cond is None:
            return None

        def groups(name, shape):
            parameter = SimpleNamespace(shape=torch.Size(shape), ndim=len(shape))
            decays = len(shape) > 1 and not name.endswith(".bias")
            if plugin.no_wd_decay_cond is not None:
                decays = not plugin.no_wd_decay_cond(name, parameter)
            scaled = plugin.scale_lr_cond is not None and plugin.scale_lr_cond(name, parameter)
            return ParamGroup(weight_decay=decays, lr_mult=plugin.lr_mult if scaled else 1.0)

        return groups

    def _prepared(self, thing, splits):
        trainer = self.trainer
        if isinstance(thing, torch.nn.Module):
            return self._engine
        if isinstance(thing, torch.optim.Optimizer):
            return MegatronLMOptimizerWrapper(self._engine, thing)
        if isinstance(thing, MegatronLMDummyScheduler):
            return MegatronLMSchedulerWrapper(self._engine, thing)
        if isinstance(thing, MegatronLMDummyDataLoader):
            return trainer.batches(next(splits))
        if isinstance(thing, torch.utils.data.DataLoader):
            plugin = self.state.megatron_lm_plugin
            return Loader(thing, plugin.micro_batch_size * plugin.num_micro_batches, trainer.mesh.group("dp"), trainer.config.seed)
        return thing

    def backward(self, loss, **_):
        """Nothing: the model's call has computed the gradients and stepped."""

    @contextlib.contextmanager
    def accumulate(self, *models):
        """Nothing: a step accumulates num_micro_batches by itself."""
        yield

    def clip_grad_norm_(self, *_, **__):
        """Nothing: the plugin's gradient_clipping clips."""

    def unwrap_model(self, model, *_, **__):
        """The prepared model."""
        return model

    def gather(self, tensor):
        """Tensors of the data-parallel ranks, concatenated along dimension 0."""
        return gather_across_data_parallel_groups(tensor)

    gather_for_metrics = gather

    def save_state(self, output_dir):
        """Weights, optimizer, schedule and counters, as a checkpoint of Teratron in the folder. Collective."""
        self._engine.save_checkpoint(output_dir)

    def load_state(self, input_dir):
        """Goes on from save_state(), in any layout. Collective. CheckpointError if there is none."""
        self._engine.load_checkpoint(input_dir)

    def init_trackers(self, *_, **__):
        """Nothing: metrics go to tensorboard_dir, and to the program's files."""

    def log(self, *_, **__):
        """Nothing, as init_trackers()."""

    def end_training(self):
        """Frees the training."""
        if self._engine is not None:
            self.trainer.close()


def _program(model):
    """The family of models. ValueError for a BERT that classifies."""
    program = _PROGRAMS.get(model.config.model_type, "gpt")
    name = type(model).__name__.lower()
    if program == "bert" and "for" in name and not any(part in name for part in _PRETRAINING):
        raise ValueError(f"{type(model).__name__} is not pretrained here: use a class for masked language models or pretraining; "
                         "`teratron finetune` trains classifiers")
    return program


def _default_step(program):
    from . import _train_steps as steps
    return {"gpt": steps.GPTTrainStep, "bert": steps.BertTrainStep, "t5": steps.T5TrainStep}[program]
