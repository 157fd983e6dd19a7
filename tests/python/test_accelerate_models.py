"""BERT and T5 of transformers through prepare(), with train steps of both signatures: their losses are those of transformers."""
import pytest
import teratron
import torch
from small import LONG
from teratron.accelerate import Accelerator, BertTrainStep, MegatronLMDummyScheduler, MegatronLMPlugin, T5TrainStep

SIZES = dict(vocab_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(next(iter(self.rows.values())))

    def __getitem__(self, i):
        return {name: column[i] for name, column in self.rows.items()}


def bert_rows(count=8, length=16, pairs=True):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 64, (count, length), generator=generator)
    mask = (torch.arange(length) < torch.tensor([16, 12] * (count // 2))[:, None]).long()
    chosen = (torch.rand(count, length, generator=generator) < 0.3) & (mask == 1)
    chosen[:, 0], chosen[:, 1] = False, True
    rows = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": (torch.arange(length) >= 8).long() * mask,
            "labels": torch.where(chosen, ids, -100)}
    return {**rows, "next_sentence_label": torch.arange(count) % 2} if pairs else rows


def t5_rows(count=8, length=16, target=8):
    generator = torch.Generator().manual_seed(6)
    mask = (torch.arange(length) < torch.tensor([16, 11] * (count // 2))[:, None]).long()
    labels = torch.randint(2, 64, (count, target), generator=generator)
    labels[:, -2:] = -100
    return {"input_ids": torch.randint(2, 64, (count, length), generator=generator) * mask, "attention_mask": mask, "labels": labels}


def bert(pairs):
    from transformers import MegatronBertConfig, MegatronBertForMaskedLM, MegatronBertForPreTraining
    config = MegatronBertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
                                max_position_embeddings=16, **SIZES)
    return (MegatronBertForPreTraining if pairs else MegatronBertForMaskedLM)(config)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    return T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
                                               decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))


class EarlyBert(BertTrainStep):
    """The signatures of Accelerate up to 0.30."""

    def __init__(self, megatron_args, **kwargs):
        super().__init__(megatron_args)

    def get_loss_func(self, pretraining_flag, num_labels):
        assert pretraining_flag
        return super().get_loss_func(None, pretraining_flag, num_labels)


class LaterBert(BertTrainStep):
    def __init__(self, accelerator, args, **kwargs):
        super().__init__(accelerator, args)

    def get_batch_func(self, accelerator, megatron_dataset_flag):
        inner = super().get_batch_func(accelerator, megatron_dataset_flag)
        return lambda data_iterator: inner(data_iterator)


class EarlyT5(T5TrainStep):
    def __init__(self, megatron_args, **kwargs):
        super().__init__(megatron_args)

    def get_batch_func(self, megatron_dataset_flag):
        def get_batch(data_iterator):
            data = next(data_iterator)
            labels = data["labels"]
            hidden = (data["attention_mask"][:, None, :] * data["attention_mask"][:, :, None]) < 0.5
            assert not megatron_dataset_flag and int(labels.min()) == -100 and hidden.shape == (2, 16, 16)
            return (data["input_ids"], data["decoder_input_ids"], (labels != -100).float(), labels, hidden, data["dec_mask"] < 0.5,
                    data["enc_dec_mask"] < 0.5)
        return get_batch


class LaterT5(T5TrainStep):
    def __init__(self, accelerator, args, **kwargs):
        super().__init__(accelerator, args)

    def get_loss_func(self, accelerator):
        return super().get_loss_func(accelerator)


def losses(model, rows, ranks, loads=True, **plugin):
    """Losses of two steps, from the model's weights if it `loads` them, and of an evaluation before them."""
    def on_rank(world):
        accelerator = Accelerator(cpu=True, world=world, megatron_lm_plugin=MegatronLMPlugin(
            **{"tp_degree": 2, "pp_degree": 2, **plugin}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=4)
        loader = torch.utils.data.DataLoader(Rows(rows), batch_size=2)
        prepared, _, _, loader, _ = accelerator.prepare(model, optimizer, scheduler, loader,
                                                        torch.utils.data.DataLoader(Rows(rows), batch_size=2))
        if loads:
            accelerator.trainer.load_state_dict(model.state_dict())
        batches = list(loader)
        prepared.eval()
        found = [prepared(**batches[0]).loss.item()]
        prepared.train()
        found += [prepared(**batch).loss.item() for batch in batches[:2]]
        accelerator.end_training()
        return found
    return teratron.run_ranks(ranks, on_rank)[0]


def of_transformers(model, rows):
    model.train()  # dropout is 0
    return model(**{name: column[:2] for name, column in rows.items()}).loss.item()


@pytest.mark.parametrize("pairs", [True, False] if LONG else [True])
def test_bert_from_loaders(pairs):
    model, rows = bert(pairs), bert_rows(pairs=pairs)
    plain = losses(model, rows, 4, loads=pairs)  # transformers has no class without the binary head alone
    assert plain[1] == pytest.approx(plain[0], rel=1e-5) and plain[2] != plain[1]
    if pairs:
        assert plain[0] == pytest.approx(of_transformers(model, rows), rel=1e-5)
    for step in (BertTrainStep, EarlyBert, LaterBert):
        assert losses(model, rows, 4, loads=pairs, custom_train_step_class=step) == pytest.approx(plain, rel=1e-5), step


def test_t5_from_loaders():
    model, rows = t5(), t5_rows()
    plain = losses(model, rows, 4, pipeline_model_parallel_split_rank=1)
    assert plain[:2] == pytest.approx([of_transformers(model, rows)] * 2, rel=1e-5)
    for step in (T5TrainStep, EarlyT5, LaterT5):
        found = losses(model, rows, 4, custom_train_step_class=step, pipeline_model_parallel_split_rank=1)
        assert found == pytest.approx(plain, rel=1e-5), step


def test_models_of_folders(tmp_path):
    from transformers import MegatronBertForPreTraining, T5ForConditionalGeneration
    bert(True).save_pretrained(tmp_path / "bert")
    t5().save_pretrained(tmp_path / "t5")
    for kind, name, rows in ((MegatronBertForPreTraining, "bert", bert_rows()), (T5ForConditionalGeneration, "t5", t5_rows())):
        model = kind.from_pretrained(tmp_path / name)
        assert losses(model, rows, 1, tp_degree=1, pp_degree=1)[0] == pytest.approx(
            of_transformers(model, rows), rel=1e-5)


def test_what_a_loader_lacks_is_named():
    rows = bert_rows()
    for change, text in ((lambda rows: rows.pop("labels"), "labels"),
                         (lambda rows: rows.update(attention_mask=rows["attention_mask"].flip(1)), "padding before")):
        wrong = dict(rows)
        change(wrong)
        with pytest.raises(teratron.DataError, match=text):
            losses(bert(True), wrong, 1, tp_degree=1, pp_degree=1)
    from transformers import MegatronBertConfig, MegatronBertForSequenceClassification
    config = MegatronBertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
                                max_position_embeddings=16, **SIZES)
    with pytest.raises(ValueError, match="finetune"):
        losses(MegatronBertForSequenceClassification(config), rows, 1, tp_degree=1, pp_degree=1)
