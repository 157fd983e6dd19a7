// Micro-batches on the device: read by tensor-parallel rank 0 and broadcast to the others in one message.
//
// Only the first pipeline stage needs tokens and only the last one labels. The stages in between read data
// only if documents reset positions or attention.
#pragma once

#include <memory>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/data/data_loader.h"
#include "teratron/models/model.h"

namespace teratron {

/// Whether the ranks of this pipeline stage read data. `resets`: documents reset positions or attention.
bool uses_data(const Mesh& mesh, bool resets);

class BatchSource {
 public:
  struct Options {
    DataLoaderOptions loader;  // sampler: this data-parallel rank's
    int64_t sequence_length = 0;
    at::Device device = at::kCPU;
    bool resets_attention = false;  // batches carry document bounds
    bool resets_positions = false;  // positions start again after each document
  };
  /// `dataset` may be null on ranks that do not read.
  BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh);

  /// The next micro-batch of this data-parallel rank. UserError(data) at the end of the data.
  MicroBatch next();

 private:
  Batch read();
  MicroBatch read_and_broadcast();
  /// 0, 1, ... as [S, B] with stride 0 along B.
  at::Tensor counted_positions() const;

  Options options_;
  Group tensor_parallel_;
  bool uses_data_;
  std::unique_ptr<DataLoader> loader_;
  int64_t next_sample_;
};

}  // namespace teratron
