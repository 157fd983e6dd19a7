"""Texts by Accelerate's arguments."""
import torch

_MORE = {"top_p_decay", "top_p_bound", "add_BOS", "stop_token", "random_seed"}


def _rows(inputs, mask):
    """The ids of each prompt, without padding."""
    inputs = torch.as_tensor(inputs)
    if inputs.dim() != 2:
        raise ValueError(f"inputs has the shape {list(inputs.shape)}, not [B, S]")
    if mask is None:
        return inputs.tolist()
    mask = torch.as_tensor(mask) != 0
    lengths = mask.sum(1)
    if mask.shape != inputs.shape or not torch.equal(mask.cpu(), torch.arange(mask.shape[1]) < lengths.cpu()[:, None]):
        raise ValueError("attention_mask must have the shape of inputs, and padding on the right alone: padding_side='right'")
    return [row[:length] for row, length in zip(inputs.tolist(), lengths.tolist())]


def _new_tokens(rows, limit, max_length, max_new_tokens, add_bos):
    """How many each row gets."""
    if max_length is not None and max_new_tokens is not None:
        raise ValueError("give max_length or max_new_tokens, not both")
    lengths = [len(row) + bool(add_bos) for row in rows]
    if max_new_tokens is not None:
        return [max_new_tokens] * len(rows)
    return [(limit if max_length is None else max_length) - length for length in lengths]


def megatron_generate(trainer, inputs, attention_mask, *, max_length, max_new_tokens, num_beams, length_penalty, **options):
    sampling = {"temperature", "top_k", "top_p"}
    if unknown := set(options) - _MORE - sampling:
        raise TypeError(f"megatron_generate() has no argument {', '.join(sorted(unknown))}; further ones are {', '.join(sorted(_MORE))}")
    if trainer.config.program != "gpt":
        raise ValueError("megatron_generate() is a GPT's; Trainer.generate() writes the texts of other models")
    rows = _rows(inputs, attention_mask)
    if num_beams is not None and len(rows) != 1:
        raise ValueError(f"a beam search takes a single prompt, not {len(rows)}")
    add_bos = bool(options.pop("add_BOS", False))
    eod = trainer.tokenizer.eod
    stop = options.pop("stop_token", eod)
    seed = options.pop("random_seed", None) or 0
    given = {name: value for name, value in options.items() if value is not None}
    if stop is not None:
        given["stop_token"] = stop
    if num_beams is not None:
        given.update(num_beams=num_beams, length_penalty=1.0 if length_penalty is None else length_penalty)
    limit = trainer.config.max_position_embeddings
    counts = _new_tokens(rows, limit, max_length, max_new_tokens, add_bos)
    answers = trainer._generate([{"tokens": row, "add_BOS": add_bos, "max_new_tokens": count, **given}
                                 for row, count in zip(rows, counts)], seed)
    whole = [torch.tensor([*answer["prompt_tokens"], *answer["tokens"]]) for answer in answers]
    fill = stop if stop is not None else 0
    return torch.nn.utils.rnn.pad_sequence(whole, batch_first=True, padding_value=fill).to(trainer.device)
