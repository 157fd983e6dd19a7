// Names of tensors in Megatron-LM's checkpoints, of every release, as Megatron-Core's, which are ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teratron {

enum class MegatronFamily : uint8_t { gpt, bert, t5 };

/// How tensor ranks share a tensor.
enum class MegatronSplit : uint8_t { none, rows, columns };

struct MegatronName {
  std::string name;        // ours, with the layer's number within its stage
  std::string stack = {};  // "encoder.layers.", "decoder.layers.", if it is a layer's
  int64_t layer = 0;       // within the stage
  std::string rest = {};   // after the layer's number

  std::string in_layer(int64_t number) const {
    return stack.empty() ? name : stack + std::to_string(number) + "." + rest;
  }
};

/// Where a path names an expert: "mlp.experts.local_experts.3.linear_fc1.weight", or, of grouped experts,
/// "mlp.experts.linear_fc1.weight3". A file numbers the experts of its rank.
struct ExpertNumber {
  size_t at = 0;      // of its digits in the path
  size_t length = 0;  // of these
  int64_t number = 0;
};
std::optional<ExpertNumber> expert_number(std::string_view path);

/// `path` joins the keys of nested dicts with '.'. Experts keep their numbers.
MegatronName megatron_name(std::string_view path, MegatronFamily family);

MegatronSplit split_of(std::string_view name);

}  // namespace teratron
