#include "teratron/generate/engine_memory.h"

#include <algorithm>
#include <string>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/device.h"

namespace teratron {

int64_t choose_pages(const CacheRequest& request, HostGroup& ranks) {
  constexpr double share_of_gpu = 0.9, share_of_host = 0.5;  // the rest is for activations
  const int64_t each = (request.longest + request.page_size - 1) / request.page_size;
  // Page 0, and what beams need beyond their lengths (BeamPages::needed()).
  const int64_t wanted = request.rows * (each + 2) + 2;
  const auto free = static_cast<double>(free_memory(request.device));
  const double share = request.device.is_cuda() ? share_of_gpu : share_of_host;
  const int64_t bytes = request.cache_bytes > 0 ? request.cache_bytes : static_cast<int64_t>(free * share);
  const int64_t fitting = std::max<int64_t>(bytes - request.bytes_of_slots, 0) / request.bytes_per_page;
  const auto pages =
      static_cast<int64_t>(all_reduce_min(ranks, static_cast<double>(std::min(wanted, fitting))));
  if (pages < 2) {
    throw Fault(
        fmt::format("memory for states of sequences: {} bytes are free, {} sequences take {}, and {} "
                    "tokens take {}",
                    bytes, request.rows, request.bytes_of_slots, request.page_size, request.bytes_per_page),
        ExitCode::out_of_memory);
  }
  if (pages < wanted && ranks.rank() == 0) {
    notice("memory holds the states of {} tokens, not the {} of {} sequences: fewer are generated at once",
           (pages - 1) * request.page_size, (wanted - 1) * request.page_size, request.rows);
  }
  return pages;
}

}  // namespace teratron
