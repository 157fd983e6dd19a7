#include "teratron/ckpt/shared_manifest.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/shard_reader.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Elements [begin, end) of a flattened global tensor.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

Extent extent_of(const std::vector<IndexRange>& ranges) {
  if (ranges.empty()) return {};
  return {ranges.front().global, ranges.back().global + ranges.back().length};
}

struct Wanted {
  std::string name;
  Extent extent;
};

// Takes the chunks of a manifest of one file out of it, and describes it to the other ranks like one of
// several files.
ManifestFragment take_chunks(Manifest& manifest) {
  ManifestFragment whole{.shards = std::move(manifest.shards), .tensors = std::move(manifest.tensors)};
  manifest.files.push_back({.file = "manifest.json"});
  manifest.shards.clear();
  manifest.tensors.clear();
  for (const auto& [name, tensor] : whole.tensors) manifest.tensors[name] = {tensor.dtype, tensor.shape, {}};
  return whole;
}

std::vector<Wanted> wanted_from(const std::string& text) {
  std::vector<Wanted> wanted;
  for (const json& entry : json::from_cbor(text)) wanted.push_back({entry[0], {entry[1], entry[2]}});
  return wanted;
}

// Answers requests for the chunks of some fragments; the extents of a tensor's chunks are computed once.
class ChunkFinder {
 public:
  explicit ChunkFinder(const std::map<int64_t, ManifestFragment>& files) {
    for (const auto& [file, fragment] : files) {
      for (const auto& [name, tensor] : fragment.tensors) tensors_[name] = {&fragment, &tensor, {}};
    }
  }

  std::string find(const std::vector<Wanted>& wanted) {
    FragmentBuilder found;
    for (const auto& [name, extent] : wanted) {
      Entry& entry = tensors_.at(name);
      entry.is_used = true;
      const std::vector<ManifestChunk>& chunks = entry.tensor->chunks;
      found.add_tensor(name, *entry.tensor);
      if (entry.extents.empty()) {
        for (const ManifestChunk& chunk : chunks)
          entry.extents.push_back(extent_of(index_ranges(chunk.region)));
      }
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (extent.meets(entry.extents[i]))
          found.add_chunk(name, chunks[i], entry.fragment->shards[chunks[i].shard]);
      }
    }
    return to_text(found.take());
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : tensors_) {
      if (!entry.is_used) names.push_back(name);
    }
    return names;
  }

 private:
  struct Entry {
    const ManifestFragment* fragment = nullptr;
    const ManifestTensor* tensor = nullptr;
    std::vector<Extent> extents;  // of the chunks
    bool is_used = false;
  };
  std::map<std::string, Entry> tensors_;
};

// Per name: a rank may hold several parts of a tensor.
std::map<std::string, Extent> extents_of(const std::vector<LocalTensor>& tensors, const Manifest& index) {
  std::map<std::string, Extent> extents;
  for (const LocalTensor& tensor : tensors) {
    const auto known = index.tensors.find(tensor.name);
    if (known == index.tensors.end()) continue;
    Extent extent;  // empty if it is another tensor, which is an error later
    if (known->second.shape == tensor.shard.global_shape)
      extent = extent_of(index_ranges(tensor.shard, tensor.flat_begin, flat_end_of(tensor)));
    const auto [entry, is_new] = extents.emplace(tensor.name, extent);
    if (is_new || extent.begin == extent.end) continue;
    Extent& all = entry->second;
    all = all.begin == all.end ? extent
                               : Extent{std::min(all.begin, extent.begin), std::max(all.end, extent.end)};
  }
  return extents;
}

}  // namespace

SharedManifest::SharedManifest(fs::path path, HostGroup& group) : path_(std::move(path)), group_(group) {
  const std::string text = run_on_rank_0(group_, [&] {
    reject_pickled(path_);
    index_ = read_manifest_index(path_);
    if (index_.files.empty()) files_[0] = take_chunks(index_);
    return to_text(index_);
  });
  if (group_.rank() != 0) index_ = parse_manifest(text, printable(path_.string(), 4096));
  find_folder();
  run_on_all_ranks(group_, [&] {
    for (int64_t file = 0; file < static_cast<int64_t>(index_.files.size()); ++file) {
      if (keeper(file) == group_.rank() && !files_.contains(file))
        files_[file] = read_manifest_file(folder_, index_, file);
    }
  });
  info_ = describe_checkpoint(path_, index_);
}

// In a folder of one node may be another save.
void SharedManifest::find_folder() {
  const std::string hidden = run_on_all_ranks(
      group_,
      [this] {
        std::error_code ignored;
        fs::path uncommitted = path_;
        uncommitted += ".partial-" + index_.run_id;
        if (group_.rank() == 0) {
          folder_ = path_;  // where it has read the manifest
        } else if (index_.nodes.empty()) {
          if (fs::exists(path_ / "manifest.json", ignored)) folder_ = path_;
        } else if (is_prepared(path_, index_.run_id)) {
          folder_ = path_;
        } else if (is_prepared(uncommitted, index_.run_id)) {
          folder_ = uncommitted;
        }
        return std::string(folder_.empty() ? "hidden" : "");
      },
      [](const std::vector<std::string>& views) {
        const bool all = std::ranges::all_of(views, &std::string::empty);
        return std::string(all ? "" : "hidden");
      });
  everywhere_ = hidden.empty();
}

// Spread over the ranks, so also over their hosts, if all of them can read the files.
int64_t SharedManifest::keeper(int64_t file) const {
  if (!everywhere_) return 0;
  return file * group_.size() / static_cast<int64_t>(index_.files.size()) % group_.size();
}

RankBytes SharedManifest::requests_for(const std::vector<LocalTensor>& tensors) const {
  std::map<int64_t, json> wanted;
  for (const auto& [name, extent] : extents_of(tensors, index_)) {
    wanted[keeper(index_.tensors.at(name).file)].push_back({name, extent.begin, extent.end});
  }
  RankBytes requests;
  for (const auto& [rank, list] : wanted) {
    const std::vector<uint8_t> bytes = json::to_cbor(list);
    requests[rank] = {bytes.begin(), bytes.end()};
  }
  return requests;
}

SharedManifest::Selection SharedManifest::select(const std::vector<LocalTensor>& tensors) const {
  JointSteps steps(group_, "ckpt.load_select");
  RankBytes requests, answers;
  Selection selection{.manifest = index_, .unused = {}};
  steps.run([&] { requests = requests_for(tensors); });
  const RankBytes asked = steps.exchange(requests);
  steps.run([&] {
    ChunkFinder finder(files_);
    for (const auto& [rank, text] : asked) answers[rank] = finder.find(wanted_from(text));
    selection.unused = finder.unused();
  });
  const RankBytes told = steps.exchange(answers);
  steps.run([&] {
    FragmentBuilder received;
    for (const auto& [rank, text] : told)
      received.add(parse_fragment(text, printable(path_.string(), 4096), Chunks::some));
    ManifestFragment fragment = received.take();
    selection.manifest.shards = std::move(fragment.shards);
    for (auto& [name, tensor] : fragment.tensors)
      selection.manifest.tensors.at(name).chunks = std::move(tensor.chunks);
  });
  steps.agree();
  return selection;
}

RankBytes SharedManifest::shards_by_rank() const {
  std::map<int64_t, std::map<std::string, int64_t>> shards;  // bytes by file: several files list a shard
  for (const auto& [file, fragment] : files_) {
    for (const ManifestShard& shard : fragment.shards)
      shards[planner_of(shard.file, group_.size())][shard.file] = shard.bytes;
  }
  RankBytes parts;
  for (const auto& [rank, sizes] : shards) {
    const std::vector<uint8_t> bytes = json::to_cbor(json(sizes));
    parts[rank] = {bytes.begin(), bytes.end()};
  }
  return parts;
}

void SharedManifest::check_sizes() const {
  JointSteps steps(group_, "ckpt.check_sizes");
  RankBytes parts;
  steps.run([&] { parts = shards_by_rank(); });
  const RankBytes told = steps.exchange(parts);
  steps.run([&] {
    std::map<std::string, int64_t> sizes;
    for (const auto& [rank, bytes] : told) sizes.merge(json::from_cbor(bytes).get<decltype(sizes)>());
    std::vector<ManifestShard> shards;
    for (const auto& [file, bytes] : sizes) {
      std::error_code ignored;
      if (may_be_elsewhere() && (folder_.empty() || !fs::exists(folder_ / file, ignored))) continue;
      shards.push_back({.file = file, .bytes = bytes});
    }
    std::vector<Problem> problems = size_problems(folder_, shards);
    if (!problems.empty()) throw CorruptCheckpoint(std::move(problems));
  });
  steps.agree();
}

}  // namespace teratron
