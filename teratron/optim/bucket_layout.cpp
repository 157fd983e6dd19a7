#include "teratron/optim/bucket_layout.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "teratron/base/hash.h"

namespace teratron {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Items are in the reverse order of the model.
std::string names_of(const std::vector<BucketItem>& items, const BucketLayout::Bucket& bucket) {
  const std::string& last = items[bucket.first].name;
  if (bucket.first + 1 == bucket.end) return last;
  return fmt::format("{} to {}", items[bucket.end - 1].name, last);
}

class Divider {
 public:
  Divider(const std::vector<BucketItem>& items, const BucketRules& rules) : items_(items), rules_(rules) {}

  BucketLayout divide() {
    int64_t end = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].tied) close(i, end);
      const int64_t begin = round_up(std::max(end, bucket_begin()), rules_.block);
      layout_.begins.push_back(begin);
      end = begin + items_[i].elements;
      if (items_[i].tied || end - bucket_begin() >= rules_.bucket_size) close(i + 1, end);
    }
    close(items_.size(), end);
    return std::move(layout_);
  }

 private:
  int64_t bucket_begin() const {
    if (layout_.buckets.empty()) return 0;
    return layout_.buckets.back().begin + layout_.buckets.back().elements;
  }

  /// The items since the last bucket, up to item `end`, form the next one.
  void close(size_t end, int64_t position) {
    const size_t first = layout_.buckets.empty() ? 0 : layout_.buckets.back().end;
    if (first == end) return;
    BucketLayout::Bucket bucket{.first = first, .end = end, .begin = bucket_begin()};
    bucket.elements = round_up(position - bucket.begin, rules_.block * rules_.ranks);
    bucket.name = fmt::format("bucket {} ({})", layout_.buckets.size(), names_of(items_, bucket));
    layout_.buckets.push_back(std::move(bucket));
  }

  const std::vector<BucketItem>& items_;
  const BucketRules& rules_;
  BucketLayout layout_;
};

}  // namespace

BucketLayout lay_out(const std::vector<BucketItem>& items, const BucketRules& rules) {
  return Divider(items, rules).divide();
}

std::vector<std::string> describe_buckets(const std::vector<BucketItem>& items, const BucketLayout& layout) {
  std::vector<std::string> texts;
  for (const BucketLayout::Bucket& bucket : layout.buckets) {
    std::string all;
    for (size_t i = bucket.first; i < bucket.end; ++i)
      all += fmt::format("{}\n{} {} ", items[i].name, items[i].elements, items[i].tied);
    texts.push_back(fmt::format("{} of {} parameters and {} elements, hash {}", names_of(items, bucket),
                                bucket.end - bucket.first, bucket.elements, hash_to_hex(hash_text(all))));
  }
  return texts;
}

std::string find_different_bucket(HostGroup& group, int64_t rank, const std::vector<std::string>& buckets) {
  const std::string mine = group.rank() == 0 ? nlohmann::json({rank, buckets}).dump() : "";
  const auto sent = nlohmann::json::parse(group.broadcast_bytes(mine));
  const auto first = sent.at(1).get<std::vector<std::string>>();
  const auto at = [](const std::vector<std::string>& texts, size_t i) {
    return i < texts.size() ? texts[i] : "nothing";
  };
  for (size_t i = 0; i < std::max(first.size(), buckets.size()); ++i) {
    if (at(first, i) == at(buckets, i)) continue;
    return fmt::format("bucket {}: rank {} has {}, rank {} has {}", i, sent.at(0).get<int64_t>(),
                       at(first, i), rank, at(buckets, i));
  }
  return "";
}

}  // namespace teratron
