// Names of tensors in Megatron-LM's checkpoints, of every release, as Megatron-Core's, which are ours.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "teratron/models/megatron_model.h"

namespace teratron {

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

/// How `rest`, after "mtp.layers.0.", begins where it is of the layer within: "mtp_model_layer.", or the
/// older "transformer_layer.". Else empty.
std::string_view mtp_layer_of(std::string_view rest);
/// The first of these, our name.
inline constexpr std::string_view mtp_layer = "mtp_model_layer.";

/// `path` joins the keys of nested dicts with '.'. Our own names stay as they are, and experts keep their
/// numbers.
MegatronName megatron_name(std::string_view path, const MegatronModel& model);

/// Whether one of the model's rows is the tensor's, by its name here.
bool has_row(const MegatronModel& model, const MegatronName& name);

/// The model of a checkpoint in which `any(part)` says whether a name contains this part, `has(argument)`
/// whether an argument is saved and not empty.
const MegatronModel& recognized_model(const std::function<bool(std::string_view)>& any,
                                      const std::function<bool(std::string_view)>& has);

/// UserError(checkpoint)'s advice: what can be converted.
std::string whole_models_only();

MegatronSplit split_of(std::string_view name);

/// Whether a tensor is a buffer, which no optimizer updates: the bias of a router's choice.
bool is_buffer(std::string_view name);

/// Whether a tensor is in fp32 in models of every dtype: a buffer, or what time steps and decays of Mamba-2
/// are made of. The optimizer has no other copy of it.
bool is_always_wide(std::string_view name);

}  // namespace teratron
