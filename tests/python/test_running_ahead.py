"""The host a step ahead of the device, as with one rank on a GPU: here on the CPU, where it must be asked for."""
import pickle

import pytest
import teratron
from small import C, losses


@pytest.fixture(scope="module")
def expected():
    with teratron.Trainer(C()) as trainer:
        return losses(trainer, 5)


@pytest.fixture
def ahead():
    with teratron.Trainer(C()) as trainer:
        trainer._engine.run_ahead(True)
        yield trainer


def test_results_are_the_same_whenever_they_are_read(ahead, expected):
    results = [ahead.step() for _ in range(5)]
    assert ahead.iteration == 5 and ahead.consumed_samples == 20
    assert [result.loss for result in reversed(results)] == expected[::-1]
    assert [result.iteration for result in results] == [1, 2, 3, 4, 5]
    assert [result.consumed_samples for result in results] == [4, 8, 12, 16, 20]
    assert all(result.grad_norm > 0 and not result.skipped for result in results)


def test_a_result_that_is_read_at_once_is_that_of_its_step(ahead, expected):
    assert losses(ahead, 5) == expected


def test_awaited_results_are_as_others(ahead):
    result = ahead.step()
    assert not hasattr(result, "other")  # and it is still awaited
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result and repr(copy) == repr(result) and "loss=5." in repr(result)
    with pytest.raises(AttributeError):
        result.loss = 1.0


def test_other_calls_see_the_state_after_the_last_step(tmp_path, expected):
    with teratron.Trainer(C(save=str(tmp_path))) as trainer:
        trainer._engine.run_ahead(True)
        for _ in range(3):
            trainer.step()
        trainer.save()
        assert trainer.evaluate("valid", 1).iteration == 3
    with teratron.Trainer(C(load=str(tmp_path))) as trainer:
        assert trainer.load() and losses(trainer, 2) == expected[3:]


def test_an_exception_in_the_next_step_leaves_the_result(expected):
    calls = []

    def loss(values, batch):
        calls.append(None)
        if len(calls) == 3:  # two micro-batches a step
            raise ValueError("of the user")
        return (values * batch["loss_mask"]).sum(), batch["loss_mask"].sum()

    with teratron.Trainer(C(), train_step=loss) as trainer:
        trainer._engine.run_ahead(True)
        first = trainer.step()
        with pytest.raises(ValueError, match="of the user"):
            trainer.step()
        assert first.loss == expected[0]
        assert trainer.step().loss == expected[1]


def test_a_nan_is_raised_by_the_result_or_by_the_next_call():
    def nan(values, batch):
        return (values * float("nan")).sum(), batch["loss_mask"].sum()

    for follow in (lambda trainer, result: result.loss, lambda trainer, result: trainer.evaluate("valid", 1)):
        with teratron.Trainer(C(), train_step=nan) as trainer:
            trainer._engine.run_ahead(True)
            result = trainer.step()
            with pytest.raises(teratron.NumericsError):
                follow(trainer, result)
            with pytest.raises(RuntimeError, match="failed"):
                result.grad_norm
