"""What the engine raises. Other exceptions are those of hooks and of torch, as they were raised."""


class Error(RuntimeError):
    """A failure that the engine explains: of the environment (disk, network, GPU), or one of its subclasses.

    Attributes:
        exit_code: what the program `teratron` would exit with (5: start the job again).
        problems: tuple of (what, where, fix), one for each thing that is wrong; empty for failures of the environment.

    Example:
        try:
            trainer.step()
        except teratron.Error as error:
            sys.exit(error.exit_code)
    """

    exit_code = 5

    def __init__(self, text="", problems=(), exit_code=None):
        super().__init__(text)
        self.problems = tuple(problems)
        if exit_code is not None:
            self.exit_code = exit_code

    def __reduce__(self):
        return type(self), (str(self), self.problems, self.exit_code)


class ConfigError(Error):
    """Settings that are invalid or contradict each other; `problems` lists all of them.

    Example:
        try:
            teratron.Config(num_layers=2, hidden_size=64, num_attention_heads=5)
        except teratron.ConfigError as error:
            for what, where, fix in error.problems: print(what, where, fix)
    """

    exit_code = 2


class DataError(Error):
    """A dataset, text or tokenizer that is invalid, or a sample that raised; the sample is named.

    Example:
        except teratron.DataError as error: print(error.problems[0])
    """

    exit_code = 3


class CheckpointError(Error):
    """A checkpoint that is missing, damaged, or of another model.

    Example:
        except teratron.CheckpointError as error: print(error)
    """

    exit_code = 4


class NumericsError(Error):
    """NaN or Inf in a training that is set to stop there.

    Example:
        except teratron.NumericsError: trainer.load()
    """

    exit_code = 6


class OutOfMemory(Error):
    """The memory of the device or of the host is used up.

    Example:
        except teratron.OutOfMemory: micro_batch_size //= 2
    """

    exit_code = 7
