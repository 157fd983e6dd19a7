// The rows of models/hf_map.h as tensors.
#include <algorithm>
#include <numeric>

#include "teratron/base/error.h"
#include "teratron/hf/weight_map.h"

namespace teratron {

using nlohmann::json;

namespace {

// Rows of a projection to queries with gates, keys and values.
void add_gated_runs(HfTensor& tensor, const json& settings) {
  const int64_t head = hf_size(settings, "kv_channels");
  const int64_t shared = hf_size(settings, "num_attention_heads") / std::max<int64_t>(tensor.groups, 1);
  for (const int64_t first : {int64_t{0}, head}) {
    tensor.runs.push_back({.first = first,
                           .rows = head,
                           .count = shared,
                           .stride = 2 * head,
                           .group_stride = 2 * head * shared});
  }
  for (const size_t source : {size_t{1}, size_t{2}})
    tensor.runs.push_back({.source = source, .rows = head, .group_stride = head});
}

// Rows of the input projection of a gated delta net, which are there by heads of keys.
void add_delta_runs(HfTensor& tensor, const json& settings) {
  const int64_t heads = hf_size(settings, "linear_num_key_heads"),
                K = hf_size(settings, "linear_key_head_dim");
  const int64_t values = hf_size(settings, "linear_num_value_heads") / std::max<int64_t>(heads, 1);
  const int64_t V = values * hf_size(settings, "linear_value_head_dim");
  tensor.parts = {heads * (2 * K + 2 * V), 2 * heads * values};
  const auto add = [&](size_t source, std::initializer_list<int64_t> rows) {
    const int64_t stride = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    int64_t first = 0;
    for (const int64_t each : rows) {
      tensor.runs.push_back(
          {.source = source, .first = first, .rows = each, .count = heads, .stride = stride});
      first += each;
    }
  };
  add(0, {K, K, V, V});
  add(1, {values, values});
}

HfTensor weight_of(const HfTensorRow& row, const json& settings) {
  std::vector<int64_t> shape;
  for (const std::string_view size : row.shape) shape.push_back(hf_size(settings, size));
  HfTensor tensor{.name = std::string(row.name), .shape = shape, .parts = {}};
  const bool grouped = settings.value("group_query_attention", false);
  const char* const groups = grouped ? "num_query_groups" : "num_attention_heads";
  if (row.rule == HfRule::keys)
    tensor.shape[0] = shape[0] = hf_size(settings, fmt::format("{}*kv_channels", groups));
  if (row.rule == HfRule::key_heads) tensor.shape[0] = shape[0] = hf_size(settings, groups);
  tensor.copies.assign(row.options.copies.begin(), row.options.copies.end());
  tensor.parts.assign(row.sources.size(), shape[0]);
  if (row.rule == HfRule::kv_grouped) tensor.groups = hf_size(settings, "num_attention_heads");
  const bool gated = row.rule == HfRule::qkv_gated;
  if (row.rule == HfRule::qkv_grouped || row.rule == HfRule::qkv_fused || gated) {
    const bool own_heads = !row.options.heads.empty();
    tensor.groups = hf_size(settings, own_heads ? row.options.heads : groups);
    const int64_t keys = own_heads ? shape[0] : hf_size(settings, fmt::format("{}*kv_channels", groups));
    tensor.parts = {shape[0], keys, keys};
  }
  if (gated) add_gated_runs(tensor, settings);
  if (row.rule == HfRule::delta_heads) add_delta_runs(tensor, settings);
  if (row.rule == HfRule::alternating) {
    for (const int64_t first : {0, 1})
      tensor.runs.push_back({.first = first, .rows = 1, .count = shape[0] / 2, .stride = 2});
  }
  for (size_t i = 0; i < row.options.rows.size(); ++i)
    tensor.parts[i] = hf_size(settings, row.options.rows[i]);
  tensor.any_cut = row.options.any_cut;
  tensor.f32 = row.options.f32;
  tensor.repeats = row.options.repeats;
  tensor.shape[0] = std::accumulate(tensor.parts.begin(), tensor.parts.end(), int64_t{0});
  for (size_t i = 0; i < row.sources.size(); ++i) {
    shape[0] = row.sources.size() < tensor.parts.size() ? tensor.shape[0] : tensor.parts[i];
    HfSource& source = tensor.sources.emplace_back(std::string(row.sources[i]), shape);
    source.transposed = row.rule == HfRule::transpose || row.rule == HfRule::qkv_fused ||
                        (row.rule == HfRule::alternating && shape.size() == 2);
    if (source.transposed) std::swap(source.shape[0], source.shape[1]);
  }
  if (row.options.one_row) tensor.sources[0].shape.insert(tensor.sources[0].shape.begin(), 1);
  if (row.rule == HfRule::stacked) {
    tensor.stacked = true;
    tensor.sources[0].shape.insert(tensor.sources[0].shape.begin(), hf_size(settings, "num_experts"));
  }
  return tensor;
}

// The bias beside a weight.
HfTensor bias_of(HfTensor tensor) {
  const auto rename = [](std::string& name) { name.replace(name.rfind("weight"), name.npos, "bias"); };
  rename(tensor.name);
  tensor.shape.resize(1);
  tensor.copies.clear();
  for (HfSource& source : tensor.sources) {
    rename(source.name);
    source.shape = {source.shape[source.transposed ? 1 : 0]};
    source.transposed = false;
  }
  return tensor;
}

}  // namespace

std::string in_layer(std::string_view prefix, int64_t layer) {
  std::string name(prefix);
  const size_t star = name.find('*');
  if (star == name.npos) return name;
  const bool two = star > 0 && name[star - 1] == '2', next = name.compare(star, 3, "*+1") == 0;
  const int64_t number = (two ? 2 : 1) * layer + (next ? 1 : 0);
  return name.replace(star - (two ? 1 : 0), (two ? 2 : 1) + (next ? 2 : 0), std::to_string(number));
}

std::string of_expert(std::string_view name, int64_t expert) {
  std::string whole(name);
  const size_t sign = whole.find('#');
  return sign == whole.npos ? whole : whole.replace(sign, 1, std::to_string(expert));
}

int64_t HfTensor::columns() const {
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<RowSlice> HfTensor::slices_of_runs() const {
  std::vector<RowSlice> slices;
  int64_t our_row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    for (const RowRuns& run : runs) {
      for (int64_t i = 0; i < run.count; ++i, our_row += run.rows)
        slices.push_back(
            {run.source, run.first + group * run.group_stride + i * run.stride, our_row, run.rows});
    }
  }
  return slices;
}

std::vector<RowSlice> HfTensor::slices() const {
  if (!runs.empty()) return slices_of_runs();
  const bool fused = sources.size() < parts.size();
  std::vector<RowSlice> slices;
  for (int64_t group = 0, our_row = 0; group < groups; ++group) {
    int64_t start = 0;  // of the part in its source
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t rows = parts[part] / groups;
      slices.push_back({fused ? 0 : part, start + group * rows, our_row, rows});
      our_row += rows;
      if (fused) start += parts[part];
    }
  }
  return slices;
}

namespace {

// Appends what a row stands for in a layer.
void add_row(std::vector<HfTensor>& tensors, const HfTensorRow& row, const HfModel& model,
             const std::pair<std::string, std::string>& prefixes) {
  const auto is_set = [&model](std::string_view setting) { return model.settings.value(setting, false); };
  const HfTensorOptions& options = row.options;
  if (!options.when.empty() && std::ranges::none_of(options.when, is_set)) return;
  if (std::ranges::any_of(options.unless, is_set)) return;
  const HfTensor whole = weight_of(row, model.settings);
  const int64_t count = row.name.find('#') == row.name.npos ? 1 : hf_size(model.settings, "num_experts");
  for (int64_t expert = 0; expert < count; ++expert) {
    HfTensor weight = whole;
    if (!whole.repeats) weight.name = prefixes.first + of_expert(whole.name, expert);
    for (HfSource& source : weight.sources) source.name = prefixes.second + of_expert(source.name, expert);
    if (weight.stacked) weight.runs = {{.first = expert * weight.shape[0], .rows = weight.shape[0]}};
    tensors.push_back(weight);
    if (options.biased || std::ranges::any_of(options.bias, is_set))
      tensors.push_back(bias_of(std::move(weight)));
  }
}

void check_counts(const HfModel& model, int64_t layers, size_t most) {
  const int64_t experts = std::max<int64_t>(hf_size(model.settings, "num_experts"), 1);
  if (layers <= static_cast<int64_t>(most) && experts <= static_cast<int64_t>(most)) return;
  throw checkpoint_error(
      {.what = fmt::format("{} layers{}, but only {} tensors", layers,
                           experts > 1 ? fmt::format(" of {} experts", experts) : "", most),
       .where = model.where});
}

// What each of a group's layers consists of; nothing if the model type does not say.
HfLayerKinds kinds_of(const HfModel& model, const HfTensorGroup& group, int64_t layers) {
  HfLayerKinds kinds(static_cast<size_t>(layers));
  if (model.family->layer_kinds == nullptr || group.layers.empty()) return kinds;
  HfConfig config{.settings = model.settings};
  if (group.after.empty()) {
    kinds = model.family->layer_kinds(config, layers);
  } else if (layers > 0) {
    kinds.assign(kinds.size(),
                 model.family->layer_kinds(config, hf_size(model.settings, group.after)).back());
  }
  if (!config.problems.empty()) throw checkpoint_error({.what = config.problems[0], .where = model.where});
  return kinds;
}

void strip_sources(HfTensor& tensor, std::string_view strip) {
  for (HfSource& source : tensor.sources) {
    if (!strip.empty() && source.name.starts_with(strip)) source.name.erase(0, strip.size());
  }
}

}  // namespace

std::vector<HfTensor> hf_tensors(const HfModel& model, size_t most_layers, std::string_view strip) {
  std::vector<HfTensor> tensors;
  for (const HfTensorGroup& group : model.family->tensors) {
    const int64_t layers = group.layers.empty() ? 1 : hf_size(model.settings, group.layers);
    check_counts(model, layers, most_layers);
    const HfLayerKinds kinds = kinds_of(model, group, layers);
    const int64_t after = group.after.empty() ? 0 : hf_size(model.settings, group.after);
    const int64_t begin = group.span == HfLayers::last ? layers - 1 : 0;
    const int64_t end = group.span == HfLayers::but_last ? layers - 1 : layers;
    for (int64_t layer = begin; layer < end; ++layer) {
      const std::vector<std::string_view>& has = kinds.at(static_cast<size_t>(layer));
      for (const HfTensorRow& row : group.rows) {
        const std::string_view in = row.options.in;
        if (!in.empty() && std::ranges::find(has, in) == has.end()) continue;
        add_row(tensors, row, model, {in_layer(group.ours, layer), in_layer(group.theirs, after + layer)});
      }
    }
  }
  for (HfTensor& tensor : tensors) strip_sources(tensor, strip);
  return tensors;
}

}  // namespace teratron
