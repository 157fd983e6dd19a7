#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"

namespace teratron {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Size, modification time and a hash of the first and last MiB: enough to detect a replaced file.
std::string fingerprint(const BinaryReader& file) {
  constexpr int64_t kPart = 1 << 20;
  std::vector<std::byte> part(static_cast<size_t>(std::min(kPart, file.size())));
  Hasher hasher;
  for (const int64_t offset : {int64_t{0}, file.size() - static_cast<int64_t>(part.size())}) {
    file.read_values(offset, std::span(part));
    hasher.update(part.data(), part.size());
  }
  return fmt::format("{} bytes, {} ns, {}", file.size(), file.modified_ns(), hash_to_hex(hasher.digest()));
}

json description_of(const IndexedDataset& dataset, SequenceRange range, const GPTIndexOptions& options) {
  json description = {{"format", 1},
                      {"idx", fingerprint(dataset.idx())},
                      {"bin", fingerprint(dataset.bin())},
                      {"first_sequence", range.first},
                      {"last_sequence", range.last},
                      {"sequence_length", options.sequence_length},
                      {"seed", options.seed},
                      {"add_extra_token", options.add_extra_token},
                      {"drop_last", options.drop_last}};
  if (options.samples) description["samples"] = *options.samples;
  return description;
}

/// The cached index, or nothing. The description is written last and marks a complete index.
std::optional<GPTIndex> load(const std::string& stem, const json& description) {
  if (!fs::exists(stem + ".json")) return {};
  try {
    const json stored = read_json(stem + ".json", {.kind = ExitCode::data});
    if (stored.at("description") != description) return {};
    GPTIndex index;
    index.tokens_per_epoch = stored.at("tokens_per_epoch").get<int64_t>();
    index.epochs = stored.at("epochs").get<int64_t>();
    index.document_index = IndexArray::open(stem + "-document_index.npy");
    index.sample_index = IndexArray::open(stem + "-sample_index.npy");
    index.shuffle_index = IndexArray::open(stem + "-shuffle_index.npy");
    const int64_t samples = stored.at("samples").get<int64_t>();
    if (index.samples() == samples && index.sample_index.rows() == samples + 1 &&
        index.sample_index.columns() == 2) {
      return index;
    }
    warn("{}: the cached index is damaged; rebuilding it", printable(stem, 1000));
  } catch (const UserError& error) {
    warn("{} Rebuilding the index.", error.what());
  } catch (const json::exception&) {
    warn("{}.json: the cached description is damaged; rebuilding the index", printable(stem, 1000));
  }
  return {};
}

}  // namespace

GPTIndex cached_gpt_index(const IndexedDataset& dataset, SequenceRange range, const GPTIndexOptions& options,
                          const std::string& cache_path) {
  const auto build = [&] {
    return build_gpt_index(range, dataset.lengths(range.first, range.size()), options);
  };
  if (cache_path.empty()) return build();
  make_directories(cache_path, ExitCode::data);
  const json description = description_of(dataset, range, options);
  const std::string stem =
      (fs::path(cache_path) / ("gpt-" + hash_to_hex(hash_text(description.dump())))).string();
  if (auto index = load(stem, description)) return *std::move(index);
  const FileLock lock = FileLock::acquire(stem + ".lock");  // one process builds, the others then load
  if (auto index = load(stem, description)) return *std::move(index);
  const GPTIndex built = build();
  built.document_index.save(stem + "-document_index.npy");
  built.sample_index.save(stem + "-sample_index.npy");
  built.shuffle_index.save(stem + "-shuffle_index.npy");
  const json stored = {{"description", description},
                       {"dataset", dataset.prefix()},
                       {"tokens_per_epoch", built.tokens_per_epoch},
                       {"epochs", built.epochs},
                       {"samples", built.samples()}};
  write_text(stem + ".json", stored.dump(2), ExitCode::data);
  return built;
}

}  // namespace teratron
