// Which tensors a checkpoint of format `torch_dist` has, and in which chunks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "teratron/megatron/export/export_plan.h"

namespace teratron {

/// A tensor of the checkpoint: those weights one after another along `leading` dimensions.
struct StackedTensor {
  std::string key;
  std::vector<int64_t> leading;      // {layers}, {layers, experts}, {experts}, {}
  std::vector<std::string> weights;  // by our names, row-major
  bool linear = false;               // a parallel linear layer, which also saves "_extra_state"
  int64_t segment = -1;              // it has these rows of the weights alone (row_segments.h); -1: all
};
/// All of the model. UserError(checkpoint) if a weight has no place in it.
std::vector<StackedTensor> stacked_tensors(const ExportPlan& plan);

/// A part of a weight that is one chunk: `offsets` and `sizes` in the weight with its padding, and elements
/// [begin, end) of what the tensor rank has.
struct WeightCut {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  int64_t end = 0;
};
/// What a tensor rank writes: none if the first has the same. Gates and ups are apart.
std::vector<WeightCut> cuts_of(const ExportPlan& plan, const std::string& weight, int64_t rank);

/// What it writes of weight `number` of a tensor.
std::vector<WeightCut> cuts_of(const ExportPlan& plan, const StackedTensor& tensor, size_t number,
                               int64_t rank);
/// Rows of a segment of a weight.
int64_t segment_rows(const ExportPlan& plan, const std::string& weight, int64_t segment);

/// With the padding of the vocabulary.
std::vector<int64_t> padded_shape(const ExportPlan& plan, const std::string& weight);

}  // namespace teratron
