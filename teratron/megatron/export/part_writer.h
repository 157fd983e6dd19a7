// Parts of a checkpoint's tensors, as a file of Megatron-LM has them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "teratron/hf/byte_progress.h"
#include "teratron/megatron/export/export_plan.h"
#include "teratron/pickle/torch_writer.h"

namespace teratron {

/// Elements [begin, end) of what a rank has of a weight, or of one of its states, flattened.
struct WrittenPart {
  std::string weight;  // its name
  std::string state;   // "exp_avg"; "param": in fp32; empty: the weight itself
  Shard shard;
  Dtype dtype = Dtype::f32;
  int64_t begin = 0;
  int64_t end = 0;
  std::optional<float> number = std::nullopt;  // this, in place of all else

  int64_t elements() const { return number ? 1 : end - begin; }
};

/// All that a tensor rank has.
WrittenPart weight_part(const ExportPlan& plan, const std::string& name, int64_t rank);
WrittenPart state_part(const ExportPlan& plan, const std::string& name, const std::string& state,
                       int64_t rank);

/// A pickle, and what its tensors are, in order.
struct TensorFile {
  PickleWriter pickle;
  std::vector<WrittenPart> parts;

  void add(WrittenPart part, const std::vector<int64_t>& shape) {
    pickle.tensor(part.dtype, shape);
    parts.push_back(std::move(part));
  }
};

/// Reads parts and appends them to files. The padding of the vocabulary repeats its last row; moments are
/// zero there.
class PartWriter {
 public:
  PartWriter(const ExportPlan& plan, int64_t bytes) : plan_(plan), progress_("written", bytes) {}
  void write(const WrittenPart& part, const AppendBytes& append);

 private:
  void write_range(const WrittenPart& part, const Shard& shard, std::pair<int64_t, int64_t> range,
                   const AppendBytes& append);
  void write_padding(const WrittenPart& part, std::pair<int64_t, int64_t> range, const AppendBytes& append);
  std::string source_of(const WrittenPart& part) const;

  const ExportPlan& plan_;
  ByteProgress progress_;
  std::vector<char> block_;
};

}  // namespace teratron
