"""Train steps of closures: what Accelerate's custom_train_step_class is derived from.

A class may have the signatures of Accelerate up to 0.30, __init__(self, args), get_loss_func(self), or those of later
ones, which begin with the accelerator.
"""
import inspect
from argparse import Namespace

import torch

from .._closures import ClosureStep
from ._groups import set_trainer


def _positional(function):
    """How many arguments a function takes by position; None: any number."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def _call(function, accelerator, *rest):
    """Calls a function that may, or may not, take the accelerator first."""
    takes = _positional(function)
    return function(accelerator, *rest) if takes is None or takes > len(rest) else function(*rest)


def train_step_args(trainer):
    """The settings as the constructor of a train step gets them: by Megatron-LM's names, and Accelerate's beside."""
    config = trainer.config
    more = {
        "eos_token_id": trainer.tokenizer.eod,
        "megatron_dataset_flag": True,
        "model_return_dict": False,
        "model_type_name": config.program,
        "num_labels": None,
        "pretraining_flag": True,
        "bert_binary_head": getattr(config, "bert_binary_head", False),
    }
    return Namespace(**{**config.to_dict(), **more})


class AbstractTrainStep:
    """The parts of a train step, as closures that the constructor of a derived class stores in self.get_batch,
    self.loss_func and self.forward_step.

    Args:
        name: of the class.

    Example:
        teratron.Trainer(config, train_step=MyTrainStep, train_step_kwargs={"alpha": 0.25})
    """

    def __init__(self, name):
        self.name = name

    def get_batch_func(self, accelerator, megatron_dataset_flag):
        """-> get_batch(data_iterator)."""

    def get_forward_step_func(self):
        """-> forward_step(data_iterator, model) -> (output, closure); closure(output) -> (loss, {name: loss})."""

    def get_loss_func(self, accelerator):
        """-> the loss, whose arguments before the output forward_step() binds."""

    @classmethod
    def adapted_for(cls, trainer, kwargs):
        """A TrainStep that calls an object of this class, made with the training's settings and `kwargs`."""
        return EngineTrainStep(made(cls, train_step_args(trainer), kwargs), trainer)


def made(cls, args, kwargs, accelerator=None):
    """An object of a class with either signature."""
    takes = _positional(cls.__init__)  # with self
    return cls(accelerator, args, **kwargs) if takes is None or takes > 2 else cls(args, **kwargs)


class _FamilyTrainStep(AbstractTrainStep):
    """What the train steps of the families share: the constructor of either signature."""

    def __init__(self, *arguments):
        if not 1 <= len(arguments) <= 2:
            raise TypeError(f"{type(self).__name__} takes (args) or (accelerator, args), not {len(arguments)} arguments")
        args = arguments[-1]
        self._accelerator = arguments[0] if len(arguments) == 2 else None
        super().__init__(type(self)._family_name)
        self.args = args
        self.model_output_class = None
        self._store(args)

    def _forward_step(self):
        return self.get_forward_step_func(*self._forward_arguments)

    _forward_arguments = ()

    @staticmethod
    def _plugin(accelerator):
        return getattr(getattr(accelerator, "state", None), "megatron_lm_plugin", None)

    def _replaced(self, accelerator, name):
        """A function of the plugin that replaces a closure, or None."""
        return getattr(self._plugin(accelerator), name, None)


class GPTTrainStep(_FamilyTrainStep):
    """The train step of a GPT. Override get_loss_func, get_forward_step_func or get_batch_func.

    Args:
        args, or accelerator and args: the settings, as attributes.

    Attributes:
        eod_token, pad_token, reset_position_ids, reset_attention_mask, eod_mask_loss, model_output_class.

    Example:
        class Mine(GPTTrainStep):
            def get_loss_func(self):
                def loss_func(loss_mask, output_tensor):  # [B, S] both
                    loss = (output_tensor * loss_mask).sum() / loss_mask.sum()
                    return loss, {"lm loss": avg_losses_across_data_parallel_group([loss])[0]}
                return loss_func
    """

    _family_name = "GPTTrainStep"

    def _store(self, args):
        self.eod_token = self.pad_token = args.eos_token_id
        self.reset_position_ids = args.reset_position_ids
        self.reset_attention_mask = args.reset_attention_mask
        self.eod_mask_loss = args.eod_mask_loss
        self.get_batch = _call(self.get_batch_func, self._accelerator, args.megatron_dataset_flag)
        self.loss_func = _call(self.get_loss_func, self._accelerator)
        self.forward_step = self.get_forward_step_func()

    def get_batch_func(self, accelerator, megatron_dataset_flag):
        """-> get_batch(data_iterator) -> tokens, labels [B, S] int64, loss_mask [B, S] float32, attention_mask
        [1, 1, S, S] bool (True: hidden), position_ids [B, S]. What this pipeline stage does not have is None."""
        def get_batch(data_iterator):
            batch = next(data_iterator)
            tokens, labels, loss_mask, positions = (
                batch[name].t().contiguous() if name in batch else None
                for name in ("tokens", "labels", "loss_mask", "sequence_index"))
            length = positions.shape[1]
            hidden = torch.ones((1, 1, length, length), dtype=torch.bool, device=positions.device).triu(1)
            return tokens, labels, loss_mask, hidden, positions

        return self._replaced(accelerator, "custom_get_batch_function") or get_batch

    def get_loss_func(self, accelerator):
        """-> loss_func(loss_mask, output_tensor) -> (loss, {"lm loss": averaged})."""
        def loss_func(loss_mask, output_tensor):
            logits = None
            if isinstance(output_tensor, tuple):
                output_tensor, logits = output_tensor
            mask = loss_mask.reshape(-1).float()
            loss = (output_tensor.float().reshape(-1) * mask).sum() / mask.sum()
            return loss, with_averages({"lm loss": loss}, logits)

        return self._replaced(accelerator, "custom_loss_function") or loss_func

    def get_forward_step_func(self):
        """-> forward_step(data_iterator, model) -> (output, closure)."""
        def forward_step(data_iterator, model):
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output = model(tokens, position_ids, attention_mask, labels=labels)
            return output, lambda output: self.loss_func(loss_mask, output)

        return forward_step


class T5TrainStep(_FamilyTrainStep):
    """The train step of a T5, as GPTTrainStep.

    Example:
        teratron.Trainer(t5_config, train_step=T5TrainStep)
    """

    _family_name = "T5TrainStep"

    def _store(self, args):
        self.get_batch = _call(self.get_batch_func, self._accelerator, args.megatron_dataset_flag)
        self.loss_func = _call(self.get_loss_func, self._accelerator)
        self.forward_step = self.get_forward_step_func()

    def get_batch_func(self, accelerator, megatron_dataset_flag):
        """-> get_batch(data_iterator) -> tokens_enc [B, S] (None where an earlier pipeline stage has it), tokens_dec, loss_mask,
        labels [B, T], enc_mask [B, S, S], dec_mask [B, T, T], enc_dec_mask [B, T, S] (bool; True: hidden)."""
        def get_batch(data_iterator):
            batch = next(data_iterator)
            masks = [batch[name] < 0.5 for name in ("enc_mask", "dec_mask", "enc_dec_mask")]
            return (batch.get("text_enc"), batch["text_dec"], batch.get("loss_mask"), batch.get("labels"), *masks)

        return self._replaced(accelerator, "custom_get_batch_function") or get_batch

    def get_loss_func(self, accelerator):
        """-> loss_func(loss_mask, output_tensor [B, T]) -> (loss, {"lm loss": averaged})."""
        def loss_func(loss_mask, output_tensor):
            mask = loss_mask.reshape(-1).float()
            loss = (output_tensor.float().reshape(-1) * mask).sum() / mask.sum()
            return loss, with_averages({"lm loss": loss})

        return self._replaced(accelerator, "custom_loss_function") or loss_func

    def get_forward_step_func(self):
        """-> forward_step(data_iterator, model) -> (output, closure)."""
        def forward_step(data_iterator, model):
            tokens_enc, tokens_dec, loss_mask, labels, enc_mask, dec_mask, enc_dec_mask = self.get_batch(data_iterator)
            output = model(tokens_enc, tokens_dec, enc_mask, dec_mask, enc_dec_mask, lm_labels=labels)
            return output, lambda output: self.loss_func(loss_mask, output)

        return forward_step


class BertTrainStep(_FamilyTrainStep):
    """The train step of a BERT in pretraining. The model gives (lm_loss [B, S], sop_logits [B, 2] or None): losses of masked
    tokens, 0 elsewhere.

    Example:
        teratron.Trainer(bert_config, train_step=BertTrainStep)
    """

    _family_name = "BertTrainStep"

    def _store(self, args):
        self._forward_arguments = (args.pretraining_flag, args.bert_binary_head)
        self.get_batch = _call(self.get_batch_func, self._accelerator, args.megatron_dataset_flag)
        self.loss_func = _call(self.get_loss_func, self._accelerator, args.pretraining_flag, args.num_labels)
        self.forward_step = self.get_forward_step_func(*self._forward_arguments)

    def get_batch_func(self, accelerator, megatron_dataset_flag):
        """-> get_batch(data_iterator) -> tokens, types [B, S], sentence_order [B] or None, loss_mask, lm_labels, padding_mask
        [B, S]; what this pipeline stage does not have is None."""
        def get_batch(data_iterator):
            batch = next(data_iterator)
            return tuple(batch.get(name) for name in ("text", "types", "is_random", "loss_mask", "labels", "padding_mask"))

        return self._replaced(accelerator, "custom_get_batch_function") or get_batch

    def get_loss_func(self, accelerator, pretraining_flag, num_labels):
        """-> loss_func(loss_mask, sentence_order, output_tensor) -> (loss, {"lm loss": averaged, "sop loss": averaged})."""
        def loss_func(loss_mask, sentence_order, output_tensor):
            lm_loss, sop_logits = output_tensor
            mask = loss_mask.reshape(-1).float()
            losses = {"lm loss": (lm_loss.float().reshape(-1) * mask).sum() / mask.sum()}
            if sop_logits is not None:
                losses["sop loss"] = torch.nn.functional.cross_entropy(
                    sop_logits.view(-1, 2).float(), sentence_order.view(-1), ignore_index=-1)
            return sum(losses.values()), with_averages(losses)

        return self._replaced(accelerator, "custom_loss_function") or loss_func

    def get_forward_step_func(self, pretraining_flag, bert_binary_head):
        """-> forward_step(data_iterator, model) -> (output, closure)."""
        def forward_step(data_iterator, model):
            tokens, types, sentence_order, loss_mask, labels, padding_mask = self.get_batch(data_iterator)
            output = model(tokens, padding_mask, tokentype_ids=types if bert_binary_head else None, lm_labels=labels)
            return output, lambda output: self.loss_func(loss_mask, sentence_order, output)

        return forward_step


def with_averages(losses, logits=None):
    """The losses averaged over the data-parallel ranks, and the logits if there are some."""
    from ._groups import avg_losses_across_data_parallel_group
    averaged = avg_losses_across_data_parallel_group(list(losses.values()))
    reduced = {name: averaged[i] for i, name in enumerate(losses)}
    return reduced if logits is None else {**reduced, "logits": logits}


class EngineTrainStep(ClosureStep):
    """An AbstractTrainStep as the engine calls it.

    get_batch() of a class that overrides it is called on every rank before the forward pass, so that the tokens it changes
    are those that are trained; forward_step() gets the same result again.
    """

    def __init__(self, step, trainer):
        super().__init__(trainer, hugging_face=not step.args.megatron_dataset_flag if hasattr(step, "args") else False)
        self.step = step
        self._results = {}
        if not self._own_batches():
            self.get_batch = super().get_batch  # the engine's

    def _own_batches(self):
        functions = [getattr(cls, "get_batch_func", None) for cls in type(self.step).__mro__]
        first = next(function for function in functions if function is not None)
        return first.__module__ != __name__ or getattr(self.step.get_batch, "__module__", __name__) not in (__name__, None, "builtins")

    def get_batch(self, source):
        batch = source.next()
        result = self.step.get_batch(iter([self.item(batch)]))
        self._results[self._key(batch)] = result
        while len(self._results) > 4096:  # of forward passes without a loss
            self._results.pop(next(iter(self._results)))
        return batch.replace(**self._changed(batch, result))

    def _changed(self, batch, result):
        """The engine's columns that a get_batch() may have changed."""
        names = {"gpt": ("tokens", "labels", "loss_mask"), "bert": ("tokens", "types"),
                 "t5": ("encoder_tokens", "decoder_tokens", "loss_mask", "labels")}[self.family]
        return {name: value.t().contiguous().to(batch[name].dtype)
                for name, value in zip(names, result) if name in batch and value is not None}

    @staticmethod
    def _key(batch):
        return int(batch.sample_ids[0])

    def closure(self, batch, output_of):
        set_trainer(self.trainer)
        result = self._results.pop(self._key(batch), None)
        get_batch = self.step.get_batch
        if result is not None:
            self.step.get_batch = lambda iterator: result
        try:
            return self.step.forward_step(iter([self.item(batch)]), output_of)
        finally:
            self.step.get_batch = get_batch
