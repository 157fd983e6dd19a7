"""The commands of the pages, each with what to type here and how it is tried in small. test_published_pages.py runs
them and keeps the table of docs/published-pages.md."""

import re
from dataclasses import dataclass, field

ACCELERATE, STUDY, WALK, README = "Accelerate", "Study", "Source walk", "README"
CHECKPOINT = "a run of GPT"


def ours(published):
    """A command of a page with `teratron` for its programs."""
    for theirs, own in (("python -m torch.distributed.launch ", "teratron launch "), ("accelerate launch ", "teratron launch "),
                        ("torchrun ", "teratron launch "), ("accelerate config ", "teratron config "), ("python ", "teratron ")):
        if published.startswith(theirs):
            return own + published.removeprefix(theirs)
    return published


@dataclass
class Line:
    page: str
    published: str
    seen: object  # of the finished process and its folder: a text
    small: list = field(default_factory=list)  # words added when it is tried
    paths: dict = field(default_factory=dict)  # value of a flag -> what is there
    drop: tuple = ()  # words left out when it is tried
    typed: str = ""  # if not ours(published)
    stdin: str = ""
    needs: tuple = ()  # names of things that must be there: see test_published_pages.py
    code: int = 0
    note: str = ""
    kept: str = ""  # its output, as a file of examples/output
    is_long: bool = False  # tried with TERATRON_LONG_TESTS, as others try nearly the same

    def command(self):
        return self.typed or ours(self.published)


def steps(done, _):
    return f"{len(re.findall(r' iteration +[0-9]+/ +[0-9]+ [|]', done.stdout))} steps, checkpoint {latest(_)}"


def latest(folder):
    return next(path.read_text() for path in sorted(folder.glob("**/latest_checkpointed_iteration.txt")))


def made(*names):
    def seen(_, folder):
        missing = [name for name in names if not (folder / name).exists()]
        return f"`{'`, `'.join(names)}`" if not missing else f"missing: {missing}"
    return seen


def answers(done, folder):
    return f"{len((folder / 'answers.jsonl').read_text().splitlines())} answers"


SIZES = ("--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 2 "
         "--global-batch-size 4 --train-iters 2 --lr-decay-iters 2 --eval-iters 0 --log-interval 1").split()
CPU = ["--device", "cpu"]
BERT = "--vocab-file bert-vocab.txt --tokenizer-type BertWordPieceLowerCase --split-sentences"
GPT = "--vocab-file gpt2-vocab.json --dataset-impl mmap --tokenizer-type GPT2BPETokenizer --merge-file gpt2-merges.txt --append-eod"
RESHAPE = "checkpoint_reshaping_and_interoperability.py"
PROMPTS = ["Are you human?", "The purpose of life is", "The arsenal was constructed at the request of",
           "How are you doing these days?"]
BATCH = " ".join(f'"{prompt}"' for prompt in PROMPTS)
CONFIG = "megatron_gpt_config.yaml"
PRETRAINING = (f'accelerate launch --config_file {CONFIG} examples/by_feature/megatron_lm_gpt_pretraining.py --config_name "gpt2-large" '
               '--tokenizer_name "gpt2-large" --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 --block_size 1024 '
               "--learning_rate 5e-5 --per_device_train_batch_size 24 --per_device_eval_batch_size 24 --num_train_epochs 5 "
               '--with_tracking --report_to "wandb" --output_dir "awesome_model"')
BERT_LAUNCH = ("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 "
               "pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 32 "
               "--seq-length 512 --max-position-embeddings 512 --train-iters 1000000 --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH "
               "--data-path $DATA_PATH --vocab-file bert-vocab.txt --data-impl mmap --split 949,50,1 --distributed-backend nccl "
               "--lr 0.0001 --lr-decay-style linear --min-lr 1.0e-5 --lr-decay-iters 990000 --weight-decay 1e-2 --clip-grad 1.0 "
               "--lr-warmup-fraction .01 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 --fp16")
ANSWERS_OF_THE_PAGE = "0\n2\n\n\n\nyes\n2\n\n2\n2\n\n\n\n4\nbf16\n"


def epochs(done, folder):
    count = len(re.findall(r"epoch \d: perplexity: \S+ eval_loss: \S+", done.stdout))
    ranks = len(re.findall(r"model parallel rank \(\d, \d\): \d+", done.stdout))
    return f"{count} epochs with their perplexity, parameters of {ranks} ranks, checkpoint {latest(folder)}"


def texts(count):
    def seen(done, _):
        found = sum(line.startswith(prompt) for line in done.stdout.splitlines() for prompt in PROMPTS)
        return f"{found} text{'s' * (count > 1)}" if found == count else f"{found} of {count} texts:\n{done.stdout}"
    return seen


def generate(call, flags, prompts=BATCH, count=4):
    return Line(ACCELERATE, f"model.megatron_generate({call})", texts(count), needs=(CHECKPOINT,), small=["--max-new-tokens", "8", *CPU],
                typed=f"teratron generate --load DIR --prompt {prompts} --max-new-tokens 64 {flags}".rstrip())


def script(page, name, variables, small, arguments="", kept="", is_long=False):
    return Line(page, f"examples/{name}", steps, typed=f"{variables} examples/{name}{arguments}", small=small, needs=("data", "script"),
                kept=kept, is_long=is_long)


GPT_FILES = "VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt DATA_PATH=my-gpt2_text_document"
ON_ONE = "GPUS_PER_NODE=4 CHECKPOINT_PATH=checkpoints/gpt2_tp_2_pp_2"

LINES = [
    Line(ACCELERATE, f'accelerate config --config_file "{CONFIG}"', made(CONFIG), stdin=ANSWERS_OF_THE_PAGE),
    Line(ACCELERATE, PRETRAINING, epochs, needs=("hub", "config"), paths={"gpt2-large": "tiny/gpt2"},
         small="--block_size 32 --learning_rate 5e-3 --per_device_train_batch_size 8 --num_train_epochs 2".split(),
         note="`wikitext` is a folder with `wiki.train.raw` and `wiki.valid.raw`", kept="megatron_lm_gpt_pretraining.txt"),
    Line(ACCELERATE, f'python {RESHAPE} --convert_checkpoint_from_megatron_to_transformers --load_path "gpt/iter_0005000" '
         '--save_path "gpt/trfs_checkpoint" --max_shard_size "200MB" --tokenizer_name "gpt2" --print-checkpoint-structure',
         made("gpt/trfs_checkpoint/config.json"), needs=(CHECKPOINT,), paths={"gpt/iter_0005000": CHECKPOINT}),
    Line(ACCELERATE, f'python checkpoint_utils/megatgron_gpt2/{RESHAPE} --load_path "gpt/trfs_checkpoint" --save_path '
         '"gpt/megatron_lm_checkpoint" --target_tensor_model_parallel_size 2 --target_pipeline_model_parallel_size 2 '
         '--target_data_parallel_size 2 --target_params_dtype "bf16" --make_vocab_size_divisible_by 128 --use_distributed_optimizer '
         "--print-checkpoint-structure",
         made("gpt/megatron_lm_checkpoint/latest_checkpointed_iteration.txt"), needs=(CHECKPOINT, "trfs")),
    generate("ids, mask, max_new_tokens=64, top_p=0.8, top_p_decay=0.5, temperature=0.9", "--top-p 0.8 --top-p-decay 0.5 --temperature 0.9"),
    generate("ids, mask, max_new_tokens=64, top_k=50, temperature=0.9", "--top-k 50 --temperature 0.9"),
    generate("ids, mask, max_new_tokens=64, add_BOS=True", "--add-bos"),
    generate("ids, mask, max_new_tokens=64, num_beams=20, length_penalty=1.5", "--num-beams 20 --length-penalty 1.5",
             '"The purpose of life is"', count=1),
    Line(ACCELERATE, "megatron_lm_gpt_generate.sh", answers, needs=(CHECKPOINT, "requests", "script"), small=["--max-new-tokens", "8"],
         kept="megatron_lm_gpt_generate.txt", is_long=True, typed="examples/megatron_lm_gpt_generate.sh DIR requests.jsonl answers.jsonl"),
    Line(STUDY, f"python tools/preprocess_data.py --input oscar-1GB.jsonl --output-prefix my-gpt2 {GPT}",
         made("my-gpt2_text_document.bin", "my-gpt2_text_document.idx"), needs=("corpus",), paths={"oscar-1GB.jsonl": "my-corpus.json"}),
    script(STUDY, "pretrain_gpt_distributed_with_mp.sh", f"GPUS_PER_NODE=2 CHECKPOINT_PATH=checkpoints/gpt2_2 {GPT_FILES}",
           [*SIZES, "--save-interval", "1"], arguments=" --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1", is_long=True),
    script(STUDY, "pretrain_gpt_distributed_with_mp.sh", f"GPUS_PER_NODE=2 CHECKPOINT_PATH=checkpoints/gpt2_2 {GPT_FILES}",
           [*SIZES, "--save-interval", "1"],
           arguments=" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2", is_long=True),
    script(STUDY, "pretrain_gpt_distributed_with_mp.sh", f"{ON_ONE} {GPT_FILES}", [*SIZES, "--save-interval", "1"],
           arguments=" --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", kept="pretrain_gpt_distributed_with_mp.txt",
           is_long=True),
    Line(WALK, BERT_LAUNCH, steps, needs=("data",), small=SIZES,
         paths={"8": "2", "$CHECKPOINT_PATH": "checkpoints", "$DATA_PATH": "my-bert_text_sentence"}),
    Line(README, f"python tools/preprocess_data.py --input my-corpus.json --output-prefix my-bert {BERT}",
         made("my-bert_text_sentence.bin", "my-bert_text_sentence.idx"), needs=("corpus",)),
    Line(README, f"python tools/preprocess_data.py --input my-corpus.json --output-prefix my-t5 {BERT}",
         made("my-t5_text_sentence.bin", "my-t5_text_sentence.idx"), needs=("corpus",)),
    Line(README, "python tools/preprocess_data.py --input my-corpus.json --output-prefix my-gpt2 " + GPT.replace("--dataset-impl mmap ", ""),
         made("my-gpt2_text_document.bin", "my-gpt2_text_document.idx"), needs=("corpus",)),
    script(README, "pretrain_bert.sh", "CHECKPOINT_PATH=checkpoints VOCAB_FILE=bert-vocab.txt DATA_PATH=my-bert_text_sentence", SIZES,
           kept="pretrain_bert.txt", is_long=True),
    script(README, "pretrain_gpt.sh", f"CHECKPOINT_PATH=checkpoints {GPT_FILES}", SIZES, kept="pretrain_gpt.txt"),
    script(README, "pretrain_t5.sh", "CHECKPOINT_PATH=checkpoints VOCAB_FILE=bert-vocab.txt DATA_PATH=my-bert_text_sentence",
           [*SIZES, *"--encoder-num-layers 2 --decoder-num-layers 2 --kv-channels 8 --ffn-hidden-size 32 --encoder-seq-length 16 "
            "--decoder-seq-length 8".split()], kept="pretrain_t5.txt"),
]
