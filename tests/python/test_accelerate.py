"""A script after Accelerate's flow, with its imports from teratron.accelerate, on ranks TP 2 x PP 2."""
import json
import math

import pytest
import teratron
import torch
from small import C
from teratron.accelerate import (Accelerator, DistributedType, GPTTrainStep, MegatronLMDummyDataLoader, MegatronLMDummyScheduler,
                                 MegatronLMPlugin, avg_losses_across_data_parallel_group)


class Model(torch.nn.Module):
    """Stands for transformers' GPT2LMHeadModel, whose import takes long: only its configuration is read."""

    class config:
        model_type, vocab_size = "gpt2", 201

        @staticmethod
        def save_pretrained(folder):
            with open(f"{folder}/config.json", "w") as file:
                json.dump({"model_type": "gpt2", "vocab_size": 201, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
                           "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "activation_function": "gelu_new",
                           "bos_token_id": 200, "eos_token_id": 200}, file)

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 200, (count, 64), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def prepared(world, *loaders, **plugin):
    """The objects of a script: accelerator, model, optimizer, schedule and the loaders."""
    accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin(**{"tp_degree": 2, "pp_degree": 2, "num_micro_batches": 2, **plugin}),
                              cpu=True, world=world)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=6, warmup_num_steps=1)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, *loaders)


def loaders():
    train = torch.utils.data.DataLoader(Blocks(10), shuffle=True, batch_size=2)
    return train, torch.utils.data.DataLoader(Blocks(4), batch_size=2)


def script(folder, resumes):
    """Trains, evaluates and saves; resuming, only the second epoch. The losses of each rank."""
    def on_rank(world):
        accelerator, model, optimizer, schedule, train, valid = prepared(world, *loaders())
        assert accelerator.distributed_type == DistributedType.MEGATRON_LM
        assert accelerator.is_main_process == (world.rank == 3)
        assert accelerator.state.megatron_lm_plugin.global_batch_size == 4 and len(train) == 3
        losses = []
        if resumes:
            accelerator.load_state(f"{folder}/epoch_0")
            train.epoch = 1
        for epoch in range(1 if resumes else 0, 2):
            model.train()
            for batch in train:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    losses.append(loss.item())
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            if not resumes and epoch == 0:
                accelerator.save_state(f"{folder}/epoch_0")
        model.eval()
        with torch.no_grad():
            found = torch.tensor([model(**batch).loss for batch in valid])
        assert not optimizer.step_was_skipped and schedule.get_last_lr() == [0.0] and model.iteration == 6
        accelerator.wait_for_everyone()
        accelerator.end_training()
        return losses, math.exp(found.mean())
    return teratron.run_ranks(4, on_rank)


def test_a_script_trains_evaluates_saves_and_resumes(tmp_path):
    whole = script(tmp_path, resumes=False)
    assert len(whole[0][0]) == 6 and all(rank == whole[0] for rank in whole) and 100 < whole[0][1] < 400
    assert (tmp_path / "epoch_0/latest_checkpointed_iteration.txt").read_text().strip() == "3"
    resumed = script(tmp_path, resumes=True)
    assert resumed[0] == (whole[0][0][3:], whole[0][1])


def test_a_custom_step_and_logits_on_datasets_of_the_settings():
    class Doubled(GPTTrainStep):
        def __init__(self, megatron_args, **kwargs):
            super().__init__(megatron_args)
            self.factor = kwargs["factor"]

        def get_loss_func(self):
            def loss_func(loss_mask, output_tensor):
                output_tensor, _ = output_tensor if isinstance(output_tensor, tuple) else (output_tensor, None)  # return_logits
                loss = self.factor * (output_tensor.view(-1) * loss_mask.view(-1)).sum() / loss_mask.sum()
                return loss, {"lm loss": avg_losses_across_data_parallel_group([loss])[0]}
            return loss_func

    def on_rank(world, **step):
        dummy = MegatronLMDummyDataLoader(mock_data=True, splits_string="8,1,1", seq_length=64, micro_batch_size=2)
        accelerator, model, _, _, train, valid, _ = prepared(world, dummy, dummy, dummy, **step)
        assert (train is None) == (world.rank % 2 != 0)
        model.train()
        trained = model(**(next(train) if train is not None else {})).loss.item()
        model.eval()
        outputs = model(**(next(valid) if valid is not None else {}))
        return trained, None if outputs.get("logits") is None else outputs.logits.shape

    plain = teratron.run_ranks(4, on_rank)
    doubled = teratron.run_ranks(4, lambda world: on_rank(
        world, custom_train_step_class=Doubled, custom_train_step_kwargs={"factor": 2.0}, return_logits=True))
    assert doubled[0][0] == pytest.approx(2 * plain[0][0], rel=1e-6)
    assert [shape for _, shape in doubled] == [None, None, (4, 64, 201), (4, 64, 201)]


def test_what_does_not_fit_is_named(monkeypatch):
    accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin(), cpu=True)
    model, (train, _) = Model(), loaders()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for objects, error, text in [
            ((model, model, train), AssertionError, "one model"), ((model, optimizer), ValueError, "DataLoader"),
            ((model, optimizer, train), ValueError, "total_num_steps"),
            ((model, torch.optim.Adagrad(model.parameters()), train), ValueError, "Adagrad"),
            ((model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer), train), ValueError, "MegatronLMDummyScheduler")]:
        with pytest.raises(error, match=text):
            accelerator.prepare(*objects)
    with pytest.raises(teratron.ConfigError, match="custom_model_provider_function"):
        MegatronLMPlugin(custom_model_provider_function=print)
    with pytest.raises(ValueError, match="num_micro_batches"):
        Accelerator(gradient_accumulation_steps=2)
    with pytest.raises(RuntimeError, match="prepare"):
        accelerator.trainer
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "4")
    monkeypatch.setenv("MEGATRON_LM_SEQUENCE_PARALLELISM", "true")
    plugin = MegatronLMPlugin(pp_degree=2)
    assert (plugin.tp_degree, plugin.pp_degree, plugin.sequence_parallelism, plugin.gradient_clipping) == (4, 2, True, 1.0)
    assert C().hidden_size == 64
