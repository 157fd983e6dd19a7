"""Datasets of the settings."""
from .._errors import ConfigError
from . import _state


class EngineSplit:
    """Stands for a split of the settings' data, which the engine reads.

    Example:
        train, valid, test = build_train_valid_test_datasets(args.data_path, args.data_impl, args.split, counts, ...)
    """

    def __init__(self, split, samples):
        self.split, self.samples = split, samples

    def __len__(self):
        return int(self.samples)


# Arguments of Megatron-LM's builders that are settings.
_SETTINGS = {"data_prefix": "data_path", "splits_string": "split", "train_data_prefix": "train_data_path",
             "valid_data_prefix": "valid_data_path", "test_data_prefix": "test_data_path", "masked_lm_prob": "mask_prob",
             "short_seq_prob": "short_seq_prob", "seed": "seed", "binary_head": "bert_binary_head",
             "max_seq_length_dec": "decoder_seq_length"}


def build_train_valid_test_datasets(data_prefix=None, data_impl=None, splits_string=None, train_valid_test_num_samples=(0, 0, 0),
                                    *lengths, **given):
    """The settings' datasets: of GPT, BERT or T5, as the model is.

    Args:
        data_prefix, splits_string, seq_length or max_seq_length, masked_lm_prob, short_seq_prob, seed, binary_head...: as
            Megatron-LM's; they must be the settings', as the engine reads by these. data_impl, skip_warmup have no effect.
        train_valid_test_num_samples: three numbers, for len().

    Returns:
        Three datasets for pretrain().

    Raises:
        ConfigError: a value is not the setting's.

    Example:
        build_train_valid_test_datasets(data_prefix=args.data_path, splits_string=args.split, ...)
    """
    args = _state.required("args")
    given = {"data_prefix": data_prefix, "splits_string": splits_string, **given}
    for name in ("seq_length", "max_seq_length"):
        if given.get(name) is not None:
            _require(name, given[name], "seq_length", args.seq_length or args.encoder_seq_length)
    for name, setting in _SETTINGS.items():
        if given.get(name) is not None:
            _require(name, given[name], setting, getattr(args, setting, given[name]))
    counts = [*train_valid_test_num_samples, 0, 0, 0][:3]
    return tuple(EngineSplit(split, count) for split, count in zip(("train", "valid", "test"), counts))


def _require(name, value, setting, is_set):
    same = list(value) == list(is_set) if isinstance(value, (list, tuple)) and is_set else value == is_set
    if not same:
        problem = (f"{name} = {value!r} is not the setting {setting} = {is_set!r}", "build_train_valid_test_datasets()",
                   f"Give --{setting.replace('_', '-')}")
        raise ConfigError(f"{problem[1]}: {problem[0]}. {problem[2]}", [problem])
