from ._callback import Callback as Callback
from ._config import Config as Config, plan as plan
from ._errors import (
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    DataError as DataError,
    Error as Error,
    NumericsError as NumericsError,
    OutOfMemory as OutOfMemory,
)
from ._files import (
    Checkpoint as Checkpoint,
    IndexedDataset as IndexedDataset,
    IndexedDatasetWriter as IndexedDatasetWriter,
    LanguageModel as LanguageModel,
    Tokenizer as Tokenizer,
    convert as convert,
    generate as generate,
)
from ._model import Stage as Stage
from ._ranks import Group as Group, Mesh as Mesh, World as World, run_ranks as run_ranks
from ._steps import Batch as Batch, ParamGroup as ParamGroup, StepResult as StepResult, TrainStep as TrainStep
from ._trainer import Trainer as Trainer

__all__: list[str]
__version__: str
