"""Parts of get_batch()."""
import torch

from . import _state


def get_ltor_masks_and_position_ids(data, eod_token, reset_position_ids, reset_attention_mask, eod_mask_loss, *_, **__):
    """Masks and positions of a GPT's tokens.

    Args:
        data: ids [B, S]. eod_token: id. reset_position_ids: whether positions begin anew after it. reset_attention_mask:
            whether tokens after it see none before. eod_mask_loss: whether it has no loss.

    Returns:
        attention_mask [1 or B, 1, S, S] bool (True: hidden), loss_mask [B, S] float32, position_ids [B, S] int64.

    Example:
        attention_mask, loss_mask, position_ids = get_ltor_masks_and_position_ids(tokens, eod, False, False, False)
    """
    rows, length = data.shape
    places = torch.arange(length, device=data.device)
    loss_mask = torch.ones(data.shape, device=data.device)
    if eod_mask_loss:
        loss_mask = (data != eod_token).float()
    ends = (data == eod_token).long()
    document = torch.cumsum(ends, 1) - ends  # of each token; an end belongs to the document before it
    seen = places[:, None] >= places[None, :]
    seen = seen[None] & (document[:, :, None] == document[:, None, :]) if reset_attention_mask else seen[None]
    positions = places.repeat(rows, 1)
    if reset_position_ids:
        first = torch.where(torch.nn.functional.pad(ends[:, :-1], (1, 0)) == 1, places, 0).cummax(1).values
        positions = positions - first
    return ~seen[:, None], loss_mask, positions


def get_batch_on_this_tp_rank(data_iterator):
    """A GPT's tokens, labels, loss_mask, attention_mask and position_ids, [B, S], as a dict.

    Example:
        batch = get_batch_on_this_tp_rank(data_iterator)
    """
    args = _state.required("args")
    item = next(data_iterator)
    tokens, labels, loss_mask = (item[name].t().contiguous() for name in ("tokens", "labels", "loss_mask"))
    mask, _, positions = get_ltor_masks_and_position_ids(
        tokens, _state.required("tokenizer").eod, args.reset_position_ids, args.reset_attention_mask, args.eod_mask_loss)
    return {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "attention_mask": mask, "position_ids": positions}


def get_batch_on_this_cp_rank(batch):
    """The batch: the engine has cut it over the context-parallel ranks.

    Example:
        batch = get_batch_on_this_cp_rank(batch)
    """
    return batch
