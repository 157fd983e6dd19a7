#include "teratron/train/guards/same_data.h"

#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/comm/host/call.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr std::array<const char*, 3> names = {"train", "valid", "test"};

// "96 samples (checksum 5d1e0c3a)".
std::string described(const Dataset* dataset) {
  if (!dataset || dataset->size() == 0) return "no samples";
  const int64_t size = dataset->size();
  Hasher hasher;
  for (const int64_t i : {int64_t{0}, size / 2, size - 1}) {
    Sample sample;
    dataset->get(i, sample);
    for (const std::vector<int64_t>* ids : {&sample.tokens, &sample.labels})
      hasher.update(ids->data(), ids->size() * sizeof(int64_t));
  }
  return fmt::format("{} samples (checksum {:.8})", size, hash_to_hex(hasher.digest()));
}

// "train: rank 0 has 96 samples (...), ranks 1, 2 have 48 samples (...)"; "" where all have the same.
std::string difference_of(size_t split, const std::vector<std::string>& all) {
  std::vector<int64_t> readers;
  std::vector<std::string> values;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    readers.push_back(static_cast<int64_t>(rank));
    values.push_back(json::parse(all[rank]).at(split));
  }
  const std::string text = who_has_what(readers, values);
  return text.empty() ? "" : fmt::format("{}: {}", names[split], text);
}

}  // namespace

void check_same_data(const DatasetsOfRun* mine, Peers& ranks) {
  if (ranks.size() == 1) return;
  json message = json::array();
  for (size_t split = 0; mine && split < names.size(); ++split)
    message.push_back(described((*mine)[split].get()));
  const std::vector<std::string> all = ranks.all_gather_bytes(mine ? message.dump() : "");
  std::vector<std::string> differences;
  for (size_t split = 0; split < names.size(); ++split) {
    if (std::string text = difference_of(split, all); !text.empty()) differences.push_back(std::move(text));
  }
  if (differences.empty()) return;
  throw config_error({.what = fmt::format("the ranks read different data; {}", fmt::join(differences, "; ")),
                      .where = "ranks",
                      .fix = "Give all machines the same data files, and the same tokenizer"});
}

}  // namespace teratron
