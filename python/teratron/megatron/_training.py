"""pretrain(), and what its callbacks ask for."""
import torch

from .._callback import Callback
from .._closures import ClosureStep, ModelCall
from .._columns import MegatronSamples
from .._errors import ConfigError
from .._ranks import Mesh, World
from .._trainer import Trainer
from ..accelerate._groups import set_trainer
from . import _state
from ._arguments import Command
from ._datasets import EngineSplit
from ._models import EngineModel
from ._timers import Timers

_NOT_BUILT = ("process_non_loss_data_func", "non_loss_data_func", "get_embedding_ranks", "get_position_embedding_ranks", "store",
              "inprocess_call_wrapper")


# ---- What callbacks ask for ----

def get_args():
    """The settings by Megatron-LM's names, a Namespace, with the arguments of extra_args_provider.

    Example:
        args = get_args(); args.seq_length
    """
    return _state.required("args")


def get_tokenizer():
    """The settings' Tokenizer: vocab_size, eod, encode() and decode(), also as tokenize() and detokenize().

    Example:
        get_tokenizer().eod
    """
    return _state.required("tokenizer")


def get_timers():
    """timers(name).start(), .stop().

    Example:
        timers = get_timers()
        timers("batch-generator", log_level=2).start()
    """
    return _state.required("timers")


def get_num_microbatches():
    """Micro-batches of a step of a rank."""
    trainer = _state.value("trainer")
    return trainer.micro_batches if trainer is not None else get_args().num_micro_batches


def get_tensorboard_writer():
    """None: the engine writes to --tensorboard-dir itself."""
    return None


def print_rank_0(*values, **options):
    """print() on rank 0, at once."""
    if not _state.value("silent") and (_state.value("rank") or 0) == 0:
        print(*values, flush=True, **options)


def print_rank_last(*values, **options):
    """print() on the last rank, at once."""
    world = _state.value("world")
    if not _state.value("silent") and (world is None or world.rank == world.size - 1):
        print(*values, flush=True, **options)


# ---- Start ----

def _start(command, config, world=None):
    """Settings, ranks and groups of this thread."""
    world = world or _state.value("world") or World.join(config)
    args = command.namespace(config)
    args.rank = world.rank
    mesh = _state.value("mesh")
    sizes = dict(tp=config.tensor_model_parallel_size, pp=config.pipeline_model_parallel_size,
                 cp=config.context_parallel_size, ep=config.expert_model_parallel_size)
    if mesh is None:
        mesh = Mesh(world, **sizes)
    _state.remember(command=command, config=config, args=args, world=world, rank=world.rank, mesh=mesh,
                    timers=_state.value("timers") or Timers(), tokenizer=_tokenizer(config))


def _tokenizer(config):
    from .._files import Tokenizer
    tokenizer = Tokenizer._of(config._settings.tokenizer())
    tokenizer.tokenize, tokenizer.detokenize = tokenizer.encode, tokenizer.decode
    return tokenizer


def initialize_megatron(extra_args_provider=None, args_defaults=None, ignore_unknown_args=False, allow_no_cuda=False, *,
                        argv=None, world=None, **_):
    """Reads the settings of sys.argv and joins the job: then get_args(), mpu and the rest have values. pretrain() does it by
    itself.

    Args:
        extra_args_provider: f(parser) -> parser, which adds the script's own arguments. args_defaults: settings by name where
            sys.argv has none. argv, world: in place of sys.argv and of the process's ranks. Others have no effect.

    Raises:
        ConfigError: with all problems.

    Example:
        initialize_megatron(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
    """
    command = Command(extra_args_provider, args_defaults, argv, world.size if world is not None else None)
    _start(command, command.first_config(), world)


def _model(command, model_provider, config):
    """The model that the provider returns, and the settings for it."""
    def provided(quiet):
        _state.remember(silent=quiet)
        try:
            model = model_provider(pre_process=True, post_process=True)
        finally:
            _state.remember(silent=False)
        if not isinstance(model, EngineModel):
            raise TypeError(f"model_provider returned a {type(model).__name__}; return GPTModel, BertModel or T5Model of "
                            "teratron.megatron.model; teratron.Trainer(model=) trains others")
        return model

    model = provided(quiet=True)
    if model.family != config.program:
        config = command.config(model.family)
        _start(command, config)
        model = provided(quiet=True)
    changed = {name: value for name, value in model.settings().items() if getattr(config, name) != value}
    if changed:
        config = config.replace(**changed)
        _start(command, config)
    return provided(quiet=False), config


# ---- Training ----

class _Step(ClosureStep):
    """forward_step(data_iterator, model) as the engine calls it."""

    checked = 2  # micro-batches whose tokens are compared with those that forward_step() gives to the model

    def __init__(self, function, trainer):
        super().__init__(trainer)
        self._function = function

    def model_call(self, model, batch):
        call = ModelCall(model, self.family, batch, self._returns_logits, checks=self.checked > 0)
        self.checked -= 1
        return call

    def closure(self, batch, model):
        set_trainer(self.trainer)
        return self._function(iter([self.item(batch)]), model)


class _StepOf:
    """A train step of the function, made for a Trainer."""

    def __init__(self, function):
        self._function = function

    def adapted_for(self, trainer, kwargs):
        return _Step(self._function, trainer)


class _Counters(Callback):
    """Keeps the counters among the settings."""

    def on_step(self, trainer, result):
        args = get_args()
        args.iteration = args.curr_iteration = result.iteration
        args.consumed_train_samples = result.consumed_samples


def _sample_counts(config):
    """Samples that training, evaluations and test read, as Megatron-LM counts them."""
    batch, evaluations = config.global_batch_size, config.eval_iters or 0
    train = config.train_samples or (config.train_iters or 0) * batch
    steps = config.train_iters or train // batch
    interval = config.eval_interval or 0
    times = steps // interval + 1 if interval else 1
    return [train, times * evaluations * batch, evaluations * batch]


def _datasets(provider, config):
    """What Trainer(dataset=) takes; None: the settings' data."""
    made = [*provider(_sample_counts(config)), None, None, None][:3]
    if any(isinstance(dataset, EngineSplit) for dataset in made):
        return None
    eod = get_tokenizer().eod
    return {split: MegatronSamples(dataset, config, eod) for split, dataset in zip(("train", "valid", "test"), made) if dataset is not None}


def pretrain(train_valid_test_dataset_provider, model_provider, model_type, forward_step_func, process_non_loss_data_func=None,
             extra_args_provider=None, args_defaults=None, *, argv=None, world=None, **others):
    """Trains as `teratron pretrain` does, with a script's model, data and loss.

    Args:
        train_valid_test_dataset_provider: f([train, valid, test] numbers of samples) -> three datasets, called on every rank:
            those of build_train_valid_test_datasets(), which the engine reads, or objects with len() and [i] -> dict by
            Megatron-LM's names ("text"...); None: no such split.
        model_provider: f(pre_process, post_process) -> GPTModel, BertModel or T5Model.
        model_type: a ModelType.
        forward_step_func: f(data_iterator, model) -> (output, closure); closure(output) -> (loss, {name: loss}) or (sum,
            number of tokens, {name: [sum, count]}). Called on the last pipeline stage, for each micro-batch.
        extra_args_provider, args_defaults: as of initialize_megatron().
        argv, world: in place of sys.argv and of the process's ranks.

    Returns:
        The Trainer, closed.

    Raises:
        ConfigError: settings that do not fit, or an argument that is not built (process_non_loss_data_func...).
        ValueError: forward_step_func gives the model other tokens than the data iterator gave.

    Example:
        pretrain(datasets_provider, model_provider, ModelType.encoder_or_decoder, forward_step,
                 args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
    """
    others["process_non_loss_data_func"] = process_non_loss_data_func
    unknown = set(others) - set(_NOT_BUILT)
    if unknown:
        raise TypeError(f"pretrain() has no argument {', '.join(sorted(unknown))}")
    used = [(f"{name} is not built", "pretrain()", "Leave it out") for name, value in others.items() if value is not None]
    if used:
        raise ConfigError("; ".join(f"{where}: {what}. {fix}" for what, where, fix in used), used)
    _state.forget()
    initialize_megatron(extra_args_provider, args_defaults, argv=argv, world=world)
    _, config = _model(_state.value("command"), model_provider, _state.value("config"))
    datasets = _datasets(train_valid_test_dataset_provider, config)
    with Trainer(config, train_step=_StepOf(forward_step_func), dataset=datasets, callbacks=[_Counters()],
                 world=_state.value("world")) as trainer:
        _state.remember(trainer=trainer)
        set_trainer(trainer)
        trainer.train()
    return trainer


def average_losses_across_data_parallel_group(losses):
    """The means of losses over the data-parallel ranks: a list of n tensors of one element -> [n], detached.

    Example:
        averaged = average_losses_across_data_parallel_group([loss])
    """
    values = torch.cat([loss.detach().clone().reshape(1) for loss in losses])
    group = _state.required("mesh").group("dp")
    return group.all_reduce(values) / group.size
