#include "teratron/train/guards/same_data.h"

#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/comm/consensus.h"

namespace teratron {

namespace {

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

}  // namespace

void check_same_data(const DatasetsOfRun* mine, HostGroup& ranks) {
  if (ranks.size() == 1) return;
  Record record;
  for (size_t split = 0; mine && split < names.size(); ++split)
    record.emplace_back(names[split], described((*mine)[split].get()));
  const std::vector<std::string> differences = compare_records(ranks, record);
  if (differences.empty()) return;
  throw config_error({.what = fmt::format("the ranks read different data; {}", fmt::join(differences, "; ")),
                      .where = "ranks",
                      .fix = "Give all machines the same data files, and the same tokenizer"});
}

}  // namespace teratron
