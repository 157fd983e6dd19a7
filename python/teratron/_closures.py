"""Train steps that return a closure for the loss, as Megatron-LM's and Accelerate's do."""
import torch

from ._columns import Item, spread
from ._steps import TrainStep


class ModelCall:
    """What a forward step calls as the model: gives the output that the engine has computed, in Megatron-LM's form.

    gpt, t5: with labels losses [B, S], and with return_logits (losses, logits [B, S, V / tp]); without labels logits.
    bert: with lm_labels (losses [B, S], 0 where nothing is predicted, binary logits [B, 2] or None); without (logits, None).
    """

    def __init__(self, model, family, batch, returns_logits, checks=False):
        self._model, self._family, self._batch, self._returns_logits = model, family, batch, returns_logits
        self._checks = checks

    def _check(self, given):
        """The engine has computed the batch's tokens: others that are given here would not train."""
        tokens = self._batch["encoder_tokens" if self._family == "t5" else "tokens"].t()
        if not isinstance(given, torch.Tensor) or given.shape != tokens.shape or not torch.equal(given.long(), tokens):
            raise ValueError("forward_step() calls the model with other tokens than the data iterator gave, which the engine has "
                             "computed: change them in the dataset")

    def _logits(self):
        return self._model.logits().transpose(0, 1).contiguous()

    def __call__(self, *inputs, labels=None, lm_labels=None, **others):
        if self._checks:
            self._check(inputs[0] if inputs else others.get("input_ids"))
        has_labels = labels is not None or lm_labels is not None
        if self._family == "bert":
            if not has_labels:
                return self._logits(), None
            losses, binary = self._model.bert_scores()
            return spread(losses, self._batch), binary
        if not has_labels:
            return self._logits()
        losses = self._model.token_losses().t().contiguous()  # so that view() works, as on Megatron-LM's
        return (losses, self._logits()) if self._returns_logits else losses


class ClosureStep(TrainStep):
    """A train step whose forward step returns (output, closure), and the closure (loss, {name: loss}), or (sum of losses,
    number of tokens, {name: [sum, count] or a number}).

    Derive from it with closure(batch, model). Reported are the named losses: the first one as the model's first, and so on.
    """

    all_columns = True

    def __init__(self, trainer, hugging_face=False):
        self.trainer = trainer
        self.family = trainer.config.program
        self.reduced = []  # the dict of each micro-batch since take_reduced()
        self._hugging_face = hugging_face
        self._returns_logits = bool(trainer.config.return_logits)
        self._losses = 2 if self.family == "bert" and trainer.config.bert_binary_head else 1

    def item(self, batch):
        """The micro-batch as an item of a data iterator."""
        return Item(batch, self.family, self._hugging_face)

    def model_call(self, model, batch):
        """What closure() calls as the model."""
        return ModelCall(model, self.family, batch, self._returns_logits)

    def forward_step(self, model, batch):
        output, closure = self.closure(batch, self.model_call(model, batch))
        loss, *counts, reduced = closure(output)
        self.reduced.append({name: value.detach() if isinstance(value, torch.Tensor) else value
                             for name, value in reduced.items()})
        if counts and self._losses == 1:
            return loss, torch.as_tensor(counts[0]).clamp_min(1)
        if counts:
            loss = loss / torch.as_tensor(counts[0]).clamp_min(1)
        return self._terms(loss, [value for value in map(_number, reduced.values()) if value is not None])

    def _terms(self, loss, reported):
        """Losses whose values are those reported, and whose gradients together are the loss's. The model's last loss has the sum
        of what is left."""
        values = reported or [loss.detach()]
        last = self._losses - 1
        values = [*values[:last], sum(values[last:])] + [0.0] * (last - len(values))
        zero = loss - loss.detach()
        terms = [(value + (zero if i == 0 else 0.0 * zero), 1.0) for i, value in enumerate(values)]
        return (terms, {}) if self._losses > 1 else terms[0]

    def take_reduced(self):
        taken, self.reduced = self.reduced, []
        return taken


def _number(value):
    """A reported loss: a number, or [sum, count]; None for what has a shape."""
    if not isinstance(value, torch.Tensor):
        return value[0] / value[1] if isinstance(value, (list, tuple)) else float(value)
    value = value.detach().float()
    if value.dim() == 1 and value.numel() == 2:
        return value[0] / value[1]
    return value.reshape(()) if value.numel() == 1 else None
