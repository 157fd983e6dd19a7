"""Models that a model_provider returns: the engine builds them as the settings say."""
import enum

import torch


class ModelType(enum.Enum):
    """Kinds of models, as Megatron-LM names them.

    Example:
        pretrain(datasets_provider, model_provider, ModelType.encoder_or_decoder, forward_step)
    """

    encoder_or_decoder = 1
    encoder_and_decoder = 2


class EngineModel(torch.nn.Module):
    """Stands for the engine's model of a family."""

    family = "gpt"

    def __init__(self, *, pre_process=True, post_process=True, **others):
        super().__init__()
        self.pre_process, self.post_process = pre_process, post_process
        self.options = others

    def settings(self):
        """Settings that the arguments of the class stand for."""
        return {}

    def forward(self, *_, **__):
        """RuntimeError: what pretrain() gives to forward_step() as the model is called."""
        raise RuntimeError(f"{type(self).__name__} is computed by the engine: call the model that forward_step() gets")


class GPTModel(EngineModel):
    """A GPT: in forward_step, model(tokens, position_ids, attention_mask, labels=labels) -> losses [B, S].

    Args:
        num_tokentypes, parallel_output, pre_process, post_process, config...: as Megatron-LM's; sizes are the settings'.

    Example:
        def model_provider(pre_process=True, post_process=True):
            return GPTModel(num_tokentypes=0, parallel_output=True, pre_process=pre_process, post_process=post_process)
    """

    def __init__(self, config=None, num_tokentypes=0, parallel_output=True, pre_process=True, post_process=True, **others):
        super().__init__(pre_process=pre_process, post_process=post_process, **others)


class BertModel(EngineModel):
    """A BERT: in forward_step, model(tokens, padding_mask, tokentype_ids=types, lm_labels=labels) -> (losses [B, S], 0 where
    nothing is predicted, binary logits [B, 2] or None).

    Args:
        add_binary_head: whether it predicts the order of sentences. num_tokentypes, parallel_output, pre_process,
            post_process, config...: as Megatron-LM's; sizes are the settings'.

    Example:
        BertModel(num_tokentypes=2, add_binary_head=args.bert_binary_head, parallel_output=True, pre_process=pre_process,
                  post_process=post_process)
    """

    family = "bert"

    def __init__(self, config=None, num_tokentypes=2, add_binary_head=True, parallel_output=True, pre_process=True,
                 post_process=True, **others):
        super().__init__(pre_process=pre_process, post_process=post_process, **others)
        self.add_binary_head = add_binary_head

    def settings(self):
        """The binary head."""
        return {"bert_binary_head": bool(self.add_binary_head)}


class T5Model(EngineModel):
    """A T5: in forward_step, model(tokens_enc, tokens_dec, enc_mask, dec_mask, enc_dec_mask, lm_labels=labels) -> losses [B, T].

    Args:
        num_tokentypes, parallel_output, pre_process, post_process, add_encoder, add_decoder, config...: as Megatron-LM's.

    Example:
        T5Model(num_tokentypes=0, parallel_output=True, pre_process=pre_process, post_process=post_process)
    """

    family = "t5"

    def __init__(self, config=None, num_tokentypes=0, parallel_output=True, pre_process=True, post_process=True, **others):
        super().__init__(pre_process=pre_process, post_process=post_process, **others)
