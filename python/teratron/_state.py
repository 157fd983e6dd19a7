"""The whole weights of a training, by the names of checkpoints or of Hugging Face."""
import torch

from ._errors import DataError


def teratron_state(trainer):
    for info in trainer.whole_parameters():
        yield info.name, trainer.gathered(info)


def hf_state(trainer):
    for info, tensor in zip(infos := trainer.whole_parameters(), trainer.hf_tensors(infos)):
        whole = trainer.gathered(info)
        for name, value in pieces(tensor, whole):
            yield name, value


def pieces(tensor, whole):
    """The tensors of Hugging Face whose rows one of ours holds."""
    sources, slices = tensor
    parts = [torch.empty(shape[::-1] if transposed else shape, dtype=whole.dtype, device=whole.device)
             for _, shape, transposed in sources]
    for source, row, our_row, rows in slices:
        parts[source][row:row + rows] = whole[our_row:our_row + rows]
    for (name, _, transposed), part in zip(sources, parts):
        yield name, part.t().contiguous() if transposed else part


def assigned(trainer, state, format):
    if format not in ("hf", "teratron"):
        raise ValueError(f"format is '{format}': use 'hf' or 'teratron'")
    infos = trainer.whole_parameters()
    pairs = state.items() if hasattr(state, "items") else state
    missing = {info.name for info in infos}
    if format == "hf":
        pairs = _joined(trainer, infos, dict(pairs))
    for name, tensor in pairs:
        if name not in missing:
            raise KeyError(f"the model has no parameter {name}, or it was given before")
        missing.discard(name)
        trainer.assign(name, torch.as_tensor(tensor).detach())
    if missing:
        raise KeyError(f"missing: {', '.join(sorted(missing))}")
    trainer.finish_assignment()


def _joined(trainer, infos, state):
    for info, (sources, slices) in zip(infos, trainer.hf_tensors(infos)):
        parts = []
        for name, shape, transposed in sources:
            if name not in state:
                raise KeyError(f"missing: {name}")
            part = torch.as_tensor(state[name]).detach()
            if list(part.shape) != list(shape):
                what = f"{name} has the shape {list(part.shape)}, not {list(shape)}"
                raise DataError(f"load_state_dict(): {what}", [(what, "load_state_dict()", "Give the tensors of the same model")])
            parts.append(part.t() if transposed else part)
        whole = torch.empty(info.shape, dtype=parts[0].dtype)
        for source, row, our_row, rows in slices:
            whole[our_row:our_row + rows] = parts[source][row:row + rows]
        yield info.name, whole
