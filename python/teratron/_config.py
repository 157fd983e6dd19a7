"""Settings, and what a training with them needs."""
import json
import pathlib
import re

from ._errors import ConfigError
from ._load import engine

_FIELDS = {name: (is_boolean, off) for name, is_boolean, off in engine.fields()}


def flags_of(fields):
    """The flags that stand for keyword arguments: True is the flag alone, False and None are nothing, a list is
    several values. A boolean that is on by default is switched off by its own flag, such as add_position_embedding."""
    flags = []
    for name, value in fields.items():
        is_boolean, off = _FIELDS.get(name, (False, ""))
        if value is False and is_boolean and off:
            flags.append(off.split()[0])
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            flags += map(str, value)
        elif value is not True:
            flags.append(repr(value) if isinstance(value, float) else str(value))
    return flags


class Config:
    """The settings of a training: those of `teratron pretrain`, checked, with what follows from them.

    Args:
        flags: flags as on the command line, ["--num-layers", "2"].
        program: the family of models: "gpt", "bert" or "t5".
        world_size: ranks; None: those that the launcher's environment names, else 1.
        **fields: settings by Megatron-LM's names (docs/flags.md), `num_layers=2`. True is a flag without a value, False
            and None leave it out, a list gives several values. They win over `flags`.

    Every setting is an attribute, also those that follow from others: `config.ffn_hidden_size`. What a training needs
    besides its model, such as data, may be missing here; Trainer asks for it.

    Raises:
        ConfigError: with every problem, such as an unknown name, a value out of range, sizes that do not divide.

    Example:
        config = teratron.Config(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=64,
                                 max_position_embeddings=64, micro_batch_size=2, global_batch_size=4, train_iters=10,
                                 lr=1e-3, tokenizer_type="NullTokenizer", vocab_size=200, mock_data=True, device="cpu")
        config.num_microbatches  # 2
    """

    def __init__(self, flags=(), *, program="gpt", world_size=None, **fields):
        ranks = engine.launched_ranks() if world_size is None else world_size
        try:
            self._settings = engine.Settings(program, [*map(str, flags), *flags_of(fields)], ranks)
        except ConfigError as error:
            raise _by_names(error, fields) from None
        self._values = json.loads(self._settings.json())

    @classmethod
    def from_yaml(cls, path, *, program="gpt", world_size=None, **fields):
        """The settings in a file as --config-file takes it; `fields` win over it.

        Example:
            teratron.Config.from_yaml("run.yaml", train_iters=100)
        """
        return cls(["--config-file", str(pathlib.Path(path))], program=program, world_size=world_size, **fields)

    def __getattr__(self, name):
        values = self.__dict__.get("_values")
        if values is None or name not in values:
            raise AttributeError(f"'{name}' is not a setting")
        return values[name]

    def __reduce__(self):
        return _restored, (self.flags(), self.program, self.world_size)

    def __dir__(self):
        return [*super().__dir__(), *self._values]

    def __repr__(self):
        settings = self.__dict__.get("_settings")  # none if they had problems
        return f"Config({' '.join(settings.flags) if settings else ''})"

    @property
    def program(self):
        """The family of models, "gpt"."""
        return self._settings.family

    @property
    def world_size(self):
        """The number of ranks."""
        return self._settings.world_size

    @property
    def notices(self):
        """What the program would tell of these settings: those without effect, and defaults that were chosen."""
        return list(self._settings.notices)

    def flags(self):
        """The flags that were given, as `teratron pretrain` takes them."""
        return list(self._settings.flags)

    def to_dict(self):
        """All settings by name."""
        return dict(self._values)

    def replace(self, **fields):
        """The settings with some changed; they win over the earlier ones.

        Example:
            longer = config.replace(train_iters=1000)
        """
        return Config(self.flags(), program=self.program, world_size=self.world_size, **fields)


def _by_names(error, fields):
    """The error, with the names that were given, or should have been, in place of the flags that are unknown."""
    def named(text):
        return re.sub(r"--([a-z0-9-]+)", lambda found: found[1].replace("-", "_"), text.replace("--help", "docs/flags.md"))

    unknown = {"--" + name.replace("_", "-") for name in fields if name not in _FIELDS}
    problems = [tuple(map(named, problem)) if problem[1] in unknown else problem for problem in error.problems]
    lines = [f"{where}: {what}. {fix}" for what, where, fix in problems if (what, where, fix) not in error.problems]
    kept = [line for line in str(error).split("\n") if not any(line.startswith(f"{flag}: ") for flag in unknown)]
    return ConfigError("\n".join([*lines, *kept]), problems, error.exit_code) if lines else error


def _restored(flags, program, world_size):
    return Config(flags, program=program, world_size=world_size)


def plan(config, gpu_memory=None):
    """The memory of a rank of each pipeline stage, by arithmetic; nothing is allocated.

    Args:
        config: a Config with micro_batch_size; its world_size counts.
        gpu_memory: GiB of a GPU; then each row has "fits".

    Returns:
        A list with a dict for each stage: "stage", "parameters" (elements) and, in bytes, "weights", "gradients",
        "optimizer", "activations", "temporary", "host", "peak" (of torch's allocator), "on_gpu".

    Raises:
        ConfigError: if micro_batch_size is not set.

    Example:
        [stage["on_gpu"] / 2**30 for stage in teratron.plan(config)]
    """
    if config.micro_batch_size is None:
        problem = ("micro_batch_size is not set", "micro_batch_size", "Give Config the samples per forward pass")
        raise ConfigError(f"{problem[1]}: {problem[0]}. {problem[2]}", [problem])
    stages = config._settings.memory_of_stages()
    if gpu_memory is not None:
        for stage in stages:
            stage["fits"] = stage["on_gpu"] <= gpu_memory * 2**30
    return stages
