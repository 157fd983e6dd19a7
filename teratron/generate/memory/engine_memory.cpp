#include "teratron/generate/memory/engine_memory.h"

#include <algorithm>
#include <string>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/device.h"

namespace teratron {

namespace {

int64_t wanted_pages(const CacheRequest& request) {
  const int64_t each = (request.longest + request.page_size - 1) / request.page_size;
  // Page 0, and what beams need beyond their lengths (BeamPages::needed()).
  return request.rows * (each + 2) + 2;
}

int64_t free_bytes(const CacheRequest& request) {
  constexpr double share_of_gpu = 0.9, share_of_host = 0.5;  // the rest is for activations
  if (request.cache_bytes > 0) return request.cache_bytes;
  const double share = request.device.is_cuda() ? share_of_gpu : share_of_host;
  return static_cast<int64_t>(static_cast<double>(free_memory(request.device)) * share);
}

}  // namespace

int64_t fitting_pages(const CacheRequest& request, HostGroup& ranks) {
  const int64_t bytes = std::max<int64_t>(free_bytes(request) - request.bytes_of_slots, 0);
  const int64_t fitting = std::min(wanted_pages(request), bytes / request.bytes_per_page);
  return static_cast<int64_t>(all_reduce_min(ranks, static_cast<double>(fitting)));
}

int64_t choose_pages(const CacheRequest& request, HostGroup& ranks) {
  const int64_t wanted = wanted_pages(request), pages = fitting_pages(request, ranks);
  if (pages < 2) {
    throw Fault(fmt::format("memory for states of sequences: {} bytes are free, {} sequences take {}, and {} "
                            "tokens take {}",
                            free_bytes(request), request.rows, request.bytes_of_slots, request.page_size,
                            request.bytes_per_page),
                ExitCode::out_of_memory);
  }
  if (pages < wanted && ranks.rank() == 0) {
    notice("memory holds the states of {} tokens, not the {} of {} sequences: fewer are generated at once",
           (pages - 1) * request.page_size, (wanted - 1) * request.page_size, request.rows);
  }
  return pages;
}

}  // namespace teratron
