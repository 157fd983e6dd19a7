#include "teratron/megatron/export/dist_layout.h"

#include <algorithm>
#include <set>

#include "teratron/base/error.h"
#include "teratron/megatron/dist_names.h"
#include "teratron/megatron/names.h"
#include "teratron/megatron/rows/row_segments.h"

namespace teratron {

namespace {

// The tensors of a stack by layer, under the names of torch_dist.
struct LayerTensor {
  std::string rest;                  // "mlp.linear_fc1.weight"
  std::vector<std::string> weights;  // several of experts
  bool linear = false;
  bool experts = false;
  int64_t segment = -1;  // of the weights' rows; -1: all of them
};

std::vector<std::string> parts_of(const MegatronRow& row) {
  if (!row.ours.ends_with('.')) return {std::string(row.ours)};
  return {std::string(row.ours) + "weight", std::string(row.ours) + "bias"};
}

class Layout {
 public:
  explicit Layout(const ExportPlan& plan) : plan_(plan) {}

  std::vector<StackedTensor> take() {
    for (const MegatronRow& row : plan_.model.embeddings) add_row(row);
    for (const MegatronStack& stack : plan_.model.stacks) add_stack(stack);
    add_mtp();
    for (const MegatronRow& row : plan_.model.heads) add_row(row);
    check_all_placed(plan_, placed_, "torch_dist");
    return std::move(tensors_);
  }

 private:
  bool has(const std::string& name) const { return plan_.weights.contains(name); }

  void add_row(const MegatronRow& row) {
    // Megatron-LM saves no extra state of an untied output layer's weight.
    for (const std::string& name : parts_of(row)) {
      if (has(name))
        add({.key = name, .leading = {}, .weights = {name}, .linear = name == "output_layer.bias"});
    }
  }

  // Norms have the names of Transformer Engine's fused modules where the layer has these, whatever computes
  // them.
  std::string rest_of(const MegatronRow& row, const std::string& part, const std::string& layer) const {
    for (const std::string_view fused : row.fused) {
      const std::string module(fused.substr(0, fused.rfind('.') + 1));
      if (has(layer + module + "weight")) return std::string(fused) + part.substr(row.ours.size());
    }
    return part;
  }

  void add_experts(const std::string& part, const std::string& layer, std::vector<LayerTensor>& found) const {
    const size_t at = part.find("#.");
    LayerTensor tensor{.rest = std::string(experts_of_layer) + part.substr(at + 2),
                       .weights = {},
                       .linear = true,
                       .experts = true};
    for (int64_t e = 0;; ++e) {
      const std::string name = layer + name_of_expert(tensor.rest, e);
      if (!has(name)) break;
      tensor.weights.push_back(name);
    }
    if (!tensor.weights.empty()) found.push_back(std::move(tensor));
  }

  // One tensor, or one for each segment of its rows.
  static void add_segments(const LayerTensor& whole, std::vector<LayerTensor>& found) {
    const std::vector<std::string_view> names = segment_names(whole.rest);
    if (names.empty()) found.push_back(whole);
    for (size_t i = 0; i < names.size(); ++i) {
      LayerTensor& part = found.emplace_back(whole);
      part.rest += fmt::format(".{}", names[i]);
      part.segment = static_cast<int64_t>(i);
    }
  }

  std::vector<LayerTensor> layer_tensors(const MegatronStack& stack, const std::string& layer) const {
    std::vector<LayerTensor> found;
    for (const MegatronRow& row : stack.layer) {
      for (const std::string& part : parts_of(row)) {
        if (part.find('#') != part.npos) {
          add_experts(part, layer, found);
        } else if (has(layer + part)) {
          add_segments({rest_of(row, part, layer), {layer + part}, row.linear}, found);
        }
      }
    }
    return found;
  }

  void add_stack(const MegatronStack& stack) {
    const std::string prefix = std::string(stack.ours) + ".layers.";
    std::vector<std::vector<LayerTensor>> layers;
    for (int64_t i = 0;; ++i) {
      layers.push_back(layer_tensors(stack, fmt::format("{}{}.", prefix, i)));
      if (layers.back().empty()) break;
    }
    layers.pop_back();
    const auto is_like_first = [&](const std::vector<LayerTensor>& layer) {
      return std::ranges::equal(layer, layers[0], {}, &LayerTensor::rest, &LayerTensor::rest);
    };
    if (stack.stacks_layers && std::ranges::all_of(layers, is_like_first)) {
      add_layers(prefix, layers, true);
    } else {
      for (size_t i = 0; i < layers.size(); ++i)
        add_layers(fmt::format("{}{}.", prefix, i), {layers[i]}, false);
    }
    for (const char* part : {"weight", "bias"}) {
      const std::string norm = fmt::format("{}.{}.{}", stack.ours, stack.final_norm, part);
      if (has(norm)) add({.key = norm, .leading = {}, .weights = {norm}, .linear = false});
    }
  }

  // Each layer of multi-token prediction is by itself.
  void add_mtp() {
    for (int64_t i = 0; !plan_.model.mtp.empty(); ++i) {
      const std::string depth = fmt::format("mtp.layers.{}.", i), layer = depth + std::string(mtp_layer);
      const std::vector<LayerTensor> tensors = layer_tensors(plan_.model.stacks[0], layer);
      if (tensors.empty()) break;
      add_layers(layer, {tensors}, false);
      for (const MegatronRow& row : plan_.model.mtp) {
        for (const std::string& part : parts_of(row)) {
          const std::string name = depth + part;
          if (has(name)) add({.key = name, .leading = {}, .weights = {name}, .linear = row.linear});
        }
      }
    }
  }

  void add_layers(const std::string& prefix, const std::vector<std::vector<LayerTensor>>& layers,
                  bool stacked) {
    for (size_t i = 0; i < layers[0].size(); ++i) {
      const LayerTensor& first = layers[0][i];
      StackedTensor tensor{.key = prefix + first.rest,
                           .leading = {},
                           .weights = {},
                           .linear = first.linear,
                           .segment = first.segment};
      if (stacked) tensor.leading.push_back(std::ssize(layers));
      if (first.experts) tensor.leading.push_back(std::ssize(first.weights));
      for (const auto& layer : layers)
        tensor.weights.insert(tensor.weights.end(), layer[i].weights.begin(), layer[i].weights.end());
      add(std::move(tensor));
    }
  }

  void add(StackedTensor tensor) {
    placed_.insert(tensor.weights.begin(), tensor.weights.end());
    tensors_.push_back(std::move(tensor));
  }

  const ExportPlan& plan_;
  std::vector<StackedTensor> tensors_;
  std::set<std::string> placed_;
};

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

}  // namespace

std::vector<StackedTensor> stacked_tensors(const ExportPlan& plan) {
  return Layout(plan).take();
}

std::vector<int64_t> padded_shape(const ExportPlan& plan, const std::string& weight) {
  std::vector<int64_t> shape = plan.weights.at(weight).shape;
  if (is_vocabulary(weight)) shape[0] = plan.args.padded_vocabulary;
  return shape;
}

int64_t segment_rows(const ExportPlan& plan, const std::string& weight, int64_t segment) {
  const int64_t rows = plan.weights.at(weight).shape.at(0);
  return row_segments(weight, rows, plan.args.settings).at(static_cast<size_t>(segment));
}

std::vector<WeightCut> cuts_of(const ExportPlan& plan, const StackedTensor& tensor, size_t number,
                               int64_t rank) {
  const std::string& weight = tensor.weights[number];
  std::vector<WeightCut> cuts = cuts_of(plan, weight, rank);
  if (tensor.segment < 0) return cuts;
  WeightCut cut = cuts.at(static_cast<size_t>(tensor.segment));
  for (int64_t before = 0; before < tensor.segment; ++before)
    cut.offsets[0] -= segment_rows(plan, weight, before);
  return {cut};
}

std::vector<WeightCut> cuts_of(const ExportPlan& plan, const std::string& weight, int64_t rank) {
  const Shard shard = shard_of(plan, weight, rank);
  const std::vector<int64_t> whole = padded_shape(plan, weight);
  if (shard.dim < 0) {
    if (rank > 0) return {};
    return {{std::vector<int64_t>(whole.size(), 0), whole, 0, product(whole)}};
  }
  const auto dim = static_cast<size_t>(shard.dim);
  std::vector<int64_t> segments = shard.segments;
  if (segments.size() < 2) segments = {whole[dim]};
  std::vector<WeightCut> cuts;
  int64_t segment_begin = 0, begin = 0;
  for (const int64_t segment : segments) {
    WeightCut cut{.offsets = std::vector<int64_t>(whole.size(), 0), .sizes = whole};
    cut.sizes[dim] = segment / shard.parts;
    cut.offsets[dim] = segment_begin + rank * cut.sizes[dim];
    cut.begin = begin;
    cut.end = begin + product(cut.sizes);
    begin = cut.end;
    segment_begin += segment;
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

}  // namespace teratron
