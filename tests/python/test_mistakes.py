"""Wrong types, shapes and values at the door: one exception that says what is wrong."""
import copy
import pickle

import pytest
import teratron
import torch
from small import C


def made(**more):
    return lambda: teratron.Trainer(C(), **more)


class NoHook:
    def losses(self, losses, batch):
        return losses.sum(), 1


class OneName(teratron.TrainStep):
    metrics = "half"


@pytest.mark.parametrize("call, error, text", [
    (made(dataset=[1, 2]), TypeError, "dict of splits"),
    (made(dataset={"validation": [1]}), ValueError, "'validation'"),
    (made(dataset={"train": 5}), TypeError, "__len__"),
    (made(train_step=5), TypeError, "derive from"),
    (made(train_step=NoHook), TypeError, "derive from"),
    (made(train_step=OneName), TypeError, "tuple of names"),
    (made(train_step_kwargs={"a": 1}), TypeError, "no train_step"),
    (made(callbacks=[teratron.Callback]), TypeError, "teratron.Callback"),
    (made(callbacks=[5]), TypeError, "teratron.Callback"),
    (made(world=3), TypeError, "teratron.World"),
    (made(param_groups=lambda name, shape: {"lr_mult": 2}), TypeError, "ParamGroup"),
    (lambda: teratron.Trainer({"num_layers": 2}), TypeError, "teratron.Config"),
    (lambda: teratron.run_ranks(0, print), ValueError, "at least 1"),
    (lambda: teratron.run_ranks(2, 5), ValueError, "a function"),
    (lambda: teratron.generate("run", "1 2"), TypeError, "list of texts"),
])
def test_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


ONES = torch.ones(64, 4, dtype=torch.long)
ITEMS = [
    (5, TypeError, "columns by name"),
    (None, teratron.DataError, "given none"),
    ({"tokens": ONES}, teratron.DataError, "labels is missing"),
    ({1: ONES}, TypeError, "names of columns"),
    ({"tokens": ONES.t(), "labels": ONES}, teratron.DataError, "shape"),
    ({"tokens": ONES.float(), "labels": ONES}, teratron.DataError, "real numbers"),
    ({"tokens": ONES * 201, "labels": ONES}, teratron.DataError, "tokens has the id 201, and the vocabulary has 201"),
    ({"tokens": -ONES, "labels": ONES}, teratron.DataError, "id -1"),
    ({"tokens": ONES, "labels": ONES * -100}, teratron.DataError, "id -100.*loss_mask 0"),
    ({"tokens": ONES.to("meta"), "labels": ONES}, (RuntimeError, NotImplementedError), "^Cannot copy out of meta tensor; no data!$"),
]


@pytest.fixture(scope="module")
def trainer():
    with teratron.Trainer(C()) as trainer:
        yield trainer


@pytest.mark.parametrize("item, error, text", ITEMS)
def test_items(trainer, item, error, text):
    with pytest.raises(error, match=text):
        trainer.step(item)


def test_labels_without_a_loss_may_be_anything(trainer):
    labels = ONES.clone()
    labels[0] = -100
    trainer.step({"tokens": ONES, "labels": labels, "loss_mask": (labels >= 0).float()})


@pytest.mark.parametrize("call, error, text", [
    (lambda t: t.step(ONES, ONES), TypeError, "2 arguments"),
    (lambda t: t.evaluate("valid", 0), teratron.ConfigError, "at least 1"),
    (lambda t: t.generate("1 2"), TypeError, "list of texts"),
    (lambda t: t.save(5), TypeError, "PathLike"),
    (lambda t: t.mesh.group("tp").broadcast(torch.ones(2), 5), teratron.ConfigError, "group of 1"),
    (lambda t: t.mesh.group("tp").all_gather(torch.tensor(1.0)), ValueError, "dimension"),
    (lambda t: t.mesh.group("tp").all_reduce(torch.ones(2, device="meta")), TypeError, "dense"),
    (lambda t: t.mesh.group("tp").gather_from(torch.ones(2), 7), IndexError, "dimension 7"),
    (lambda t: next(t.batches()).replace(tokens=5), TypeError, "not a torch.Tensor"),
])
def test_methods(trainer, call, error, text):
    with pytest.raises(error, match=text):
        call(trainer)


@pytest.mark.parametrize("batch, error, text", [
    (lambda source: None, TypeError, "NoneType"),
    (lambda source: teratron.Batch({"tokens": ONES[:, :2], "labels": ONES[:, :2]}), ValueError, "source.next"),
    (lambda source: teratron.Batch(dict(source.next())), ValueError, "source.next"),
])
def test_batches_of_a_hook(batch, error, text):
    class Step(teratron.TrainStep):
        def get_batch(self, source):
            return batch(source)

    with teratron.Trainer(C(), train_step=Step) as trainer, pytest.raises(error, match=text):
        trainer.step()


@pytest.mark.parametrize("pair", [(1,), (1, 2, 3)])
def test_pairs_of_a_loss(pair):
    class Step(teratron.TrainStep):
        def forward_step(self, model, batch):
            return [pair], {}

    with teratron.Trainer(C(), train_step=Step) as trainer, pytest.raises(TypeError, match="values for a loss"):
        trainer.step()


@pytest.mark.parametrize("sample, text", [
    (5, "a int, not a dict"), ({1: [1] * 65}, "names of columns"), ({"text": [201] * 65}, "id 201"),
    ({"text": 5}, "IndexError: slice"), (None, "NoneType, not a dict"),
])
def test_samples(sample, text):
    class Data:
        def __len__(self):
            return 100

        def __getitem__(self, i):
            return sample

    with teratron.Trainer(C(mock_data=False), dataset={"train": Data()}) as trainer:
        with pytest.raises(teratron.DataError, match=text) as caught:
            trainer.step()
        assert r"\x0a" not in str(caught.value) and 'dataset["train"][0]' in str(caught.value)


def test_a_detached_model_is_an_error():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, hidden, batch):
            return (batch.tokens * self.weight.sum()).detach()

    with teratron.Trainer(C(), model=lambda stage: Layers()) as trainer:
        with pytest.raises(ValueError, match="depend on none"):
            trainer.step()
        with pytest.raises(RuntimeError, match="losses alone"):
            trainer.logits(next(trainer.batches()))


def test_settings_and_batches_can_be_copied(trainer):
    for copied in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        config = copied(trainer.config)
        assert config.to_dict() == trainer.config.to_dict() and config.world_size == 1
        batch = copied(next(trainer.batches()))
        assert batch.tokens.shape == (64, 4)


def test_weights_of_another_shape(trainer):
    state = dict(trainer.state_dict())
    name = next(iter(state))
    with pytest.raises(teratron.DataError, match="shape"):
        trainer.load_state_dict({**state, name: state[name][:5]})
    trainer.load_state_dict({name: value.numpy() for name, value in state.items()})
    with pytest.raises(KeyError, match="missing"):
        trainer.load_state_dict({})
