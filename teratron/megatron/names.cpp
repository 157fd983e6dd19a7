#include "teratron/megatron/names.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

namespace teratron {

namespace {

constexpr std::string_view legacy_root = "language_model.";

std::string_view below_root(std::string_view row) {
  constexpr std::string_view root = "language_model/";
  if (row.starts_with(root)) row.remove_prefix(root.size());
  return row;
}

// Whether a path begins as a row says, where keys of nested dicts are joined with '.'.
bool begins_with(std::string_view path, std::string_view row) {
  return path.size() >= row.size() && std::equal(row.begin(), row.end(), path.begin(), [](char a, char b) {
           return a == b || (a == '/' && b == '.');
         });
}

// By the row whose name is the longest of those that the path begins with: fused modules of Transformer
// Engine hold others.
std::string renamed(std::string_view path, const std::vector<MegatronRow>& rows) {
  const MegatronRow* best = nullptr;
  std::string_view theirs;
  const auto consider = [&](const MegatronRow& row, std::string_view whole) {
    const std::string_view name = below_root(whole);
    if (!name.empty() && name.size() > theirs.size() && begins_with(path, name)) best = &row, theirs = name;
  };
  for (const MegatronRow& row : rows) {
    consider(row, row.legacy);
    for (const std::string_view name : row.fused) consider(row, name);
    for (const std::string_view name : row.other) consider(row, name);
  }
  if (best == nullptr) return std::string(path);
  return std::string(best->ours) + std::string(path.substr(theirs.size()));
}

// The stack that the path begins with, whose name is cut off; nullptr if it is not in one.
const MegatronStack* strip_stack(std::string_view& path, const MegatronModel& model) {
  for (const MegatronStack& stack : model.stacks) {
    std::vector<std::string_view> names = stack.other;
    names.insert(names.end(), {stack.ours, stack.legacy});
    for (const std::string_view name : names) {
      if (!path.starts_with(name) || !path.substr(name.size()).starts_with('.')) continue;
      path.remove_prefix(name.size() + 1);
      return &stack;
    }
  }
  return nullptr;
}

constexpr std::string_view mtp_stack = "mtp.layers.";

constexpr std::string_view experts = "mlp.experts.", sequential = "local_experts.";

// "mlp.experts.3.linear_fc1.weight"; other names as they are.
std::string with_expert_first(const std::string& name) {
  const auto expert = expert_number(name);
  if (!expert || !name.starts_with(experts)) return name;
  const std::string number = name.substr(expert->at, expert->length);
  std::string module = name.substr(experts.size());
  if (module.starts_with(sequential)) {
    module.erase(0, sequential.size() + expert->length + 1);
  } else {
    module.erase(module.size() - expert->length);
  }
  return fmt::format("{}{}.{}", experts, number, module);
}

// "mlp.experts.#.linear_fc1.weight"
std::string without_number(std::string name) {
  if (!name.starts_with(experts)) return name;
  const size_t end = std::min(name.find_first_not_of("0123456789", experts.size()), name.size());
  return name.replace(experts.size(), end - experts.size(), "#");
}

}  // namespace

std::optional<ExpertNumber> expert_number(std::string_view path) {
  const size_t found = path.find(experts);
  if (found == path.npos) return std::nullopt;
  const size_t module = found + experts.size();
  size_t begin = module, end = path.size();
  if (path.substr(module).starts_with(sequential)) {
    begin += sequential.size();
    end = std::min(path.find('.', begin), path.size());
  } else {
    begin = path.find_last_not_of("0123456789") + 1;
    const std::string_view part = path.substr(module, begin - module);
    if (part != "linear_fc1.weight" && part != "linear_fc2.weight" && part != "linear_fc1.bias" &&
        part != "linear_fc2.bias")
      return std::nullopt;
  }
  ExpertNumber result{.at = begin, .length = end - begin};
  const auto [last, error] = std::from_chars(path.data() + begin, path.data() + end, result.number);
  if (begin >= end || error != std::errc() || last != path.data() + end || result.number > 1 << 20)
    return std::nullopt;
  return result;
}

// In core 0.12 to 0.15 the layer has the older name.
std::string_view mtp_layer_of(std::string_view rest) {
  for (const std::string_view layer : {mtp_layer, std::string_view("transformer_layer.")}) {
    if (rest.starts_with(layer)) return layer;
  }
  return {};
}

// A tensor of layers that predict further tokens.
static std::optional<MegatronName> mtp_name(std::string_view path, const MegatronModel& model) {
  if (model.mtp.empty() || !path.starts_with(mtp_stack)) return std::nullopt;
  path.remove_prefix(mtp_stack.size());
  MegatronName result{.name = {}, .stack = std::string(mtp_stack)};
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), result.layer);
  const auto length = static_cast<size_t>(end - path.data());
  if (error != std::errc() || length >= path.size() || result.layer < 0 || result.layer > 1 << 20)
    return std::nullopt;
  path.remove_prefix(length + 1);
  result.rest = renamed(path, model.mtp);
  if (const std::string_view layer = mtp_layer_of(path); !layer.empty()) {
    path.remove_prefix(layer.size());
    result.rest = std::string(mtp_layer) + with_expert_first(renamed(path, model.stacks[0].layer));
  }
  result.name = result.in_layer(result.layer);
  return result;
}

MegatronName megatron_name(std::string_view path, const MegatronModel& model) {
  if (path.starts_with(legacy_root)) path.remove_prefix(legacy_root.size());
  if (const auto name = mtp_name(path, model)) return *name;
  std::string_view name = path;
  const MegatronStack* const stack = strip_stack(name, model);
  if (stack == nullptr) return {.name = renamed(renamed(path, model.embeddings), model.heads)};
  const std::string prefix = std::string(stack->ours) + ".";
  if (name.starts_with("final_norm."))
    return {.name = prefix + std::string(stack->final_norm) + std::string(name.substr(10))};
  if (!name.starts_with("layers.")) return {.name = prefix + std::string(name)};
  name.remove_prefix(7);
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto length = static_cast<size_t>(end - name.data());
  if (error != std::errc() || length >= name.size() || layer < 0 || layer > 1 << 20)
    return {.name = prefix + "layers." + std::string(name)};
  name.remove_prefix(length + 1);
  MegatronName result{.name = {},
                      .stack = prefix + "layers.",
                      .layer = layer,
                      .rest = with_expert_first(renamed(name, stack->layer))};
  result.name = result.in_layer(layer);
  return result;
}

bool has_row(const MegatronModel& model, const MegatronName& name) {
  const auto is_in = [](const std::vector<MegatronRow>& rows, const std::string& whole) {
    const std::string module = whole.substr(0, whole.rfind('.') + 1);
    return std::ranges::any_of(
        rows, [&](const MegatronRow& row) { return row.ours == whole || row.ours == module; });
  };
  if (!model.mtp.empty() && name.stack == mtp_stack) {
    return name.rest.starts_with(mtp_layer)
               ? is_in(model.stacks[0].layer, without_number(name.rest.substr(mtp_layer.size())))
               : is_in(model.mtp, name.rest);
  }
  for (const MegatronStack& stack : model.stacks) {
    const std::string prefix = std::string(stack.ours) + ".";
    if (name.stack == prefix + "layers.") return is_in(stack.layer, without_number(name.rest));
    if (name.name.starts_with(prefix + std::string(stack.final_norm) + ".")) return true;
  }
  return is_in(model.embeddings, name.name) || is_in(model.heads, name.name);
}

const MegatronModel& recognized_model(const std::function<bool(std::string_view)>& any,
                                      const std::function<bool(std::string_view)>& has) {
  const MegatronModel* found = nullptr;
  for (const MegatronModel& model : megatron_models()) {
    const bool argued = std::ranges::any_of(model.arguments, has);
    if (argued || (model.signs.empty() && model.arguments.empty() ? found == nullptr
                                                                  : std::ranges::any_of(model.signs, any)))
      found = &model;
  }
  return *found;
}

std::string whole_models_only() {
  std::vector<std::string_view> names;
  for (const MegatronModel& model : megatron_models()) names.push_back(model.family);
  return fmt::format("Only whole checkpoints of these models are converted: {}", fmt::join(names, ", "));
}

bool is_buffer(std::string_view name) {
  return name.ends_with(".expert_bias");
}

bool is_always_wide(std::string_view name) {
  return is_buffer(name) || name.ends_with(".mixer.A_log") || name.ends_with(".mixer.D") ||
         name.ends_with(".mixer.dt_bias");
}

MegatronSplit split_of(std::string_view name) {
  for (const std::string_view rows : {"word_embeddings.weight",
                                      "output_layer.weight",
                                      "output_layer.bias",
                                      "linear_qkv.weight",
                                      "linear_qkv.bias",
                                      "linear_q.weight",
                                      "linear_q.bias",
                                      "linear_kv.weight",
                                      "linear_kv.bias",
                                      "linear_fc1.weight",
                                      "linear_fc1.bias",
                                      ".in_proj.weight",
                                      ".in_proj.bias",
                                      ".conv1d.weight",
                                      "linear_q_proj.weight",
                                      "linear_q_up_proj.weight",
                                      "linear_kv_up_proj.weight",
                                      "eh_proj.weight",
                                      ".conv1d.bias",
                                      ".dt_bias",
                                      ".A_log",
                                      ".mixer.D",
                                      ".mixer.norm.weight"}) {
    if (name.ends_with(rows)) return MegatronSplit::rows;
  }
  for (const std::string_view columns :
       {"linear_proj.weight", "linear_fc2.weight", ".out_proj.weight", "relative_attention_bias.weight"}) {
    if (name.ends_with(columns)) return MegatronSplit::columns;
  }
  return MegatronSplit::none;
}

}  // namespace teratron
