"""What can go wrong between Python and the engine."""
import gc
import threading

import pytest
import teratron
import torch
from small import GRID, C, Same, losses


def of(function):
    """A trainer with this loss."""
    return teratron.Trainer(C(), train_step=function)


def test_an_exception_in_the_loss_arrives_and_the_step_can_be_repeated():
    fails = [False]

    class Sometimes(Same):
        def loss(self, losses, batch):
            if fails[0]:
                raise ValueError("of the user")
            return super().loss(losses, batch)

    with teratron.Trainer(C(), train_step=Sometimes) as trainer, teratron.Trainer(C()) as other:
        assert trainer.step().loss == other.step().loss
        fails[0] = True
        with pytest.raises(ValueError, match="^of the user$"):
            trainer.step()
        fails[0] = False
        assert losses(trainer, 2) == losses(other, 2)


def test_an_exception_on_a_rank_thread_arrives_as_itself():
    class Bad(Same):
        def loss(self, losses, batch):
            raise ValueError("of the user")

    def work(world):
        teratron.Trainer(C(world_size=4, **GRID), world=world, train_step=Bad).step()

    with pytest.raises(ValueError, match="of the user") as caught:
        teratron.run_ranks(4, work)
    assert "in loss" in "".join(str(entry) for entry in caught.traceback) or caught.traceback[-1].name == "loss"
    assert teratron.run_ranks(2, lambda world: world.rank) == [0, 1]


@pytest.mark.parametrize("result, error, text", [
    (lambda total, count: total, TypeError, "loss"),
    (lambda total, count: ("a", "b"), TypeError, "loss"),
    (lambda total, count: (total,), TypeError, "loss"),
    (lambda total, count: (total, count, 3), TypeError, "metrics"),
    (lambda total, count: (total, torch.ones(2)), TypeError, r"\[2\]"),
    (lambda total, count: (total, count, {"half": total}), ValueError, "half"),
    (lambda total, count: (total.detach(), count), ValueError, "depend"),
    (lambda total, count: (1.0, count), ValueError, "depend"),
    (lambda total, count: None, TypeError, "NoneType"),
])
def test_results_of_a_loss_are_checked(result, error, text):
    with of(lambda losses, batch: result((losses * batch.loss_mask).sum(), batch.loss_mask.sum())) as trainer:
        with pytest.raises(error, match=text):
            trainer.step()


def test_declared_metrics_must_be_returned():
    class Forgets(Same):
        metrics = ("half",)

    with teratron.Trainer(C(), train_step=Forgets) as trainer, pytest.raises(ValueError, match="half"):
        trainer.step()


def test_numbers_are_as_good_as_tensors():
    with of(lambda losses, batch: (losses.sum(), losses.numel())) as trainer, teratron.Trainer(C()) as other:
        assert trainer.step().loss == pytest.approx(other.step().loss, rel=1e-6)


def test_contexts_of_torch_change_nothing():
    contexts = [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16),
                lambda: torch.device("meta")]
    with teratron.Trainer(C()) as plain:
        expected = losses(plain, 3)
    for context in contexts:
        for step in (None, Same):
            with context(), teratron.Trainer(C(), train_step=step) as trainer:
                assert losses(trainer, 3) == expected
    assert torch.is_grad_enabled()


def test_other_default_dtypes_and_dispatch_modes_are_refused():
    from torch.utils._python_dispatch import TorchDispatchMode

    with teratron.Trainer(C()) as trainer:
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(RuntimeError, match="default dtype"):
                trainer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        with TorchDispatchMode(), pytest.raises(RuntimeError, match="dispatch mode"):
            trainer.step()
        trainer.step()


def test_batches_and_outputs_outlive_the_step_only_where_they_can():
    kept = []

    class Keeps(Same):
        def forward_step(self, model, batch):
            kept.append((model, batch))
            return super().forward_step(model, batch)

    trainer = teratron.Trainer(C(), train_step=Keeps)
    trainer.step()
    trainer.close()
    del trainer
    gc.collect()
    model, batch = kept[0]
    assert batch.tokens.shape == batch["labels"].shape == (64, 2)
    assert {"tokens", "labels", "loss_mask"} <= set(batch.keys()) and int(batch.tokens.max()) < 201
    with pytest.raises(RuntimeError, match="forward_step"):
        model.logits()
    with pytest.raises(AttributeError, match="no column 'token'"):
        batch.token


def test_a_closed_trainer_says_so():
    trainer = teratron.Trainer(C())
    trainer.close()
    trainer.close()
    for call in (trainer.step, trainer.save, lambda: trainer.iteration, lambda: trainer.batches()):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_trainer_of_a_rank_thread_ends_with_it():
    kept = teratron.run_ranks(2, lambda world: teratron.Trainer(C(world_size=2, tensor_model_parallel_size=2), world=world))
    with pytest.raises(RuntimeError, match="closed"):
        kept[0].step()


def test_any_thread_may_step_and_others_run_meanwhile():
    found, turns = [], []

    def count(stop=threading.Event()):
        while not stop.wait(0.001):
            turns.append(1)

    stop = threading.Event()
    other = threading.Thread(target=count, args=(stop,))
    with teratron.Trainer(C(), train_step=Same) as trainer:
        other.start()
        thread = threading.Thread(target=lambda: found.append(trainer.step().loss))
        thread.start()
        thread.join()
        stop.set()
        other.join()
    with teratron.Trainer(C()) as plain:
        assert found == losses(plain, 1)
    assert len(turns) > 2, "the lock of Python is free while the engine computes"


def test_get_batch_must_return_a_batch():
    class Wrong(teratron.TrainStep):
        def get_batch(self, source):
            return {"tokens": source.next().tokens}

    with teratron.Trainer(C(), train_step=Wrong) as trainer, pytest.raises((TypeError, AttributeError)):
        trainer.step()
    with teratron.Trainer(C()) as trainer:
        batch = next(trainer.batches())
        with pytest.raises(KeyError):
            batch.replace(token=batch.tokens)
        with pytest.raises(ValueError, match="shape"):
            batch.replace(tokens=batch.tokens[:3])
