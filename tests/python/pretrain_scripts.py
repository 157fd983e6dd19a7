"""Scripts of pretrain(): of BERT as a walk through Megatron-LM's source quotes it, and of GPT and T5 in its shape, with
`megatron` replaced by `teratron.megatron` in their imports."""

BERT = '''
from functools import partial

import torch
import torch.nn.functional as F

from teratron.megatron import get_args, get_timers, mpu, print_rank_0
from teratron.megatron.data.dataset_utils import build_train_valid_test_datasets
from teratron.megatron.model import BertModel, ModelType
from teratron.megatron.training import pretrain
from teratron.megatron.utils import average_losses_across_data_parallel_group


def model_provider(pre_process=True, post_process=True):
    """Build the model."""
    print_rank_0('building BERT model ...')
    args = get_args()
    num_tokentypes = 2 if args.bert_binary_head else 0
    model = BertModel(
        num_tokentypes=num_tokentypes,
        add_binary_head=args.bert_binary_head,
        parallel_output=True,
        pre_process=pre_process,
        post_process=post_process)
    return model


def get_batch(data_iterator):
    """Build the batch."""
    # Items and their type.
    keys = ['text', 'types', 'labels', 'is_random', 'loss_mask', 'padding_mask']
    datatype = torch.int64
    # Broadcast data.
    if data_iterator is not None:
        data = next(data_iterator)
    else:
        data = None
    data_b = mpu.broadcast_data(keys, data, datatype)
    # Unpack.
    tokens = data_b['text'].long()
    types = data_b['types'].long()
    sentence_order = data_b['is_random'].long()
    loss_mask = data_b['loss_mask'].float()
    lm_labels = data_b['labels'].long()
    padding_mask = data_b['padding_mask'].long()
    return tokens, types, sentence_order, loss_mask, lm_labels, padding_mask


def loss_func(loss_mask, sentence_order, output_tensor):
    token_losses, order_logits = output_tensor
    weights = loss_mask.reshape(-1).float()
    lm_loss = torch.sum(token_losses.float().view(-1) * weights) / weights.sum()
    if order_logits is None:
        averaged = average_losses_across_data_parallel_group([lm_loss])
        return lm_loss, {'lm loss': averaged[0]}
    sop_loss = F.cross_entropy(order_logits.view(-1, 2).float(), sentence_order.view(-1), ignore_index=-1)
    averaged = average_losses_across_data_parallel_group([lm_loss, sop_loss])
    return lm_loss + sop_loss, {'lm loss': averaged[0], 'sop loss': averaged[1]}


def forward_step(data_iterator, model):
    """Forward step."""
    args = get_args()
    timers = get_timers()
    # Get the batch.
    timers('batch-generator').start()
    tokens, types, sentence_order, loss_mask, lm_labels, padding_mask = get_batch(data_iterator)
    timers('batch-generator').stop()
    if not args.bert_binary_head:
        types = None
    # Forward pass through the model.
    output_tensor = model(tokens, padding_mask, tokentype_ids=types, lm_labels=lm_labels)
    return output_tensor, partial(loss_func, loss_mask, sentence_order)


def train_valid_test_datasets_provider(train_val_test_num_samples):
    """Build train, valid, and test datasets."""
    args = get_args()
    print_rank_0('> building train, validation, and test datasets '
                 'for BERT ...')
    train_ds, valid_ds, test_ds = build_train_valid_test_datasets(
        data_prefix=args.data_path,
        data_impl=args.data_impl,
        splits_string=args.split,
        train_valid_test_num_samples=train_val_test_num_samples,
        max_seq_length=args.seq_length,
        masked_lm_prob=args.mask_prob,
        short_seq_prob=args.short_seq_prob,
        seed=args.seed,
        skip_warmup=(not args.mmap_warmup),
        binary_head=args.bert_binary_head)
    print_rank_0("> finished creating BERT datasets ...")
    return train_ds, valid_ds, test_ds


if __name__ == "__main__":
    pretrain(train_valid_test_datasets_provider, model_provider,
             ModelType.encoder_or_decoder,
             forward_step, args_defaults={'tokenizer_type': 'BertWordPieceLowerCase'})
'''

GPT = '''
import os
from functools import partial

import torch

from teratron.megatron import get_args, get_num_microbatches, get_timers, get_tokenizer, print_rank_0, print_rank_last
from teratron.megatron.core import mpu, tensor_parallel
from teratron.megatron.core.enums import ModelType
from teratron.megatron.data.gpt_dataset import build_train_valid_test_datasets
from teratron.megatron.model import GPTModel
from teratron.megatron.training import pretrain
from teratron.megatron.utils import get_ltor_masks_and_position_ids


def model_provider(pre_process=True, post_process=True):
    print_rank_0('building GPT model ...')
    return GPTModel(num_tokentypes=0, parallel_output=True, pre_process=pre_process, post_process=post_process)


def get_batch(data_iterator):
    args, tokenizer = get_args(), get_tokenizer()
    data = next(data_iterator) if data_iterator is not None else None
    text = tensor_parallel.broadcast_data(['text'], data, torch.int64)['text'].long()
    tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    attention_mask, loss_mask, position_ids = get_ltor_masks_and_position_ids(
        tokens, tokenizer.eod, args.reset_position_ids, args.reset_attention_mask, args.eod_mask_loss)
    return tokens, labels, loss_mask, attention_mask, position_ids


def loss_func(loss_mask, output_tensor):
    losses, weights = output_tensor.float(), loss_mask.view(-1).float()
    total = torch.sum(losses.view(-1) * weights)
    if get_args().count_tokens:  # the form of later versions
        sums = torch.stack([total.detach(), weights.sum()])
        torch.distributed.all_reduce(sums, group=mpu.get_data_parallel_group())
        return total, weights.sum().int(), {'lm loss': sums}
    mean = total / weights.sum()
    reported = mean.detach().clone()
    torch.distributed.all_reduce(reported, group=mpu.get_data_parallel_group())
    return mean, {'lm loss': reported / mpu.get_data_parallel_world_size()}


def forward_step(data_iterator, model):
    assert mpu.is_pipeline_last_stage() and get_num_microbatches() > 0
    tokens, labels, loss_mask, attention_mask, position_ids = get_batch(data_iterator)
    if get_args().changes_tokens:
        tokens = tokens + 1
    output = model(tokens, position_ids, attention_mask, labels=labels)
    return output, partial(loss_func, loss_mask)


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return {'text': torch.tensor([(i + s) % 50 for s in range(get_length + 1)])}


get_length = 16


def datasets_provider(counts):
    args = get_args()
    print_rank_0('> counts', *counts)
    if args.counting:
        return Counting(), Counting(), None
    return build_train_valid_test_datasets(data_prefix=args.data_path, splits_string=args.split,
                                           train_valid_test_num_samples=counts, seq_length=args.seq_length, seed=args.seed)


def extra_args(parser):
    group = parser.add_argument_group(title='of the script')
    for name in ('--count-tokens', '--counting', '--changes-tokens'):
        group.add_argument(name, action='store_true')
    return parser


def main(argv=None, world=None):
    return pretrain(datasets_provider, model_provider, ModelType.encoder_or_decoder, forward_step,
                    extra_args_provider=extra_args, args_defaults={'tokenizer_type': 'NullTokenizer', 'vocab_size': 50},
                    argv=argv, world=world)


if __name__ == '__main__':
    main()
'''

T5 = '''
from functools import partial

import torch

from teratron.megatron import get_args, mpu, print_rank_0
from teratron.megatron.data.dataset_utils import build_train_valid_test_datasets
from teratron.megatron.model import ModelType, T5Model
from teratron.megatron.training import pretrain
from teratron.megatron.utils import average_losses_across_data_parallel_group


def model_provider(pre_process=True, post_process=True, add_encoder=True, add_decoder=True):
    return T5Model(num_tokentypes=0, parallel_output=True, pre_process=pre_process, post_process=post_process,
                   add_encoder=add_encoder, add_decoder=add_decoder)


def loss_func(loss_mask, output_tensor):
    weights = loss_mask.view(-1)
    loss = torch.sum(output_tensor.float().view(-1) * weights) / weights.sum()
    return loss, {'lm loss': average_losses_across_data_parallel_group([loss])[0]}


def forward_step(data_iterator, model):
    keys = ['text_enc', 'text_dec', 'labels', 'loss_mask', 'enc_mask', 'dec_mask', 'enc_dec_mask']
    data = mpu.broadcast_data(keys, next(data_iterator), torch.int64)
    masks = [data[name] < 0.5 for name in keys[4:]]
    output = model(data['text_enc'].long(), data['text_dec'].long(), *masks, tokentype_ids=None, lm_labels=data['labels'].long())
    return output, partial(loss_func, data['loss_mask'].float())


def datasets_provider(counts):
    args = get_args()
    return build_train_valid_test_datasets(data_prefix=args.data_path, splits_string=args.split, train_valid_test_num_samples=counts,
                                           max_seq_length=args.encoder_seq_length, max_seq_length_dec=args.decoder_seq_length,
                                           masked_lm_prob=args.mask_prob, seed=args.seed, dataset_type='t5')


def main(argv=None, world=None):
    return pretrain(datasets_provider, model_provider, ModelType.encoder_and_decoder, forward_step, argv=argv, world=world)
'''
