// A Hugging Face model: its config.json as settings of Megatron-LM and back, and the rows of its tensors that
// make up each of ours. Both come from the rows of models/hf_map.h.
//
// UserError(checkpoint) lists everything in a config.json, or in a checkpoint's settings, that the other side
// cannot express: a model that would compute something else is never converted.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/models/hf_map.h"

namespace teratron {

struct HfModel {
  const HfFamily* family = nullptr;
  nlohmann::json settings;                // object: Megatron-LM's argument names -> values
  nlohmann::json keys;                    // for export: of config.json
  std::string where;                      // the file or checkpoint, for errors
  std::vector<std::string> notices = {};  // for export: what transformers computes slightly differently
};

/// `where` names the file in errors. The model points to one of `families`.
HfModel parse_hf_config(const std::string& text, const std::string& where,
                        std::span<const HfFamily> families = hf_families());

/// The model in a checkpoint, from its settings; whether the tensors agree is for the caller to check.
HfModel hf_model_of(const CheckpointInfo& info, std::span<const HfFamily> families = hf_families());

/// config.json for export.
nlohmann::json hf_config(const HfModel& model, Dtype dtype);

struct HfSource {
  std::string name;
  std::vector<int64_t> shape;  // as in the file
  bool transposed = false;     // its columns are our rows
};

/// `rows` rows of a source, from `row` on, that are ours from `our_row` on.
struct RowSlice {
  size_t source = 0;
  int64_t row = 0, our_row = 0, rows = 0;
};

/// In each group of rows of a source `count` runs of `rows` rows, `stride` rows apart.
struct RowRuns {
  size_t source = 0;
  int64_t first = 0, rows = 0;  // in the first group
  int64_t count = 1, stride = 0;
  int64_t group_stride = 0;
};

/// One of our tensors, [rows, columns...] or [rows]: for each group, its share of each part. The parts are
/// the sources, or lie one after another in the only source. Or, with `runs`, for each group these in turn.
struct HfTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<HfSource> sources;
  std::vector<std::string> copies;  // of the source, which files may hold too
  std::vector<int64_t> parts;       // rows
  int64_t groups = 1;
  std::vector<RowRuns> runs = {};
  bool stacked = false;  // the source is that of neighbours, too, each of which is a part of it
  bool any_cut = false, f32 = false, repeats = false;  // see HfTensorOptions

  /// Elements of a row.
  int64_t columns() const;
  /// The only source, as it is.
  bool is_copy() const { return parts.size() == 1 && runs.empty() && !sources[0].transposed; }
  /// All our rows. Only for shapes that are those of a file: others may be huge.
  std::vector<RowSlice> slices() const;

 private:
  std::vector<RowSlice> slices_of_runs() const;
};

/// A name with the number of a layer in the place of '*', or of the layer after it in that of "*+1".
std::string in_layer(std::string_view prefix, int64_t layer);
/// A name with the number of an expert in the place of '#'.
std::string of_expert(std::string_view name, int64_t expert);

/// Every tensor of the model, in the order of the forward pass; `strip` is cut off the beginning of names in
/// files. UserError for more than `most_layers` layers, the number of tensors at hand.
std::vector<HfTensor> hf_tensors(const HfModel& model, size_t most_layers, std::string_view strip = "");

}  // namespace teratron
