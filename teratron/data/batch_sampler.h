// Sample indices of the micro-batches of one data-parallel rank: Megatron-LM's samplers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace teratron {

enum class SamplerKind : uint8_t {
  single,           // --dataloader-type single: in order, once
  cyclic,           // shuffled by epoch, endlessly
  full_validation,  // rank r gets samples r, r + dp_size, ...: batches of one, every sample once
};

struct BatchSamplerOptions {
  SamplerKind kind = SamplerKind::single;
  int64_t total_samples = 0;
  int64_t consumed_samples = 0;  // of all ranks since the start of the run: all the state a resume needs
  int64_t micro_batch_size = 1;
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  bool data_sharding = true;  // cyclic: each rank permutes its own bucket
  bool drop_last = true;      // single: drop the incomplete last step
};

/// single: each step takes micro_batch_size x dp_size consecutive samples, rank r the r-th micro-batch of
/// them. cyclic: epoch = consumed / (total - total % (micro_batch_size x dp_size)), permuted by
/// torch.randperm seeded with the epoch; the incomplete last step is dropped, so all ranks leave an epoch
/// together.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Sample indices of the next micro-batch; nothing at the end of the pass. Called again, a cyclic sampler
  /// starts the next epoch; the others keep returning nothing.
  virtual std::optional<std::vector<int64_t>> next() = 0;
};

/// Throws UserError(config) if a cyclic pass has no complete step or cannot resume at consumed_samples.
std::unique_ptr<BatchSampler> build_batch_sampler(const BatchSamplerOptions& options);

}  // namespace teratron
