// Micro-batches on the device: read by the first tensor-parallel rank, broadcast to the others in one message.
//
// Of a pipeline the first stage needs tokens and the last one labels. The stages between read nothing: positions that
// just count need no data, and only where documents reset positions or attention do they read as well.
#pragma once

#include <memory>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/data/loader.h"
#include "teratron/models/gpt/gpt.h"

namespace teratron {

/// Whether the ranks of this pipeline stage use a data set that resets what is said.
bool uses_data(const Mesh& mesh, bool resets);

class BatchSource {
 public:
  struct Options {
    LoaderOptions loader;  // sampler: this data-parallel rank's
    int64_t sequence_length = 0;
    at::Device device = at::kCPU;
    bool resets_attention = false;  // batches carry document bounds
    bool resets_positions = false;  // positions start again after each document
  };
  /// `dataset` may be null on ranks that do not read.
  BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh);

  /// The next micro-batch of this data-parallel rank. UserError(data) when the data has ended.
  MicroBatch next();

 private:
  Batch read();
  MicroBatch read_and_broadcast();
  /// [S, B], a row for all samples: all that a stage without data gets.
  at::Tensor counted_positions() const;

  Options options_;
  Group tensor_parallel_;
  bool uses_data_;
  std::unique_ptr<Loader> loader_;
  int64_t next_sample_;
};

}  // namespace teratron
