// Which samples make up the micro batches of one data-parallel rank: Megatron-LM's samplers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace teratron {

enum class SamplerKind : uint8_t {
  single,           // --dataloader-type single: in order, once
  cyclic,           // shuffled by epoch, endlessly
  full_validation,  // rank r gets samples r, r + dp_size, ...: one at a time, every sample once
};

struct SamplerOptions {
  SamplerKind kind = SamplerKind::single;
  int64_t total_samples = 0;
  int64_t consumed_samples = 0;  // of all ranks, since the start of the run: all that a resume needs
  int64_t micro_batch = 1;
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  bool data_sharding = true;  // cyclic: each rank permutes its own bucket
  bool drop_last = true;      // single: leave out the incomplete last step
};

/// single: each step takes micro_batch x dp_size consecutive samples, rank r the r-th micro_batch of them.
/// cyclic: epoch = consumed / (total - total % (micro_batch x dp_size)), permuted by torch.randperm seeded
/// with the epoch; incomplete micro batches are left out.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Sample numbers of the next micro batch; nothing at the end of the pass. A cyclic sampler goes on with
  /// the next epoch when asked again; the others have ended for good.
  virtual std::optional<std::vector<int64_t>> next() = 0;
};

/// Throws UserError(config) for sizes that leave no complete step.
std::unique_ptr<Sampler> build_sampler(const SamplerOptions& options);

}  // namespace teratron
