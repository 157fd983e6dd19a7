"""Train steps of closures, with both signatures of Accelerate."""
from functools import partial

import pytest
import teratron
import torch
from small import GRID, C, losses
from teratron.accelerate import (AbstractTrainStep, BertTrainStep, GPTTrainStep, T5TrainStep, avg_losses_across_data_parallel_group,
                                 gather_across_data_parallel_groups)

KEYWORDS, ALPHA = [3, 17, 58], 0.25


class KeywordLoss(GPTTrainStep):
    """Losses of samples, each weighted by the keywords in it, with the signatures of Accelerate up to 0.30."""

    def __init__(self, megatron_args, **kwargs):
        super().__init__(megatron_args)
        self.kwargs = kwargs

    def get_loss_func(self):
        def loss_func(inputs, loss_mask, output_tensor):
            rows = output_tensor.shape[0]
            masked = (output_tensor.view(-1) * loss_mask.view(-1)).view(rows, -1)
            means = masked.sum(axis=1) / loss_mask.view(rows, -1).sum(axis=1)
            keywords = sum((inputs == id).sum(axis=1) for id in self.kwargs["keytoken_ids"])
            loss = (means * (1.0 + self.kwargs["alpha"] * keywords)).mean()
            return loss, {"lm loss": avg_losses_across_data_parallel_group([loss])[0]}

        return loss_func

    def get_forward_step_func(self):
        def forward_step(data_iterator, model):
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output_tensor = model(tokens, position_ids, attention_mask, labels=labels)
            return output_tensor, partial(self.loss_func, tokens, loss_mask)

        return forward_step


class Later(KeywordLoss):
    """The same with the signatures of later ones."""

    def __init__(self, accelerator, args, **kwargs):
        GPTTrainStep.__init__(self, accelerator, args)
        self.kwargs = kwargs

    def get_loss_func(self, accelerator):
        return KeywordLoss.get_loss_func(self)


class Reference(teratron.TrainStep):
    """The formula of examples/custom_loss."""

    def loss(self, losses, batch):
        mask = batch.loss_mask
        loss = (losses * mask).sum(0) / mask.sum(0)
        keywords = sum(batch.tokens.eq(id).sum(0) for id in KEYWORDS)
        return ((1 + ALPHA * keywords) * loss).sum(), float(loss.numel())


def on_grid(**step):
    def work(world):
        with teratron.Trainer(C(world_size=4, **GRID), world=world, **step) as trainer:
            return losses(trainer, 5)
    return teratron.run_ranks(4, work)[0]


@pytest.mark.parametrize("step", [KeywordLoss, Later])
def test_the_published_class_trains_as_the_example(step):
    found = on_grid(train_step=step, train_step_kwargs={"keytoken_ids": KEYWORDS, "alpha": ALPHA})
    assert found == pytest.approx(on_grid(train_step=Reference), rel=5e-6)


def test_the_steps_themselves_are_the_models_losses():
    with teratron.Trainer(C()) as plain, teratron.Trainer(C(), train_step=GPTTrainStep) as trainer:
        assert losses(trainer, 3) == pytest.approx(losses(plain, 3), rel=1e-6)
    sizes = dict(num_layers=2, hidden_size=64, num_attention_heads=4, micro_batch_size=2, global_batch_size=4, train_iters=4,
                 lr=1e-3, mock_data=True, device="cpu", hidden_dropout=0, attention_dropout=0)
    for program, step, more in [("bert", BertTrainStep, dict(seq_length=64, max_position_embeddings=64)),
                                ("t5", T5TrainStep, dict(encoder_seq_length=32, decoder_seq_length=16, max_position_embeddings=32))]:
        config = teratron.Config(program=program, **sizes, **more)
        with teratron.Trainer(config) as plain, teratron.Trainer(config, train_step=step) as trainer:
            expected, found = plain.step(), trainer.step()
            assert found.loss == pytest.approx(expected.loss, rel=1e-5), program
            assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4), program


def test_tokens_that_get_batch_changes_are_those_that_train():
    class Zeros(GPTTrainStep):
        def get_batch_func(self, accelerator, megatron_dataset_flag):
            inner = super().get_batch_func(accelerator, megatron_dataset_flag)

            def get_batch(data_iterator):
                tokens, *others = inner(data_iterator)
                return torch.zeros_like(tokens), *others

            return get_batch

        def get_forward_step_func(self):
            inner = super().get_forward_step_func()

            def forward_step(data_iterator, model):
                assert self.get_batch(data_iterator)[0].count_nonzero() == 0
                return inner(data_iterator, model)

            return forward_step

    class Reference(teratron.TrainStep):
        def get_batch(self, source):
            batch = source.next()
            return batch.replace(tokens=torch.zeros_like(batch.tokens))

    with teratron.Trainer(C(), train_step=Zeros) as trainer, teratron.Trainer(C(), train_step=Reference) as other:
        assert losses(trainer, 2) == pytest.approx(losses(other, 2), rel=1e-6)


def test_losses_are_averaged_over_data_parallel_ranks():
    seen = {}

    class Sees(GPTTrainStep):
        def get_loss_func(self, accelerator):
            def loss_func(loss_mask, output):
                loss = output.mean()
                averaged = avg_losses_across_data_parallel_group([loss, 2 * loss])
                gathered = gather_across_data_parallel_groups({"loss": loss.detach(), "rows": [output.detach()[:1]]})
                seen[gathered["rows"][0].shape[0]] = (averaged, gathered["loss"].mean())
                return loss, {"lm loss": averaged[0]}

            return loss_func

    def work(world):
        with teratron.Trainer(C(world_size=2, global_batch_size=4), world=world, train_step=Sees) as trainer:
            trainer.step()

    teratron.run_ranks(2, work)
    averaged, mean = seen[2]
    torch.testing.assert_close(averaged, torch.stack([mean, 2 * mean]))


def test_wrong_uses_are_named():
    with pytest.raises(TypeError, match=r"\(accelerator, args\)"):
        GPTTrainStep(1, 2, 3)
    with pytest.raises(RuntimeError, match="training"):
        import threading
        caught = []
        thread = threading.Thread(target=lambda: caught.append(pytest.raises(RuntimeError, avg_losses_across_data_parallel_group, [torch.ones(1)])))
        thread.start()
        thread.join()
        raise caught[0].value
    assert AbstractTrainStep("mine").name == "mine"
