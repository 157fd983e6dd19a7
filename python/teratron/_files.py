"""Checkpoints, texts of saved models, tokenizers, indexed datasets."""
import json
import pathlib

import torch

from ._config import flags_of
from ._load import engine


class Checkpoint:
    """A checkpoint of Teratron, whatever layout wrote it: whole tensors by name.

    Args:
        folder: the folder save= of a training, or one of its iter_* folders.
        iteration: which; None: the newest.

    Attributes:
        path: its iter_* folder. iteration: steps of the training. config: dict of the settings. state: dict of counters.

    Raises:
        CheckpointError: there is none, or it is damaged.

    Example:
        checkpoint = teratron.Checkpoint("run")
        checkpoint["decoder.layers.1.mlp.linear_fc1.weight"]  # tensor [4 H, H]
    """

    def __init__(self, folder, iteration=None):
        self._file = engine.Checkpoint(str(folder), iteration)
        self.path = pathlib.Path(self._file.path)
        self.iteration = self._file.iteration
        self.config = json.loads(self._file.config)
        self.state = json.loads(self._file.state)

    def keys(self):
        """The names of all tensors, those of the optimizer too ("optimizer...")."""
        return self._file.names()

    def __iter__(self):
        return iter(self.keys())

    def __len__(self):
        return len(self.keys())

    def __contains__(self, name):
        return name in self.keys()

    def __getitem__(self, name):
        """The whole tensor, on the host. KeyError if there is none of this name."""
        self.shape(name)
        return self._file.read(name)

    def shape(self, name):
        """The sizes of a tensor, a tuple; nothing is read. KeyError."""
        try:
            return tuple(self._file.shape(name))
        except IndexError:
            raise KeyError(name) from None

    def verify(self):
        """Compares every byte with its hash.

        Returns:
            The number of bytes.

        Raises:
            CheckpointError: with all that is damaged.
        """
        return self._file.verify()


class LanguageModel:
    """A saved model that writes text, on this process alone.

    Args:
        checkpoint: a folder of Teratron or Megatron-LM, or one of Hugging Face (with config.json).
        **options: settings of `teratron generate` by name, for all calls: device="cpu", bf16=True, temperature=0.8.

    Raises:
        CheckpointError, ConfigError: as the command.

    Example:
        model = teratron.LanguageModel("run", device="cpu")
        model.generate(["Once upon"], max_new_tokens=20, top_p=0.9, seed=1)
    """

    def __init__(self, checkpoint, **options):
        folder = pathlib.Path(checkpoint)
        is_hf = (folder / "config.json").exists() and not (folder / "manifest.json").exists()
        self._options = options
        self._generator = engine.Generator(flags_of({"hf" if is_hf else "load": str(folder), **options}))
        self.iteration = self._generator.iteration
        self.config = json.loads(self._generator.json())

    def generate(self, prompts, **options):
        """Texts that go on from the prompts.

        Args:
            prompts: list of str.
            **options: as of the class, for this call: max_new_tokens, greedy, temperature, top_k, top_p, num_beams, seed...

        Returns:
            A list of str, each a prompt with its continuation, in order (with num_return_sequences several of each).

        Raises:
            ConfigError: an option that is invalid or unknown, or a prompt without tokens.
        """
        _check_prompts(prompts)
        return self._generator.generate(list(prompts), flags_of({**self._options, **options}))

    def logits(self, ids):
        """Logits of token ids.

        Args:
            ids: integers [B, S].

        Returns:
            float32 [B, S, V], without the padding of the vocabulary.

        Raises:
            DataError: ids outside of the vocabulary, or more than the model has positions.
        """
        return self._generator.logits(torch.as_tensor(ids))


def _check_prompts(prompts):
    if isinstance(prompts, str):
        raise TypeError("prompts is a text; give a list of texts, [prompt]")


def generate(checkpoint, prompts, **options):
    """Texts of a saved model: LanguageModel(checkpoint).generate(prompts), for one call.

    Args:
        checkpoint: a folder, as of LanguageModel. prompts: list of str. **options: settings of `teratron generate`.

    Returns:
        A list of str, each a prompt with its continuation, as `teratron generate --sample-output-file` writes them.

    Raises:
        CheckpointError, ConfigError: as the command.

    Example:
        teratron.generate("run", ["1 2 3"], max_new_tokens=5, greedy=True, device="cpu")
    """
    _check_prompts(prompts)
    loading = {name: options[name] for name in ("device", "bf16", "fp16", "ckpt_step") if name in options}
    return LanguageModel(checkpoint, **loading).generate(prompts, **options)


class Tokenizer:
    """Text to token ids and back.

    Args:
        type: as --tokenizer-type: "GPT2BPETokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer", "NullTokenizer"...
        **files: vocab_file, merge_file, tokenizer_model (a file or folder), vocab_size, vocab_extra_ids,
            include_special_tokens.

    Attributes:
        vocab_size: ids, added tokens included. eod, bos, eos, pad: ids, or None.

    Raises:
        ConfigError: an option is missing or unknown. DataError: a file is invalid.

    Example:
        tokenizer = teratron.Tokenizer("GPT2BPETokenizer", vocab_file="vocab.json", merge_file="merges.txt")
        tokenizer.decode(tokenizer.encode("Hello"))  # "Hello"
    """

    _options = {"vocab_file", "merge_file", "tokenizer_model", "vocab_size", "vocab_extra_ids", "include_special_tokens"}

    def __init__(self, type, **files):
        unknown = set(files) - self._options
        if unknown:
            raise TypeError(f"Tokenizer has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(self._options))}")
        self._tokenizer = engine.build_tokenizer(
            type, {name: str(value) if name.endswith(("file", "model")) else value for name, value in files.items()})

    @classmethod
    def _of(cls, tokenizer):
        made = cls.__new__(cls)
        made._tokenizer = tokenizer
        return made

    def encode(self, text):
        """The ids of a text, a list."""
        return self._tokenizer.encode(text)

    def decode(self, ids):
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(map(int, ids))).decode("utf-8", "replace")

    def __getattr__(self, name):
        if name in ("vocab_size", "eod", "bos", "eos", "pad"):
            return getattr(self._tokenizer, name)
        raise AttributeError(f"a Tokenizer has no '{name}'")


class IndexedDataset:
    """Megatron-LM's PREFIX.bin and PREFIX.idx: sequences of token ids.

    Args:
        prefix: with or without the ending.

    Attributes:
        sizes: list of the sequences' lengths. documents: list of the first sequence of each document, and the number of all.

    Raises:
        DataError: the files are missing or damaged. IndexError: no such sequence.

    Example:
        data = teratron.IndexedDataset("corpus_text_document")
        len(data), data[0]  # an int64 tensor
    """

    def __init__(self, prefix):
        self._data = engine.IndexedDataset(str(prefix))

    def __len__(self):
        return len(self._data)

    def __getitem__(self, i):
        return self._data[i]

    @property
    def sizes(self):
        return self._data.sizes

    @property
    def documents(self):
        return self._data.documents


class IndexedDatasetWriter:
    """Writes Megatron-LM's PREFIX.bin and PREFIX.idx; they are there after close(), or the end of `with`.

    Args:
        prefix: without ending.
        vocab_size: of the tokenizer: below 65500 ids take two bytes.

    Raises:
        DataError: an id does not fit.

    Example:
        with teratron.IndexedDatasetWriter("corpus", vocab_size=200) as writer:
            writer.add([1, 2, 3])
            writer.end_document()
    """

    def __init__(self, prefix, vocab_size=0):
        self._builder = engine.IndexedDatasetBuilder(str(prefix), vocab_size)

    def add(self, tokens):
        """Appends a sequence of ids to the current document."""
        self._open().add_sequence(list(map(int, tokens)))

    def end_document(self):
        """Ends the current document."""
        self._open().end_document()

    def _open(self):
        if self._builder is None:
            raise ValueError("the writer is closed")
        return self._builder

    def close(self):
        """Completes the files."""
        if self._builder is not None:
            self._builder.finalize()
            self._builder = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()


_SOURCES = {"teratron": "load", "hf": "from_hf", "megatron": "from_megatron"}
_TARGETS = {"teratron": "save", "hf": "to_hf", "megatron": "to_megatron"}


def convert(source, target, *, to, source_format=None, **options):
    """Converts a checkpoint, as `teratron ckpt convert`.

    Args:
        source, target: folders.
        to: "hf", "teratron" or "megatron": the format of the target.
        source_format: of the source, by these names; None: found by its files.
        **options: further flags of the command by name: dtype="bf16", max_shard_size="200MB".

    Raises:
        CheckpointError: the model cannot be expressed in the format. ConfigError: an option is wrong.

    Example:
        teratron.convert("run", "exported", to="hf")
    """
    if to not in _TARGETS:
        raise ValueError(f"to is '{to}': use 'hf', 'teratron' or 'megatron'")
    folder = pathlib.Path(source)
    if source_format is None:
        ours = (folder / "manifest.json").exists() or any(folder.glob("iter_*/manifest.json"))
        source_format = "teratron" if ours else "hf" if (folder / "config.json").exists() else "megatron"
    if source_format not in _SOURCES:
        raise ValueError(f"source_format is '{source_format}': use 'hf', 'teratron' or 'megatron'")
    engine.ckpt(["convert", *flags_of({_SOURCES[source_format]: str(folder), _TARGETS[to]: str(target), **options})])
