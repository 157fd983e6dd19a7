"""Samples by the names of Megatron-LM's datasets and of Hugging Face's loaders, [B, S], and the engine's columns, [S, B].

| family | Megatron-LM | Hugging Face |
|---|---|---|
| gpt | text [B, S + 1] | input_ids [B, S] |
| bert | text, types, labels (-1: none), loss_mask, padding_mask [B, S], is_random [B] | input_ids, token_type_ids,
  labels (-100: none), attention_mask, next_sentence_label |
| t5 | text_enc [B, S], text_dec, labels (-1), loss_mask [B, T], enc_mask, dec_mask, enc_dec_mask [B, ., .] | input_ids,
  attention_mask, decoder_input_ids, labels (-100) |
"""
import torch

from ._errors import DataError
from ._steps import Batch

_HF_NAMES = {
    "gpt": {},
    "bert": {"input_ids": "text", "token_type_ids": "types", "attention_mask": "padding_mask", "next_sentence_label": "is_random"},
    "t5": {"input_ids": "text_enc", "decoder_input_ids": "text_dec", "attention_mask": "source_mask"},
}


def _wrong(what, fix):
    return DataError(f"the batch: {what}. {fix}", [(what, "the batch", fix)])


# ---- From the engine's micro-batch ----

def _positions(batch):
    """The predictions of a BERT: places [B, P], labels, and which are there."""
    return batch["masked_positions"], batch["masked_labels"], batch["masked_loss_mask"]


def spread(losses_PB, batch):
    """The losses of a BERT's predictions at their places: [B, S], 0 elsewhere."""
    places, _, mask = _positions(batch)
    rows = torch.zeros(places.shape[0], batch["tokens"].shape[0], dtype=losses_PB.dtype, device=losses_PB.device)
    return rows.scatter_add(1, places, losses_PB.t() * mask)


def _padding_mask(batch):
    length, rows = batch["tokens"].shape
    ends = torch.full((rows,), length, device=batch["tokens"].device)
    if "cu_seqlens" in batch:
        inner = batch["cu_seqlens"].long()
        inner = inner[inner % length != 0]
        ends[inner // length] = inner % length
    return (torch.arange(length, device=ends.device) < ends[:, None]).long()


def _gpt_text(batch):
    return torch.cat([batch["tokens"], batch["labels"][-1:]]).t().contiguous()


def _bert_labels(batch, none):
    places, labels, mask = _positions(batch)
    rows = torch.full_like(batch["tokens"].t(), none, memory_format=torch.contiguous_format)
    return rows.scatter(1, places, torch.where(mask > 0, labels, none))


def _bert_loss_mask(batch):
    places, _, mask = _positions(batch)
    return torch.zeros(batch["tokens"].t().shape, device=mask.device).scatter_add(1, places, mask)


def _source_mask(batch):
    """Which of an encoder's tokens are not padding, [B, S]."""
    length = batch["encoder_index"].shape[0]
    if "encoder_length" not in batch:
        rows = batch["decoder_tokens"].shape[1]
        return torch.ones(rows, length, dtype=torch.long, device=batch["decoder_tokens"].device)
    return (torch.arange(length, device=batch["encoder_length"].device) < batch["encoder_length"]).long()


def _target_ones(batch):
    length, rows = batch["decoder_tokens"].shape
    return torch.ones(rows, length, length, dtype=torch.long, device=batch["decoder_tokens"].device)


def _turned(name):
    return lambda batch, none: batch[name].t().contiguous()


_VIEWS = {
    "gpt": {"text": lambda batch, none: _gpt_text(batch), "input_ids": _turned("tokens")},
    "bert": {
        "text": _turned("tokens"),
        "types": lambda batch, none: (batch["types"] if "types" in batch else torch.zeros_like(batch["tokens"])).t().contiguous(),
        "labels": _bert_labels,
        "loss_mask": lambda batch, none: _bert_loss_mask(batch),
        "padding_mask": lambda batch, none: _padding_mask(batch),
        "is_random": lambda batch, none: batch["is_random"].squeeze(1),
    },
    "t5": {
        "text_enc": _turned("encoder_tokens"),
        "text_dec": _turned("decoder_tokens"),
        "labels": lambda batch, none: torch.where(batch["loss_mask"] > 0, batch["labels"], none).t().contiguous(),
        "loss_mask": _turned("loss_mask"),
        "enc_mask": lambda batch, none: _source_mask(batch)[:, :, None] * _source_mask(batch)[:, None, :],
        "dec_mask": lambda batch, none: _target_ones(batch).tril(),
        "enc_dec_mask": lambda batch, none: _target_ones(batch)[:, :, :1] * _source_mask(batch)[:, None, :],
        "source_mask": lambda batch, none: _source_mask(batch),
    },
}


class Item(Batch):
    """A micro-batch as an item of a data iterator: beside the engine's columns it has those of the table above, as far as the
    pipeline stage has what they follow from."""

    __slots__ = ("_family", "_none")

    def __init__(self, batch, family, hugging_face=False):
        super().__init__(batch._batch)
        object.__setattr__(self, "_family", family)
        object.__setattr__(self, "_none", -100 if hugging_face else -1)

    def __getitem__(self, name):
        view = _VIEWS[self._family].get(_HF_NAMES[self._family].get(name, name))
        return super().__getitem__(name) if view is None else view(_Columns(self), self._none)

    def __contains__(self, name):
        return _HF_NAMES[self._family].get(name, name) in _VIEWS[self._family] or super().__contains__(name)

    def __iter__(self):
        views = [name for name in _VIEWS[self._family] if self.get(name) is not None]
        return iter(dict.fromkeys([*super().__iter__(), *views]))

    def get(self, name, default=None):
        """The column, or the default where this pipeline stage has nothing that it follows from."""
        try:
            return self[name]
        except KeyError:
            return default


class _Columns:
    """The engine's columns alone."""

    def __init__(self, batch):
        self._columns = batch._batch

    def __getitem__(self, name):
        return self._columns[name]

    def __contains__(self, name):
        return name in self._columns


# ---- To the engine's columns ----

def gpt_columns(batch, eod):
    """Of input_ids [B, S] labels are the next ids, the last one is the end of a document; ids of an end, which is also the
    padding, have no loss. Of text [B, S + 1] all have one."""
    if "text" in batch:
        text = batch["text"].long().cpu()
        mask = batch["loss_mask"] if "loss_mask" in batch else torch.ones(text[:, 1:].shape)
        return {"tokens": text[:, :-1].t(), "labels": text[:, 1:].t(), "loss_mask": mask.float().cpu().t()}
    ids = batch["input_ids"].long().cpu()
    labels = torch.cat([ids[:, 1:], torch.full((ids.shape[0], 1), eod)], dim=1)
    return {"tokens": ids.t(), "labels": labels.t(), "loss_mask": (ids != eod).float().t()}


def _lengths(mask, rows):
    """Tokens of each row before its padding. None: rows without."""
    if mask is None:
        return None
    mask = torch.as_tensor(mask).cpu()
    if mask.dim() == 3:
        mask = mask[:, 0]
    lengths = (mask != 0).long().sum(1)
    if not torch.equal(mask != 0, torch.arange(mask.shape[1]) < lengths[:, None]):
        raise _wrong("a row has padding before its tokens", "Pad on the right")
    return lengths


def _first(batch, *names):
    return next((torch.as_tensor(batch[name]).cpu() for name in names if batch.get(name) is not None), None)


def _targets(batch, *names):
    """Labels [B, ...] and where they count."""
    labels = _first(batch, "labels")
    if labels is None:
        raise _wrong("there are no labels", "Add them, -100 where nothing is predicted")
    mask = _first(batch, "loss_mask")
    mask = (labels >= 0).float() if mask is None else mask.float()
    return labels.long().clamp_min(0), mask


def bert_columns(batch, shapes):
    """`shapes`: of the engine's columns."""
    tokens = _first(batch, "text", "input_ids").long()
    rows, length = tokens.shape
    labels, mask = _targets(batch)
    most, predictions = int((mask > 0).sum(1).max()), shapes["masked_positions"][0]
    if most > predictions:
        raise _wrong(f"a sample has {most} masked tokens, and the settings allow {predictions}", "Raise mask_prob")
    order = torch.argsort((mask > 0).int(), dim=1, descending=True, stable=True)[:, :predictions]
    order = torch.nn.functional.pad(order, (0, predictions - order.shape[1]))
    chosen = torch.arange(predictions) < (mask > 0).sum(1, keepdim=True)
    columns = {
        "tokens": tokens.t(),
        "masked_positions": torch.where(chosen, order, 0),
        "masked_labels": torch.where(chosen, labels.gather(1, order), 0),
        "masked_loss_mask": torch.where(chosen, mask.gather(1, order), 0.0),
    }
    if "types" in shapes:
        types = _first(batch, "types", "token_type_ids")
        columns["types"] = (torch.zeros_like(tokens) if types is None else types.long()).t()
    if "is_random" in shapes:
        order_of_pairs = _first(batch, "is_random", "next_sentence_label")
        if order_of_pairs is None:
            raise _wrong("there is no next_sentence_label, and the model has a binary head", "Use bert_binary_head=False")
        columns["is_random"] = order_of_pairs.long().reshape(rows, 1)
    lengths = _lengths(_first(batch, "padding_mask", "attention_mask"), rows)
    if "segment_start" in shapes and lengths is not None:
        is_padding = torch.arange(length) >= lengths[:, None]
        columns["segment_start"] = torch.where(is_padding, lengths[:, None], 0).int().t()
    return columns


def t5_columns(batch, shapes):
    """`shapes`: of the engine's columns. Without decoder_input_ids labels are shifted right behind a 0."""
    source = _first(batch, "text_enc", "input_ids").long()
    labels, mask = _targets(batch)
    target = _first(batch, "text_dec", "decoder_input_ids")
    if target is None:
        target = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1)
    columns = {"encoder_tokens": source.t(), "decoder_tokens": target.long().t(), "labels": labels.t(), "loss_mask": mask.t()}
    if "encoder_length" in shapes:
        lengths = _lengths(_first(batch, "enc_mask", "attention_mask"), source.shape[0])
        columns["encoder_length"] = (torch.full((source.shape[0],), source.shape[1]) if lengths is None else lengths)[:, None]
    return columns


def engine_columns(family, batch, shapes, eod):
    """The engine's columns of rows by either's names; columns of the engine stay as they are."""
    if family == "gpt":
        return gpt_columns(batch, eod) if "text" in batch or "input_ids" in batch else dict(batch)
    if family == "bert":
        return bert_columns(batch, shapes) if "text" in batch or "input_ids" in batch else dict(batch)
    return t5_columns(batch, shapes) if "text_enc" in batch or "input_ids" in batch else dict(batch)


def _shapes(config):
    """The columns of the settings' models that depend on them, as the engine has them."""
    if config.program != "bert":
        return {"encoder_length": [1]}
    predictions = max(1, int(config.mask_prob * (config.seq_length - 3)))  # beside [CLS] and two [SEP]
    return {"masked_positions": [predictions], "segment_start": [config.seq_length],
            **({"types": [config.seq_length], "is_random": [1]} if config.bert_binary_head else {})}


class MegatronSamples:
    """A dataset whose samples are dicts by Megatron-LM's or Hugging Face's names, as Trainer(dataset=) takes one."""

    def __init__(self, dataset, config, eod):
        self._dataset, self._program, self._shapes, self._eod = dataset, config.program, _shapes(config), eod

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, i):
        rows = {name: torch.as_tensor(value)[None] for name, value in self._dataset[i].items()}
        columns = engine_columns(self._program, rows, self._shapes, self._eod)
        by_sample = {"masked_positions", "masked_labels", "masked_loss_mask", "is_random", "encoder_length"}
        return {name: value[0] if name in by_sample else value[:, 0] for name, value in columns.items()}
