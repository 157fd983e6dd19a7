"""The settings of sys.argv, for the family of the model that a script trains."""
import argparse
import os
import sys
from argparse import Namespace

from .._config import Config, flags_of
from .._errors import ConfigError

_FAMILIES = ("gpt", "bert", "t5")
# Of Megatron-LM's arguments that are not settings here.
_CONSTANTS = {"data_impl": "mmap", "mmap_warmup": False, "DDP_impl": "local", "curr_iteration": 0}


class Command:
    """A command line: the script's own arguments, and the flags of the engine.

    Args:
        extra_args_provider: f(parser) -> parser, of argparse. args_defaults: settings by name, where the command line has
            none. argv: None: sys.argv. world_size: ranks; None: those that the environment names.
    """

    def __init__(self, extra_args_provider=None, args_defaults=None, argv=None, world_size=None):
        self.world_size = world_size
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        if extra_args_provider is not None:
            parser = extra_args_provider(parser)
        self.extra, self.flags = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
        self.defaults = {name: value for name, value in (args_defaults or {}).items() if not self._is_given(name)}

    def _is_given(self, name):
        flag = "--" + name.replace("_", "-")
        return any(text.replace("_", "-").split("=")[0] == flag for text in self.flags if text.startswith("--"))

    def config(self, family, **settings):
        """ConfigError with all problems."""
        return Config([*flags_of(self.defaults), *self.flags], program=family, world_size=self.world_size, **settings)

    def first_config(self):
        """The settings for a family whose settings they can be; the error of the first if there is none."""
        errors = []
        for family in _FAMILIES:
            try:
                return self.config(family)
            except ConfigError as error:
                errors.append(error)
        raise min(errors, key=lambda error: len(error.problems))

    def namespace(self, config):
        """The settings as get_args() gives them."""
        values = {**_CONSTANTS, **config.to_dict(), **vars(self.extra)}
        values.update(rank=int(os.environ.get("RANK", 0)), local_rank=int(os.environ.get("LOCAL_RANK", 0)),
                      world_size=config.world_size, iteration=0, consumed_train_samples=0, consumed_valid_samples=0,
                      model_type_name=config.program)
        return Namespace(**values)
