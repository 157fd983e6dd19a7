// Small BERTs for layout tests.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "teratron/models/bert/bert_config.h"
#include "teratron/testing/layouts.h"

namespace teratron {

/// Four layers, without dropout.
BertConfig small_bert_config();
struct BertVariant {
  std::string name;
  BertConfig config;
};
/// Megatron-LM's BERT, that of Hugging Face, and further options.
std::vector<BertVariant> bert_variants();
/// A random combination of options.
BertConfig random_bert_config(std::mt19937& random);

/// Rows of 8 tokens, the last up to 3 of them padding, with two predictions each.
MicroBatch bert_batch(const BertConfig& config, int64_t step, FlatRange samples);
TestModel bert_model(const BertConfig& config);
/// bert_model() with its rows packed; `tensor_parallel_size` divides their tokens.
TestModel packed_bert_model(const BertConfig& config, int64_t tensor_parallel_size);
/// The lengths of the batch's rows.
std::vector<int64_t> bert_row_lengths(const MicroBatch& batch);

}  // namespace teratron
