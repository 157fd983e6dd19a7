"""Steps: equal to the command's, in C++ or Python."""
import json
import subprocess

import pytest
import teratron
import torch
from small import C, GRID, PROGRAM, SIZES, Same, losses


def command_flags(fields):
    flags = []
    for name, value in fields.items():
        flags += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    return flags


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The steps in the command's metrics.jsonl."""
    folder = tmp_path_factory.mktemp("command")
    subprocess.run([PROGRAM, "pretrain", "gpt", *command_flags({**SIZES, "run_dir": folder, "eval_iters": 0})], check=True,
                   capture_output=True)
    events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [event for event in events if event["type"] == "step"]


def test_steps_are_the_commands(command):
    with teratron.Trainer(C()) as trainer:
        assert (trainer.train_iters, trainer.global_batch_size, trainer.micro_batches) == (10, 4, 2)
        for event in command:
            result = trainer.step()
            assert (result.loss, result.grad_norm) == (event["losses"]["lm loss"], event["grad_norm"])
            assert result.losses == {"lm loss": result.loss}
            assert result.iteration == event["iteration"] == trainer.iteration
            assert result.consumed_samples == 4 * result.iteration == trainer.consumed_samples
            assert result.tokens == 4 * 64 and not result.skipped and result.seconds > 0


def test_steps_with_a_loss_in_python_are_the_commands(command):
    class Half(Same):
        metrics = ("half",)

        def loss(self, losses, batch):
            total, count = super().loss(losses, batch)
            return total, count, {"half": total / 2}

    with teratron.Trainer(C(), train_step=Half) as trainer:
        for event in command:
            result = trainer.step()
            assert (result.loss, result.grad_norm) == (event["losses"]["lm loss"], event["grad_norm"])
            assert result.metrics == {"half": pytest.approx(result.loss / 2, rel=1e-6)}


def test_a_function_is_a_loss(command):
    def loss(losses, batch):
        return (losses * batch["loss_mask"]).sum(), batch["loss_mask"].sum()

    with teratron.Trainer(C(), train_step=loss) as trainer:
        assert trainer.step().loss == command[0]["losses"]["lm loss"]


def test_ranks_compute_the_same_with_and_without_a_loss_in_python():
    def work(step):
        def on_rank(world):
            with teratron.Trainer(C(world_size=4, **GRID), world=world, train_step=step) as trainer:
                return world.rank, world.size, losses(trainer, 4)
        return teratron.run_ranks(4, on_rank)

    ranks = work(Same)
    assert [(rank, size) for rank, size, _ in ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert ranks == work(None)
    assert len({tuple(values) for *_, values in ranks}) == 1


def test_autograd_functions_of_python_run_on_rank_threads():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    class Halved(Same):
        def loss(self, losses, batch):
            return super().loss(Twice.apply(losses) / 2, batch)

    def on_rank(world):
        with teratron.Trainer(C(world_size=2, tensor_model_parallel_size=2), world=world, train_step=Halved) as trainer:
            return losses(trainer, 3)

    with teratron.Trainer(C()) as alone:
        assert teratron.run_ranks(2, on_rank)[0] == pytest.approx(losses(alone, 3), rel=1e-6)


def test_forward_step_sees_logits_and_get_batch_changes_tokens():
    seen = {}

    class Noisy(teratron.TrainStep):
        def get_batch(self, source):
            batch = source.next()
            return batch.replace(tokens=torch.zeros_like(batch.tokens))

        def forward_step(self, model, batch):
            seen["tokens"], seen["logits"] = batch.tokens, model.logits()
            (total, count), = model.losses()
            expected = torch.nn.functional.cross_entropy(seen["logits"][..., :201].reshape(-1, 201).float(), batch.labels.reshape(-1))
            seen["losses"] = total / count, expected
            return total, count

    with teratron.Trainer(C(make_vocab_size_divisible_by=1), train_step=Noisy()) as trainer:
        trainer.step()
    assert seen["tokens"].count_nonzero() == 0 and seen["logits"].shape == (64, 2, 201)
    torch.testing.assert_close(*seen["losses"])


def test_evaluations_and_logits():
    with teratron.Trainer(C()) as trainer:
        item = next(trainer.batches("valid"))
        assert trainer.evaluate(item).loss == trainer.evaluate("valid", 1).loss
        assert trainer.evaluate(iters=2).grad_norm is None and trainer.iteration == 0
        logits = trainer.logits(item)
        assert logits.shape == (64, 4, 201)
        expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 201).float(), item.labels.reshape(-1))
        assert trainer.evaluate(item).loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_step_takes_samples_and_its_own_next():
    with teratron.Trainer(C()) as one, teratron.Trainer(C()) as other:
        batches = one.batches()
        item = next(batches)
        assert {name: list(item[name].shape) for name in item} == {"tokens": [64, 4], "labels": [64, 4], "loss_mask": [64, 4]}
        assert one.step(item).loss == other.step().loss
        assert one.step().loss == other.step({"tokens": (second := next(batches)).tokens, "labels": second.labels}).loss
        with pytest.raises(teratron.DataError, match="labels"):
            one.step({"tokens": item.tokens})
        with pytest.raises(teratron.DataError, match=r"\[2, 64\], not \[4, 64\]"):
            one.step({name: item[name][:, :2] for name in item})
        with pytest.raises(TypeError):
            one.step(3)
        assert one.step().loss == other.step().loss
