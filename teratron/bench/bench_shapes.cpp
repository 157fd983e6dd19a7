#include "teratron/bench/bench_shapes.h"

#include <sstream>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// NullTokenizer adds one token (the end of document) to --vocab-size.
constexpr BenchShape shapes[] = {
    {"gpt2-124m",
     "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
     "--max-position-embeddings 1024 --micro-batch-size 64 --vocab-size 50256"},
    {"gpt2-345m",
     "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
     "--max-position-embeddings 1024 --micro-batch-size 32 --vocab-size 50256"},
    {"gpt2-large",
     "--num-layers 36 --hidden-size 1280 --num-attention-heads 20 --seq-length 1024 "
     "--max-position-embeddings 1024 --micro-batch-size 16 --vocab-size 50256"},
    {"gpt-1.5b",
     "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 "
     "--max-position-embeddings 4096 --micro-batch-size 4 --vocab-size 131071 --position-embedding-type "
     "rope"},
    {"llama-56m",
     "--num-layers 8 --hidden-size 512 --ffn-hidden-size 1408 --num-attention-heads 8 "
     "--group-query-attention --num-query-groups 4 --seq-length 512 --max-position-embeddings 512 "
     "--micro-batch-size 4 --vocab-size 31999 --position-embedding-type rope --rotary-base 500000 "
     "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights"},
    {"llama3-8b-12l",
     "--num-layers 12 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
     "--group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 "
     "--micro-batch-size 2 --vocab-size 128255 --position-embedding-type rope --rotary-base 500000 "
     "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights"},
    {"llama3-8b",
     "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
     "--group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 "
     "--micro-batch-size 1 --vocab-size 128255 --position-embedding-type rope --rotary-base 500000 "
     "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights"},
    {"qwen3-0.6b",
     "--num-layers 28 --hidden-size 1024 --ffn-hidden-size 3072 --num-attention-heads 16 --kv-channels 128 "
     "--group-query-attention --num-query-groups 8 --seq-length 2048 --max-position-embeddings 2048 "
     "--micro-batch-size 2 --global-batch-size 8 --vocab-size 151935 --position-embedding-type rope "
     "--rotary-base 1000000 --normalization RMSNorm --qk-layernorm --swiglu --disable-bias-linear"},
    {"qwen3-8b",
     "--num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32 --kv-channels 128 "
     "--group-query-attention --num-query-groups 8 --seq-length 2048 --max-position-embeddings 2048 "
     "--micro-batch-size 2 --global-batch-size 8 --vocab-size 151935 --position-embedding-type rope "
     "--rotary-base 1000000 --normalization RMSNorm --qk-layernorm --swiglu --disable-bias-linear "
     "--untie-embeddings-and-output-weights"},
    {"qwen3-30b-a3b-4l",
     "--num-layers 4 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 "
     "--group-query-attention --num-query-groups 4 --seq-length 4096 --max-position-embeddings 4096 "
     "--micro-batch-size 2 --vocab-size 151935 --position-embedding-type rope --rotary-base 1000000 "
     "--normalization RMSNorm --qk-layernorm --swiglu --disable-bias-linear "
     "--untie-embeddings-and-output-weights --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 "
     "--moe-aux-loss-coeff 1e-3 --moe-router-dtype fp32"},
    {"mixtral-8x7b-2l",
     "--num-layers 2 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
     "--group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 "
     "--micro-batch-size 2 --vocab-size 31999 --position-embedding-type rope --rotary-base 1000000 "
     "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
     "--num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --moe-router-dtype fp32"},
    {"mamba2-1.3b",
     "--hybrid-layer-pattern MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM --hidden-size 2048 "
     "--num-attention-heads 16 --mamba-num-heads 64 --mamba-head-dim 64 --mamba-num-groups 1 "
     "--mamba-state-dim 128 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 4 "
     "--vocab-size 50287 --position-embedding-type none --normalization RMSNorm --disable-bias-linear",
     "mamba"},
    {"nemotron-nano-4b",
     "--hybrid-layer-pattern M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M- --hidden-size 3136 "
     "--ffn-hidden-size 12544 --squared-relu --num-attention-heads 40 --kv-channels 128 "
     "--group-query-attention --num-query-groups 8 --mamba-num-heads 96 --mamba-head-dim 80 "
     "--mamba-num-groups 8 --mamba-state-dim 128 --seq-length 4096 --max-position-embeddings 4096 "
     "--micro-batch-size 2 --vocab-size 131071 --position-embedding-type none --normalization RMSNorm "
     "--disable-bias-linear --untie-embeddings-and-output-weights",
     "mamba"},
    {"bert-large",
     "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
     "--max-position-embeddings 512 --micro-batch-size 64 --vocab-size 30521",
     "bert"},
    {"t5-base",
     "--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12 "
     "--encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 --micro-batch-size 64 "
     "--vocab-size 30623",
     "t5"},
    {"t5-base-relative",
     "--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12 "
     "--encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 --micro-batch-size 64 "
     "--vocab-size 30623 --position-embedding-type relative",
     "t5"},
};

constexpr std::string_view common =
    "--mock-data --tokenizer-type NullTokenizer --hidden-dropout 0 --attention-dropout 0 "
    "--train-iters 20000 --lr 1e-4 --lr-decay-style constant --clip-grad 1.0 --weight-decay 0.1 "
    "--eval-iters 0 --log-interval 10 --log-format short";

void append_words(std::vector<std::string>& words, std::string_view text) {
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) words.push_back(word);
}

}  // namespace

std::span<const BenchShape> bench_shapes() {
  return shapes;
}

std::string bench_shape_names(const std::function<bool(const BenchShape&)>& has) {
  std::vector<std::string_view> names;
  for (const BenchShape& shape : shapes) {
    if (!has || has(shape)) names.push_back(shape.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

const BenchShape& find_bench_shape(std::string_view name) {
  for (const BenchShape& shape : shapes) {
    if (shape.name == name) return shape;
  }
  throw config_error({.what = fmt::format("unknown shape '{}'", printable(name)),
                      .where = "--shape",
                      .fix = "Use one of: " + bench_shape_names()});
}

std::vector<std::string> flags_of(const BenchShape& shape) {
  std::vector<std::string> words;
  append_words(words, common);
  append_words(words, shape.flags);
  return words;
}

}  // namespace teratron
