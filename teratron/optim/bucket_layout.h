// How parameters lie in a flat buffer and which of them form a bucket. Arithmetic only: ranks compare their
// buckets before they allocate any.
//
// Each rank owns an equal slice of a bucket. An element-wise optimizer may own any slice, so parameters
// follow each other. An optimizer of whole matrices (`whole`) needs slices that cut none. Within a bucket,
// the largest parameter goes first to the rank that has least, and slices are padded to the fullest. Such a
// bucket is closed only when every rank could own one of its largest parameters, so that padding at most
// doubles it. The last bucket may be padded more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// A parameter. Items are in the order of backward.
struct BucketItem {
  std::string name;
  int64_t elements = 0;
  bool tied = false;  // over pipeline stages: it has a separate bucket
};

struct BucketRules {
  int64_t bucket_size = 0;  // elements after which a bucket is closed
  int64_t block = 1;        // alignment of parameters, in elements
  int64_t ranks = 1;        // that own equal slices of a bucket, of whole blocks
  bool whole = false;       // each parameter is in one slice
};

struct BucketLayout {
  struct Bucket {
    size_t first = 0, end = 0;  // items
    int64_t begin = 0, elements = 0;
    std::string name = {};  // "bucket 1 (layers.0.weight to layers.0.bias)"
  };
  std::vector<int64_t> begins;  // of the items
  std::vector<Bucket> buckets;
};
BucketLayout lay_out(const std::vector<BucketItem>& items, const BucketRules& rules);

/// One text per bucket, with all that ranks which reduce it together must have in common.
std::vector<std::string> describe_buckets(const std::vector<BucketItem>& items, const BucketLayout& layout);
/// Compares the texts with those of the group's first rank. Returns the first bucket that differs, with both
/// ranks, or an empty string. `rank` is the global rank. Collective; each rank gets its own result.
std::string find_different_bucket(HostGroup& group, int64_t rank, const std::vector<std::string>& buckets);

}  // namespace teratron
