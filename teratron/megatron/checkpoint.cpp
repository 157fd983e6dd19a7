#include "teratron/megatron/checkpoint.h"

#include "teratron/megatron/dist_checkpoint.h"
#include "teratron/megatron/legacy_checkpoint.h"

namespace teratron {

std::unique_ptr<MegatronCheckpoint> open_megatron_checkpoint(const std::filesystem::path& source,
                                                             std::optional<int64_t> step,
                                                             bool with_optimizer) {
  if (const auto folder = find_dist_folder(source, step))
    return open_dist_checkpoint(*folder, with_optimizer);
  return open_legacy_checkpoint(open_megatron_files(source, step, with_optimizer));
}

}  // namespace teratron
