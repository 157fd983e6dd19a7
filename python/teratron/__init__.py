"""Teratron: training of language models, and text from them, by the engine of the program `teratron`.

    import teratron

    config = teratron.Config(model_preset="gpt2", mock_data=True, train_iters=10, lr=1e-4,
                             micro_batch_size=1, global_batch_size=2, device="cpu")
    with teratron.Trainer(config) as trainer:
        while trainer.iteration < trainer.train_iters:
            print(trainer.step().loss)

Importing this package is quick: torch and the engine are loaded with the first name that is used.
"""
import os
import sys
import warnings

from ._version import __version__

_HOME = {
    "Batch": "_steps",
    "Callback": "_callback",
    "Checkpoint": "_files",
    "CheckpointError": "_errors",
    "Config": "_config",
    "ConfigError": "_errors",
    "DataError": "_errors",
    "Error": "_errors",
    "Group": "_ranks",
    "IndexedDataset": "_files",
    "IndexedDatasetWriter": "_files",
    "LanguageModel": "_files",
    "Mesh": "_ranks",
    "NumericsError": "_errors",
    "OutOfMemory": "_errors",
    "ParamGroup": "_steps",
    "Stage": "_model",
    "StepResult": "_steps",
    "Tokenizer": "_files",
    "Trainer": "_trainer",
    "TrainStep": "_steps",
    "World": "_ranks",
    "convert": "_files",
    "generate": "_files",
    "plan": "_config",
    "run_ranks": "_ranks",
}
__all__ = sorted(_HOME)


def _wait_passively():
    """OpenMP's threads wait without spinning, unless the user chose otherwise; libgomp reads it when torch loads it."""
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if "torch" in sys.modules:
        warnings.warn(
            "torch was imported before teratron, so its OpenMP threads spin while they wait: where cores are shared "
            "a step on the CPU takes many times as long. Import teratron first, or set OMP_WAIT_POLICY=PASSIVE.",
            stacklevel=3)


_wait_passively()


def __getattr__(name):
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'teratron' has no attribute '{name}'")
    import importlib
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
