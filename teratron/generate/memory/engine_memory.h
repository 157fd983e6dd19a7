// How many pages of the layers' states fit.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

struct CacheRequest {
  int64_t bytes_per_page = 1;  // on this rank
  int64_t bytes_of_slots = 0;  // of all slots on this rank
  int64_t page_size = 16;
  int64_t rows = 1;         // sequences at once that are wanted
  int64_t longest = 1;      // tokens of a sequence
  int64_t cache_bytes = 0;  // limit on a rank; 0: what is free
  at::Device device = at::kCPU;
};

/// Pages that are wanted and fit, one number on all ranks, page 0 included; 0 where the slots alone are too
/// much. Collective.
int64_t fitting_pages(const CacheRequest& request, HostGroup& ranks);

/// As fitting_pages(). A notice where memory holds fewer sequences than wanted;
/// Fault(out_of_memory) where it holds no page beside the slots. Collective.
int64_t choose_pages(const CacheRequest& request, HostGroup& ranks);

}  // namespace teratron
