"""Datasets, tokenizers, callbacks and parameter groups in Python."""
import numpy
import pytest
import teratron
import torch
from small import SIZES, C, Same


class Numbers:
    """Sample i: tokens from i on; as tensors, arrays or lists."""

    def __init__(self, length=100, kinds=(torch.tensor, numpy.array, list)):
        self.length, self.kinds, self.asked = length, kinds, []

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.asked.append(i)
        make = self.kinds[i % len(self.kinds)]
        tokens = [(i + s) % 200 for s in range(65)]
        return {"tokens": make(tokens[:-1]), "labels": make(tokens[1:]), "loss_mask": make([float(s % 3 > 0) for s in range(64)])}


class Texts(Numbers):
    def __getitem__(self, i):
        return {"text": [(i + s) % 200 for s in range(65)]}


def trained(**arguments):
    """Trains without mock data; returns what a loss saw of the batches."""
    seen = []

    class Sees(Same):
        def loss(self, losses, batch):
            seen.append(batch)
            return super().loss(losses, batch)

    config = C(mock_data=False, train_iters=3, eval_iters=0)
    last = teratron.Trainer(config, train_step=Sees, **arguments).train()
    return seen, last


def test_samples_arrive_unchanged_and_a_callback_ends_the_training():
    class Stop(teratron.Callback):
        steps, ended = 0, False

        def on_step(self, trainer, result):
            Stop.steps += 1
            assert result.iteration == trainer.iteration == Stop.steps
            return Stop.steps < 2

        def on_end(self, trainer):
            Stop.ended = True

    seen, last = trained(dataset={"train": Numbers()}, callbacks=[Stop()])
    assert (Stop.steps, Stop.ended, last.iteration, len(seen)) == (2, True, 2, 4) or (Stop.steps == 2 and last.iteration <= 3)
    for batch, first in zip(seen, (0, 2, 4, 6)):
        for b in range(2):
            sample = Numbers(kinds=(torch.tensor,))[first + b]
            for name in ("tokens", "labels", "loss_mask"):
                assert torch.equal(batch[name][:, b], sample[name]), (name, first + b)


def test_texts_are_tokens_and_labels():
    seen, last = trained(dataset={"train": Texts()})
    assert last.iteration == 3
    assert seen[0].labels[0, 1] == 2 and seen[0].tokens[63, 0] == 63 and seen[0].loss_mask.min() == 1


def test_the_sample_that_fails_is_named():
    class Bad(Numbers):
        def __getitem__(self, i):
            if i == 5:
                raise KeyError("a hole")
            return super().__getitem__(i) if i != 7 else {"tokens": [1, 2]}

    config = C(mock_data=False, eval_iters=0)
    with teratron.Trainer(config, dataset={"train": Bad()}) as trainer:
        trainer.step()
        with pytest.raises(teratron.DataError, match=r'dataset\["train"\]\[5\].*a hole'):
            trainer.step()
    with teratron.Trainer(config, dataset={"train": Numbers(6)}) as trainer:
        trainer.step()
        with pytest.raises(teratron.DataError, match="train split ends"):
            trainer.step()
    with pytest.raises(TypeError, match="__len__"):
        teratron.Trainer(config, dataset={"train": iter([])})
    with teratron.Trainer(config, dataset={"train": Numbers()}) as trainer, pytest.raises(teratron.DataError, match="valid"):
        trainer.evaluate("valid", 1)


def test_evaluations_call_back():
    calls = []

    class Notes(teratron.Callback):
        def on_evaluate(self, trainer, result):
            calls.append(result.loss)

    with teratron.Trainer(C(), callbacks=[Notes()]) as trainer:
        assert [trainer.evaluate(iters=1).loss] == calls


def test_parameter_groups_choose():
    asked = {}

    def groups(name, shape):
        asked[name] = shape
        return teratron.ParamGroup(lr_mult=0.0) if name.endswith("word_embeddings.weight") else None

    with teratron.Trainer(C(weight_decay=0.0), param_groups=groups) as trainer:
        before = {name: tensor.clone() for name, tensor in trainer.parameters()}
        trainer.step()
        same = {name for name, tensor in trainer.parameters() if torch.equal(tensor, before[name])}
    assert same == {name for name in before if name.endswith("word_embeddings.weight")}
    assert set(asked) == set(before) and asked["decoder.layers.0.mlp.linear_fc1.weight"] == (256, 64)

    def fails(name, shape):
        raise ValueError("of the groups")

    with pytest.raises(ValueError, match="of the groups"):
        teratron.Trainer(C(), param_groups=fails)


def test_indexed_datasets(tmp_path):
    documents = [[[1, 2, 3], [4]], [[5, 6]]]
    with teratron.IndexedDatasetWriter(tmp_path / "corpus", vocab_size=200) as writer:
        for document in documents:
            for sequence in document:
                writer.add(sequence)
            writer.end_document()
    for name in ("corpus", "corpus.bin"):
        data = teratron.IndexedDataset(tmp_path / name)
        assert len(data) == 3 and data.sizes == [3, 1, 2] and data.documents == [0, 2, 3]
        assert [tokens.tolist() for tokens in data] == [[1, 2, 3], [4], [5, 6]]
        assert data[-1].tolist() == [5, 6] and data[0].dtype == torch.int64
    with pytest.raises(teratron.DataError):
        teratron.IndexedDataset(tmp_path / "nothing")
    with pytest.raises(teratron.DataError), teratron.IndexedDatasetWriter(tmp_path / "wide", vocab_size=200) as writer:
        writer.add([70000])


def test_tokenizers():
    tokenizer = teratron.Tokenizer("NullTokenizer", vocab_size=200)
    assert tokenizer.encode("1 2 3") == [1, 2, 3] and tokenizer.decode([1, 2]) == "1 2"
    assert tokenizer.vocab_size == 201 and tokenizer.eod == 200
    with teratron.Trainer(C()) as trainer:
        assert trainer.tokenizer.vocab_size == 201
    with pytest.raises(TypeError, match="vocab"):
        teratron.Tokenizer("NullTokenizer", vocabulary=3)
    with pytest.raises(teratron.ConfigError):
        teratron.Tokenizer("NoSuchTokenizer")


def test_train_is_the_command(tmp_path, capfd):
    config = C(run_dir=tmp_path, save=tmp_path / "save", train_iters=4, eval_iters=1, log_interval=1)
    last = teratron.Trainer(config).train()
    assert last.iteration == 4 and "lm loss" in last.losses
    assert "iteration        4/       4" in capfd.readouterr().out
    assert teratron.Checkpoint(tmp_path / "save").iteration == 4
    with teratron.Trainer(C(train_iters=4)) as trainer:
        assert [trainer.step().loss for _ in range(4)][-1] == last.loss
    assert SIZES["train_iters"] == 10
