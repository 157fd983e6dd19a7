"""Trains a causal language model of transformers on a text file, in the flow of transformers' run_clm_no_trainer.py with
Accelerate, whose names teratron.accelerate has: blocks of tokens, epochs, evaluation, checkpoints, resuming.

    teratron launch --nproc-per-node 4 -- $(which python) run_clm.py --config_name MODEL --tokenizer_name MODEL \\
        --train_file train.txt --validation_file valid.txt --block_size 128 --per_device_train_batch_size 8 \\
        --num_train_epochs 3 --checkpointing_steps epoch --output_dir out --tp_degree 2 --pp_degree 2 --num_micro_batches 2

MODEL is a folder with config.json and a tokenizer. The weights are random; with --model_name_or_path MODEL they are the folder's.
"""
import argparse
import math
from pathlib import Path

import teratron.accelerate
import torch
from teratron.accelerate import Accelerator, DistributedType, MegatronLMDummyScheduler, MegatronLMPlugin
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "config_name", "tokenizer_name", "resume_from_checkpoint", "checkpointing_steps"):
        parser.add_argument(f"--{name}")
    for name in ("train_file", "validation_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    for name, value in {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_train_epochs": 3, "block_size": 1024,
                        "num_warmup_steps": 0, "seed": 42, "tp_degree": 1, "pp_degree": 1, "num_micro_batches": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--max_train_steps", type=int)
    for name, value in {"learning_rate": 5e-5, "weight_decay": 0.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args(argv)


def blocks(path, tokenizer, size):
    """The ids of a text in blocks of one size; the rest is dropped."""
    ids = tokenizer(Path(path).read_text())["input_ids"]
    rows = torch.tensor(ids[:len(ids) // size * size]).view(-1, size)
    return [{"input_ids": row, "labels": row} for row in rows]


def optimizer_of(model, args):
    """AdamW without decay of biases and norms."""
    plain = [parameter for name, parameter in model.named_parameters() if parameter.dim() < 2]
    others = [parameter for name, parameter in model.named_parameters() if parameter.dim() >= 2]
    groups = [{"params": others, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.learning_rate, weight_decay=args.weight_decay)


def evaluate(model, loader):
    """The mean loss; it is averaged over the data-parallel ranks already."""
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            losses.append(model(**batch).loss)
    return torch.tensor(losses).mean().item()


def position_of(folder, steps_of_epoch):
    """The epoch and the step in it that a folder's name, epoch_N or step_N, stands for."""
    kind, _, number = Path(folder).name.partition("_")
    if kind not in ("epoch", "step") or not number.isdigit():
        raise ValueError(f"--resume_from_checkpoint {folder}: name a folder epoch_N or step_N")
    done = int(number) + 1 if kind == "epoch" else 0
    return (done, 0) if kind == "epoch" else divmod(int(number), steps_of_epoch)


def main(argv=None, world=None):
    args = parse_args(argv)
    plugin = MegatronLMPlugin(tp_degree=args.tp_degree, pp_degree=args.pp_degree, num_micro_batches=args.num_micro_batches,
                              other_megatron_args={"seed": args.seed})
    accelerator = Accelerator(megatron_lm_plugin=plugin, cpu=args.cpu, world=world)
    assert accelerator.distributed_type == DistributedType.MEGATRON_LM
    source = args.config_name or args.model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer_name or source)
    given = AutoModelForCausalLM.from_pretrained(source) if args.model_name_or_path else None
    torch_model = given if given is not None else AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))

    train = blocks(args.train_file, tokenizer, args.block_size)
    loaders = (torch.utils.data.DataLoader(train, shuffle=True, batch_size=args.per_device_train_batch_size),
               torch.utils.data.DataLoader(blocks(args.validation_file, tokenizer, args.block_size),
                                           batch_size=args.per_device_eval_batch_size))
    replicas = accelerator.num_processes // (args.tp_degree * args.pp_degree)
    step_size = args.per_device_train_batch_size * args.num_micro_batches * replicas
    steps = args.max_train_steps or args.num_train_epochs * math.ceil(len(train) / step_size)
    optimizer = optimizer_of(torch_model, args)
    # Its steps are those of all data-parallel ranks together.
    scheduler = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=steps * replicas,
                                         warmup_num_steps=args.num_warmup_steps * replicas)
    model, optimizer, scheduler, train_loader, eval_loader = accelerator.prepare(torch_model, optimizer, scheduler, *loaders)
    if given is not None:
        accelerator.trainer.load_state_dict(given.state_dict())
    total = accelerator.state.megatron_lm_plugin.global_batch_size
    accelerator.print(f"{len(train)} blocks, {total} a step, {steps} steps")

    first_epoch, skipped = 0, 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        first_epoch, skipped = position_of(args.resume_from_checkpoint, len(train_loader))
        train_loader.epoch = first_epoch
    report = []
    for epoch in range(first_epoch, args.num_train_epochs):
        model.train()
        losses = []
        for number, batch in enumerate(train_loader):
            if model.iteration >= steps:
                break
            if epoch == first_epoch and number < skipped:
                continue
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if (args.checkpointing_steps or "").isdigit() and model.iteration % int(args.checkpointing_steps) == 0:
                accelerator.save_state(str(Path(args.output_dir) / f"step_{model.iteration}"))
        eval_loss = evaluate(model, eval_loader)
        report.append({"epoch": epoch, "losses": losses, "eval_loss": eval_loss})
        accelerator.print(f"epoch {epoch}: perplexity: {math.exp(eval_loss)} eval_loss: {eval_loss}")
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(str(Path(args.output_dir) / f"epoch_{epoch}"))
    accelerator.wait_for_everyone()
    accelerator.save_state(args.output_dir)
    accelerator.end_training()
    return report


if __name__ == "__main__":
    main()
