#include "teratron/megatron/convert.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/ckpt/index_ranges.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/megatron/checkpoint.h"
#include "teratron/megatron/rows/centered_norm.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/megatron/unknown_args.h"

namespace teratron {

using nlohmann::json;

namespace {

// A tensor that no model of the family has, or that one lacks, would be lost or random without a word.
void check_names(const std::map<std::string, TensorSourcePtr>& tensors, const MegatronSource& source) {
  const std::string& where = source.where;
  std::vector<Problem> problems;
  std::map<std::string, std::set<std::string>> of_layer;  // "decoder.layers.3" -> its tensors
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with("optimizer.")) continue;
    const MegatronName parsed = megatron_name(name, *source.model);
    if (!has_row(*source.model, parsed))
      problems.push_back(
          {fmt::format("tensor \"{}\" has no place in the model", printable(name)), where, {}});
    if (!parsed.stack.empty()) of_layer[fmt::format("{}{}", parsed.stack, parsed.layer)].insert(parsed.rest);
  }
  std::map<std::pair<std::string, std::string>, std::string> first_of;  // of a stack, by kind of layer
  for (const auto& [layer, names] : of_layer) {
    std::string parts;  // what a layer consists of
    for (const char* const part : {"mlp.router.weight", "mlp.linear_fc1.weight", "mixer.in_proj.weight",
                                   "self_attention.in_proj.weight", "self_attention.linear_qkv.weight",
                                   "self_attention.linear_kv_down_proj.weight"})
      parts += names.contains(part) ? '1' : '0';
    const std::pair kind(layer.substr(0, layer.rfind('.')), parts);
    const std::string& first = first_of.try_emplace(kind, layer).first->second;
    if (of_layer.at(first) != names)
      problems.push_back(
          {fmt::format("the layers {} and {} have different tensors", first, layer), where, {}});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

bool is_optimizer(const std::string& name) {
  return name.starts_with("optimizer.");
}

// Rows beyond the vocabulary are left out, of the weights and their optimizer state.
void cut_vocabulary(std::map<std::string, TensorSourcePtr>& tensors, int64_t vocabulary,
                    const std::string& where) {
  const auto embedding = tensors.find("embedding.word_embeddings.weight");
  if (embedding == tensors.end())
    throw checkpoint_error(
        {.what = "the checkpoint has no word embeddings", .where = where, .fix = whole_models_only()});
  const int64_t padded = embedding->second->shape()[0];
  if (vocabulary > padded)
    throw config_error(
        {.what = fmt::format("the vocabulary of {} tokens is larger than the embedding's {} rows", vocabulary,
                             padded),
         .where = where,
         .fix = "Use the tokenizer, or --vocab-size, of the checkpoint"});
  for (auto& [name, source] : tensors) {
    if (!name.ends_with("embedding.word_embeddings.weight") &&
        name.find("output_layer.") == std::string::npos)
      continue;
    std::vector<int64_t> shape = source->shape();
    if (shape[0] != padded)
      throw checkpoint_error(
          {.what = fmt::format("tensor \"{}\" has not {} rows", name, padded), .where = where});
    if (vocabulary > 0) shape[0] = vocabulary;
    source = slice_of(source, 0, shape);
  }
}

std::string tokenizer_type(const MegatronSource& source) {
  const json saved = saved_arg(source.args, "tokenizer_type");
  return saved.is_string() && saved != "" ? saved.get<std::string>() : std::string(source.model->tokenizer);
}

// What a run that continues this one must have in common with it.
void add_precision(const std::map<std::string, TensorSourcePtr>& tensors, std::optional<Dtype> dtype,
                   json& settings) {
  const Dtype weights = dtype.value_or(tensors.at("embedding.word_embeddings.weight")->dtype());
  settings["bf16"] = weights == Dtype::bf16;
  settings["fp16"] = weights == Dtype::f16;
  settings["optimizer"] = "adam";
}

// Models of fp32 have no copy of their weights in the optimizer, all others do.
void adapt_master_weights(std::map<std::string, TensorSourcePtr>& tensors, std::optional<Dtype> dtype) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!is_optimizer(name) && !is_buffer(name)) names.push_back(name);
  }
  for (const std::string& name : names) {
    TensorSourcePtr& weights = tensors.at(name);
    const bool fp32 = is_always_wide(name) || dtype.value_or(weights->dtype()) == Dtype::f32;
    auto master = tensors.extract("optimizer.param." + name);
    const TensorSourcePtr values = master ? master.mapped() : weights;
    if (!fp32) tensors["optimizer.param." + name] = values;
    if (fp32) weights = values;
  }
}

using Tensors = std::map<std::string, TensorSourcePtr>;

constexpr int64_t most_bytes = int64_t{16} << 20;

class JoinedCheckpoint final : public ImportedMegatron {
 public:
  JoinedCheckpoint(CheckpointInfo info, Tensors tensors, std::vector<std::string> notices, std::string format)
      : info_(std::move(info)),
        tensors_(std::move(tensors)),
        notices_(std::move(notices)),
        format_(std::move(format)) {
    for (const auto& [name, tensor] : tensors_) {
      info_.tensors[name] = {tensor->dtype(), tensor->shape()};
      info_.bytes += tensor->numel() * size_of(tensor->dtype());
    }
  }
  const CheckpointInfo& info() const override { return info_; }
  const std::vector<std::string>& notices() const override { return notices_; }
  const std::string& format() const override { return format_; }
  bool has_assumed_heads() const override {
    return std::ranges::find(notices_, assumed_heads) != notices_.end();
  }
  void read(const LocalTensor& target) const override {
    const TensorSource& tensor = *tensors_.at(target.name);
    const int64_t element = size_of(target.dtype), most = most_bytes / element;
    for (const IndexRange& range : index_ranges(target.shard, target.flat_begin, flat_end_of(target))) {
      // In blocks: columns of tensor ranks are joined through memory of the size of what is read.
      for (int64_t at = 0; at < range.length; at += most)
        tensor.read(range.global + at, range.global + std::min(at + most, range.length),
                    static_cast<char*>(target.data) + (range.local + at) * element);
    }
  }

 private:
  CheckpointInfo info_;
  Tensors tensors_;
  std::vector<std::string> notices_;
  std::string format_;
};

std::vector<std::string> notices_of(const MegatronCheckpoint& checkpoint, const MegatronImport& request,
                                    int64_t vocabulary) {
  std::vector<std::string> notices = checkpoint.notices();
  const auto has_heads = [](const json& settings) { return settings.contains("num_attention_heads"); };
  if (checkpoint.source().args == nullptr && !has_heads(request.settings) && !has_heads(request.otherwise))
    notices.emplace_back(assumed_heads);
  if (const std::vector<std::string> unknown = unknown_arguments(checkpoint.source().args); !unknown.empty())
    notices.push_back(fmt::format(
        "the checkpoint has arguments that Megatron-LM has not: {}; if one of them changes what the model "
        "computes, this one computes something else",
        printable(fmt::format("{}", fmt::join(unknown, ", ")), 400)));
  if (vocabulary == 0)
    notices.emplace_back(
        "the size of the vocabulary is not known, so that its padding stays: give --vocab-size or the "
        "tokenizer's files to cut it off");
  return notices;
}

// The rows of the vocabulary without padding; 0: not known.
int64_t choose_vocabulary(const MegatronImport& request, const MegatronSource& source, json& settings) {
  if (const int64_t given = request.settings.value("vocab_size", int64_t{0}); given > 0) return given;
  const int64_t saved = saved_vocabulary(source.args);
  const int64_t counted = request.vocabulary ? request.vocabulary(tokenizer_type(source), settings) : 0;
  if (request.saved_vocabulary_first && saved > 0) return saved;
  if (counted > 0) return counted;
  return saved > 0 ? saved : request.otherwise.value("vocab_size", int64_t{0});
}

}  // namespace

std::unique_ptr<ImportedMegatron> import_megatron(const MegatronImport& request) {
  const auto checkpoint = open_megatron_checkpoint(request.source, request.step, request.optimizer);
  const MegatronSource source = checkpoint->source();
  json settings = megatron_settings(source, request.settings, request.otherwise);
  const int64_t vocabulary = choose_vocabulary(request, source, settings);
  Tensors tensors = checkpoint->tensors(settings);
  const bool has_optimizer =
      std::ranges::any_of(tensors, [](const auto& tensor) { return is_optimizer(tensor.first); });
  check_names(tensors, source);
  for (auto& [name, tensor] : tensors) {
    const bool is_weight = !is_optimizer(name) || name.starts_with("optimizer.param.");
    if (is_weight && is_centered_there(name, settings)) tensor = plus(tensor, 1.0F);
  }
  cut_vocabulary(tensors, vocabulary, source.where);
  settings["vocab_size"] = tensors.at("embedding.word_embeddings.weight")->shape()[0];
  if (settings.contains("tokenizer_vocab_size")) settings["tokenizer_vocab_size"] = settings["vocab_size"];
  if (has_optimizer) {
    adapt_master_weights(tensors, request.dtype);
    add_precision(tensors, request.dtype, settings);
  }
  const json state = checkpoint->state();
  CheckpointInfo info{.path = request.source,
                      .iteration = state.value("iteration", int64_t{0}),
                      .config = settings.dump(),
                      .state = state.dump()};
  return std::make_unique<JoinedCheckpoint>(std::move(info), std::move(tensors),
                                            notices_of(*checkpoint, request, vocabulary),
                                            checkpoint->format());
}

}  // namespace teratron
