#include "teratron/optim/bucket_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

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
    layout_.begins.resize(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].tied) close(i);
      layout_.begins[i] = round_up(length_, rules_.block);  // in its bucket
      length_ = layout_.begins[i] + items_[i].elements;
      largest_ = std::max(largest_, items_[i].elements);
      if (items_[i].tied || is_full()) close(i + 1);
    }
    close(items_.size());
    return std::move(layout_);
  }

 private:
  bool is_full() const {
    return length_ >= rules_.bucket_size && (!rules_.whole || length_ >= rules_.ranks * largest_);
  }

  /// The items since the last bucket, up to item `end`, form the next one.
  void close(size_t end) {
    BucketLayout::Bucket bucket{.first = 0, .end = end, .begin = 0};
    if (!layout_.buckets.empty()) {
      const BucketLayout::Bucket& last = layout_.buckets.back();
      bucket.first = last.end;
      bucket.begin = last.begin + last.elements;
    }
    if (bucket.first == end) return;
    bucket.elements = rules_.whole ? place_whole(bucket) : round_up(length_, rules_.block * rules_.ranks);
    for (size_t i = bucket.first; i < end; ++i) layout_.begins[i] += bucket.begin;
    bucket.name = fmt::format("bucket {} ({})", layout_.buckets.size(), names_of(items_, bucket));
    layout_.buckets.push_back(std::move(bucket));
    length_ = largest_ = 0;
  }

  /// Sets `begins`, in the bucket, such that no item is in two slices, and returns the bucket's length.
  int64_t place_whole(const BucketLayout::Bucket& bucket) {
    std::vector<size_t> largest_first(bucket.end - bucket.first);
    std::iota(largest_first.begin(), largest_first.end(), bucket.first);
    std::ranges::stable_sort(largest_first, std::greater(), [this](size_t i) { return items_[i].elements; });
    std::vector<int64_t> used(static_cast<size_t>(rules_.ranks));
    std::vector<size_t> owners(bucket.end - bucket.first);
    for (const size_t i : largest_first) {
      const auto least = std::ranges::min_element(used);
      owners[i - bucket.first] = static_cast<size_t>(least - used.begin());
      layout_.begins[i] = *least;
      *least += round_up(items_[i].elements, rules_.block);
    }
    const int64_t slice = std::ranges::max(used);
    for (const size_t i : largest_first)
      layout_.begins[i] += static_cast<int64_t>(owners[i - bucket.first]) * slice;
    return slice * rules_.ranks;
  }

  const std::vector<BucketItem>& items_;
  const BucketRules& rules_;
  int64_t length_ = 0, largest_ = 0;  // since the last bucket
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
