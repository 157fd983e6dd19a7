// Micro-batches on the device: read by the first tensor-parallel rank, broadcast to the others in one message.
#pragma once

#include <memory>

#include "teratron/comm/mesh.h"
#include "teratron/data/loader.h"
#include "teratron/model/gpt.h"

namespace teratron {

class BatchSource {
 public:
  struct Options {
    LoaderOptions loader;  // sampler: this data-parallel rank's
    int64_t sequence_length = 0;
    at::Device device = at::kCPU;
    bool resets_attention = false;  // batches carry document bounds
  };
  /// `dataset` may be null on ranks that do not read.
  BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh);

  /// The next micro-batch of this data-parallel rank. UserError(data) when the data has ended.
  MicroBatch next();

 private:
  Batch read();

  Options options_;
  Group tensor_parallel_;
  std::unique_ptr<Loader> loader_;
  int64_t next_sample_;
};

}  // namespace teratron
