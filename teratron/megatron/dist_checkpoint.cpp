#include "teratron/megatron/dist_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/dist_names.h"
#include "teratron/megatron/dist_tensor.h"
#include "teratron/megatron/merge/merge.h"
#include "teratron/megatron/optimizer/optimizer_groups.h"
#include "teratron/megatron/rank_files.h"
#include "teratron/megatron/rows/row_segments.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/megatron/structure.h"
#include "teratron/megatron/train_state.h"
#include "teratron/optim/rules/adam_states.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

constexpr int64_t most_layers = 1 << 16;

[[noreturn]] void refuse_dist(const std::string& what, const std::string& where) {
  throw checkpoint_error({.what = what, .where = where, .fix = whole_models_only()});
}

void check_complete(const fs::path& folder) {
  const std::string where = printable(folder.string(), 4096);
  std::error_code ignored;
  if (!fs::exists(folder / "metadata.json", ignored))
    throw checkpoint_error(
        {.what = "the checkpoint has no metadata.json, which is written last: its save was cut off",
         .where = where,
         .fix = "Use another iteration (--ckpt-step)"});
  const json about =
      read_json(folder / "metadata.json", {.kind = ExitCode::checkpoint, .max_bytes = size_t{1} << 20});
  const json named = about.is_object() ? about.value("sharded_backend", json()) : json();
  const std::string backend = named.is_string() ? named.get<std::string>() : "";
  if (backend != "torch_dist")
    throw checkpoint_error(
        {.what = fmt::format("checkpoints of format '{}' are not read", printable(backend)),
         .where = where,
         .fix = "Convert it with Megatron-LM to torch_dist or torch"});
  if (!fs::is_regular_file(folder / ".metadata", ignored))
    throw checkpoint_error(
        {.what = "the checkpoint has no file .metadata, which says where its tensors are",
         .where = where,
         .fix = "Copy the whole folder, hidden files too, or use another iteration (--ckpt-step)"});
}

class DistCheckpoint final : public MegatronCheckpoint {
 public:
  DistCheckpoint(const fs::path& folder, bool with_optimizer)
      : files_(std::make_shared<DistFiles>(folder)),
        where_(printable(folder.string(), 4096)),
        metadata_(parse_dist_metadata(
            read_text(folder / ".metadata", {.kind = ExitCode::checkpoint, .max_bytes = size_t{1} << 28}),
            where_ + "/.metadata")) {
    open_common();
    find_model();
    for (const auto& [key, tensor] : metadata_.tensors) {
      if (!key.starts_with("optimizer.")) add(key, "", tensor_of_chunks(files_, key, tensor));
    }
    if (with_optimizer) add_states();
  }

  MegatronSource source() const override {
    MegatronSource source{.model = model_, .args = common_->find("args"), .where = where_};
    for (const auto& [name, tensor] : tensors_) {
      if (!name.starts_with("optimizer.")) source.shapes[name] = tensor->shape();
    }
    return source;
  }
  std::map<std::string, TensorSourcePtr> tensors(const json& settings) const override {
    std::map<std::string, TensorSourcePtr> result = tensors_;
    if (settings["untie_embeddings_and_output_weights"] == false) {
      std::erase_if(result, [](const auto& entry) { return entry.first.ends_with("output_layer.weight"); });
    }
    return result;
  }
  json state() const override;
  std::vector<std::string> notices() const override { return notices_; }
  std::string format() const override { return "torch_dist"; }
  bool has_optimizer() const override { return has_optimizer_; }
  void print_structure(const PrintLine& print_line) const override {
    teratron::print_structure(*common_, print_line);
    for (const std::string& name : metadata_.order)
      print_tensor(name, metadata_.tensors.at(name).shape, print_line);
  }
  int64_t verify() const override;

 private:
  void open_common();
  void find_model();
  void add(const std::string& key, const std::string& prefix, const TensorSourcePtr& tensor);
  void add_of_layer(const LayerKey& layer, const std::string& prefix, const TensorSourcePtr& tensor);
  void add_one(const std::string& name, const std::string& prefix, TensorSourcePtr tensor);
  TensorSourcePtr joined_rows(const std::string& name, const std::vector<TensorSourcePtr>& parts) const;
  std::vector<TensorSourcePtr> rows_of(const std::string& key, const TensorSourcePtr& tensor) const;
  void add_states();
  TensorSourcePtr state_tensor(const std::string& key, const DistTensor& weight,
                               const DistTensor& state) const;

  std::shared_ptr<const DistFiles> files_;
  std::string where_;
  DistMetadata metadata_;
  std::unique_ptr<const TorchFile> common_file_;
  const PickleValue* common_ = nullptr;  // a dict
  const MegatronModel* model_ = nullptr;
  std::map<std::string, TensorSourcePtr> tensors_;                            // by our names
  std::map<std::string, std::pair<TensorSourcePtr, TensorSourcePtr>> gated_;  // gates and ups of experts
  std::map<std::string, std::vector<TensorSourcePtr>> segments_;              // of rows, in order
  std::vector<std::string> notices_;
  bool has_optimizer_ = false;
};

void DistCheckpoint::open_common() {
  const fs::path file = files_->folder() / "common.pt";
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    common_file_ = std::make_unique<const TorchFile>(file);
  } else if (const auto item = metadata_.items.find("common_state/shard_0_1");
             item != metadata_.items.end()) {
    common_file_ =
        std::make_unique<const TorchFile>(files_->bytes_of(item->second), where_ + ", common_state");
  } else {
    refuse_dist("there is neither common.pt nor an item common_state", where_);
  }
  common_ = &common_file_->root();
  if (common_->is(Kind::list) && common_->items().size() == 1) common_ = common_->items()[0];
  if (!common_->is(Kind::dict)) refuse_dist("the common state is not a dict", where_);
}

void DistCheckpoint::find_model() {
  const auto any = [this](std::string_view part) {
    return std::ranges::any_of(metadata_.tensors, [part](const auto& entry) {
      return !entry.first.starts_with("optimizer.") && entry.first.find(part) != std::string::npos;
    });
  };
  const PickleValue* const args = common_->find("args");
  model_ = &recognized_model(any, [args](std::string_view name) { return has_value(args, name); });
}

// `key` without the prefix of a state, which `prefix` is in our names.
void DistCheckpoint::add(const std::string& key, const std::string& prefix, const TensorSourcePtr& tensor) {
  if (key.ends_with("_extra_state")) return;
  const std::optional<LayerKey> layer = layer_key(key);
  if (!layer) return add_one(megatron_name(key, *model_).name, prefix, tensor);
  if (layer->number >= 0) return add_of_layer(*layer, prefix, tensor);
  const std::vector<TensorSourcePtr> rows = rows_of(key, tensor);
  for (size_t i = 0; i < rows.size(); ++i)
    add_of_layer({layer->stack, layer->rest, static_cast<int64_t>(i)}, prefix, rows[i]);
}

// The tensors along the first dimension.
std::vector<TensorSourcePtr> DistCheckpoint::rows_of(const std::string& key,
                                                     const TensorSourcePtr& tensor) const {
  const std::vector<int64_t>& shape = tensor->shape();
  if (shape.size() < 2 || shape[0] < 1 || shape[0] > most_layers)
    refuse_dist(fmt::format("tensor \"{}\" does not hold a row of layers or experts", printable(key)),
                where_);
  const std::vector<int64_t> of_row(shape.begin() + 1, shape.end());
  const int64_t elements = tensor->numel() / shape[0];
  std::vector<TensorSourcePtr> rows;
  for (int64_t i = 0; i < shape[0]; ++i) rows.push_back(slice_of(tensor, i * elements, of_row));
  return rows;
}

TensorSourcePtr DistCheckpoint::joined_rows(const std::string& name,
                                            const std::vector<TensorSourcePtr>& parts) const {
  std::vector<int64_t> shape = parts[0]->shape();
  for (const TensorSourcePtr& part : parts) {
    std::vector<int64_t> same = part->shape();
    if (!same.empty()) same[0] = shape.at(0);
    if (same != parts[0]->shape() || part->dtype() != parts[0]->dtype())
      refuse_dist(fmt::format("the parts of \"{}\" differ", printable(name)), where_);
  }
  shape[0] = 0;
  for (const TensorSourcePtr& part : parts) shape[0] += part->shape()[0];
  return concatenated(parts, shape);
}

// To core 0.14 one tensor has the experts of a layer; later each has its own, with gates and ups apart.
void DistCheckpoint::add_of_layer(const LayerKey& layer, const std::string& prefix,
                                  const TensorSourcePtr& tensor) {
  const std::string in_layer = layer.layer();
  const auto add_named = [&](const std::string& rest, const TensorSourcePtr& one) {
    add_one(megatron_name(in_layer + rest, *model_).name, prefix, one);
  };
  if (const size_t end = layer.rest.rfind('.'); end != std::string::npos) {
    const std::string whole = layer.rest.substr(0, end), name = layer.rest.substr(end + 1);
    const std::vector<std::string_view> names = segment_names(whole);
    if (const auto found = std::ranges::find(names, name); found != names.end()) {
      std::vector<TensorSourcePtr>& parts = segments_[prefix + in_layer + whole];
      parts.resize(names.size());
      parts[static_cast<size_t>(found - names.begin())] = tensor;
      if (std::ranges::find(parts, nullptr) == parts.end()) add_named(whole, joined_rows(whole, parts));
      return;
    }
  }
  if (!layer.rest.starts_with(experts_of_layer)) return add_named(layer.rest, tensor);
  const std::string of_expert = layer.rest.substr(experts_of_layer.size());
  if (of_expert.find_first_of("0123456789") != 0) {
    const std::vector<TensorSourcePtr> experts = rows_of(in_layer + layer.rest, tensor);
    for (size_t e = 0; e < experts.size(); ++e)
      add_named(name_of_expert(layer.rest, static_cast<int64_t>(e)), experts[e]);
    return;
  }
  const std::string name = "mlp.experts." + of_expert;
  const bool gate = name.ends_with("_w");
  if (!gate && !name.ends_with("_v")) return add_named(name, tensor);
  const std::string whole = name.substr(0, name.size() - 2);
  auto& [gates, ups] = gated_[prefix + in_layer + whole];
  (gate ? gates : ups) = tensor;
  if (!gates || !ups) return;
  if (gates->shape() != ups->shape() || gates->dtype() != ups->dtype())
    refuse_dist(fmt::format("the gates and ups of \"{}\" differ", printable(in_layer + whole)), where_);
  std::vector<int64_t> shape = gates->shape();
  shape.at(0) *= 2;
  add_named(whole, concatenated({gates, ups}, shape));
}

void DistCheckpoint::add_one(const std::string& name, const std::string& prefix, TensorSourcePtr tensor) {
  if (tensor->shape().empty() || tensor->shape().size() > 3 || !is_convertible_float(tensor->dtype()))
    refuse_dist(
        fmt::format("tensor \"{}\" is not a matrix or vector of F64, F32, BF16 or F16", printable(name)),
        where_);
  // The T5 of Megatron-Core has its head's bias under two names.
  if (!tensors_.emplace(prefix + name, std::move(tensor)).second && name != "output_layer.bias")
    refuse_dist(fmt::format("tensor \"{}\" is there twice", printable(name)), where_);
}

// A state has the shape of its weight, or, where data-parallel ranks have flat parts of what a tensor rank
// has, that of the grid of tensor ranks and then the elements of each.
TensorSourcePtr DistCheckpoint::state_tensor(const std::string& key, const DistTensor& weight,
                                             const DistTensor& state) const {
  TensorSourcePtr whole = tensor_of_chunks(files_, key, state);
  if (state.shape == weight.shape) return whole;
  const auto refuse = [&] {
    refuse_optimizer(fmt::format("tensor \"{}\" has another shape than its weight", printable(key)), where_);
  };
  if (state.shape.size() != weight.shape.size() + 1) refuse();
  std::vector<int64_t> part = weight.shape;
  int64_t elements = 1, parts = 1;
  int split = -1;
  const bool layers = layer_key(key) && layer_key(key)->number < 0;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] % state.shape[i] != 0) refuse();
    part[i] /= state.shape[i];
    elements *= part[i];
    if (i == 0 && layers ? part[i] != 1 : state.shape[i] > 1 && split >= 0) refuse();
    if (state.shape[i] > 1 && !(i == 0 && layers)) split = static_cast<int>(i), parts = state.shape[i];
  }
  if (elements != state.shape.back()) refuse();
  if (split < 0 || split == (layers ? 1 : 0)) return slice_of(std::move(whole), 0, weight.shape);
  std::vector<TensorSourcePtr> joined;  // of each layer
  const MegatronPart columns{.split = MegatronSplit::columns, .shape = {part[part.size() - 2], part.back()}};
  for (int64_t at = 0; at < whole->numel();) {
    std::vector<TensorSourcePtr> ranks;
    for (int64_t i = 0; i < parts; ++i, at += elements) ranks.push_back(slice_of(whole, at, columns.shape));
    joined.push_back(merged(columns, std::move(ranks)));
  }
  return concatenated(std::move(joined), weight.shape);
}

void DistCheckpoint::add_states() {
  const auto kinds = dist_state_kinds();
  size_t states = 0, weights = 0;
  for (const auto& [key, weight] : metadata_.tensors) {
    if (key.starts_with("optimizer.") || key.ends_with("_extra_state") || is_buffer(key)) continue;
    ++weights;
    for (const auto& [prefix, kind] : kinds) {
      const std::string name = prefix + key;
      const auto found = metadata_.tensors.find(name);
      if (found == metadata_.tensors.end()) continue;
      ++states;
      if (kind == "param" && weight.dtype == Dtype::f32) continue;
      add(key, fmt::format("optimizer.{}.", kind), state_tensor(name, weight, found->second));
    }
  }
  has_optimizer_ = states > 0;
  if (states > 0 && states < std::size(adam_states) * weights) {
    std::vector<std::string_view> names;
    for (const RuleState& state : adam_states) names.push_back(state.name);
    refuse_optimizer(fmt::format("some weights have no {}", fmt::join(names, " or ")), where_);
  }
  const auto other = [](const auto& entry) { return entry.first.starts_with("optimizer.distributed."); };
  if (states == 0 &&
      (std::ranges::any_of(metadata_.tensors, other) || std::ranges::any_of(metadata_.items, other)))
    notices_.emplace_back(
        "the optimizer state is in buckets of the data-parallel ranks (dp_reshardable), which are not read: "
        "only "
        "weights are converted. Megatron-LM saves it by weights with --dist-ckpt-optim-fully-reshardable");
}

json DistCheckpoint::state() const {
  if (is_release(files_->folder())) return json::object();
  SavedCounters counters{.common = common_,
                         .scheduler = common_->find("opt_param_scheduler"),
                         .scaler_file = common_file_.get()};
  if (const AdamDict adam = adam_of(*common_); adam.outer != nullptr) {
    counters.scaler = adam.outer->find("grad_scaler");
    const PickleValue* step = adam.state == nullptr ? nullptr : adam.state->find("common_step");
    if (step == nullptr && adam.groups != nullptr && !adam.groups->items().empty())
      step = adam.groups->items()[0]->find("step");
    const double steps = step == nullptr ? NAN : number_of(*step, common_file_.get());
    if (std::isfinite(steps)) counters.optimizer_steps = static_cast<int64_t>(steps);
  }
  return train_state(counters);
}

int64_t DistCheckpoint::verify() const {
  int64_t bytes = 0;
  const auto check = [&](const std::string& name, const DistItem& item) {
    const std::string where = fmt::format("{}/{}, \"{}\"", where_, printable(item.file), printable(name));
    bytes += ZipArchive(files_->bytes_of(item), where).verify();
  };
  for (const auto& [name, tensor] : metadata_.tensors) {
    for (const DistChunk& chunk : tensor.chunks) check(name, chunk.item);
  }
  for (const auto& [name, item] : metadata_.items) check(name, item);
  const fs::path common = files_->folder() / "common.pt";
  std::error_code ignored;
  if (fs::exists(common, ignored)) bytes += ZipArchive(open_bytes(common), where_ + "/common.pt").verify();
  return bytes;
}

// One of the two may be lost: copies of "*" leave out the hidden file.
bool is_dist_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / ".metadata", ignored) || fs::is_regular_file(folder / "metadata.json", ignored);
}

}  // namespace

std::optional<fs::path> find_dist_folder(const fs::path& source, std::optional<int64_t> step) {
  std::error_code ignored;
  if (!fs::is_directory(source, ignored)) return std::nullopt;
  if (is_dist_folder(source) && !step) return source;
  std::string wanted = step ? fmt::format("iter_{:07}", *step) : "";
  const fs::path tracker = source / "latest_checkpointed_iteration.txt";
  if (!step && fs::is_regular_file(tracker, ignored)) {
    std::string text = read_text(tracker, {.kind = ExitCode::checkpoint, .max_bytes = 64});
    text.erase(std::min(text.find_last_not_of(" \r\n\t") + 1, text.size()));
    wanted = text.find_first_not_of("0123456789") == std::string::npos && text.size() < 18 && !text.empty()
                 ? fmt::format("iter_{:07}", std::stoll(text))
                 : text;
  }
  if (!wanted.empty() && wanted.find('/') == std::string::npos && is_dist_folder(source / wanted))
    return source / wanted;
  if (step) return std::nullopt;
  std::vector<std::string> names = list_directory(source, ExitCode::checkpoint);
  for (const std::string& name : std::views::reverse(names)) {
    if (name.starts_with("iter_") && is_dist_folder(source / name)) return source / name;
  }
  return std::nullopt;
}

std::unique_ptr<MegatronCheckpoint> open_dist_checkpoint(const fs::path& folder, bool with_optimizer) {
  check_complete(folder);
  return std::make_unique<DistCheckpoint>(folder, with_optimizer);
}

}  // namespace teratron
