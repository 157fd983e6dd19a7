// Micro batches of one data-parallel rank, read ahead by worker threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/data/sampler.h"

namespace teratron {

/// One micro batch; every vector is [micro_batch * seq_length], sample by sample.
struct Batch {
  int64_t micro_batch = 0;
  int64_t seq_length = 0;
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  /// Per token the first position of its sequence that it may see; empty when no attention is reset.
  std::vector<int32_t> document_start;
};

struct LoaderOptions {
  SamplerOptions sampler;  // total_samples 0: all of the dataset
  int workers = 2;         // --num-workers; 0: read when asked
  int prefetch = 2;        // batches read ahead per worker
};

/// The batches and their order do not depend on the number of workers. Not to be called by several threads.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro batch; nothing when a single pass has ended (cyclic never ends). What a worker met while
  /// reading (UserError(data), Fault) is thrown here, at the batch that it belongs to.
  std::optional<Batch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace teratron
