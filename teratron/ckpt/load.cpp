#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/ckpt/agree.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/shard_reader.h"

// Fault points: ckpt.load_begin, ckpt.load_block (each; a bitflip damages what was read), ckpt.load_end.

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string describe(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

// Compares what this rank asks for with what there is.
json match(const std::vector<LocalTensor>& tensors, const Manifest& manifest) {
  json names = json::array();
  json problems = json::array();
  for (const LocalTensor& tensor : tensors) {
    names.push_back(tensor.name);
    const auto found = manifest.tensors.find(tensor.name);
    if (found == manifest.tensors.end()) {
      problems.push_back({tensor.name, "is not in the checkpoint"});
    } else if (found->second.shape != tensor.shard.global_shape || found->second.dtype != tensor.dtype) {
      problems.push_back({tensor.name, fmt::format("is {} in the checkpoint, {} in this run",
                                                   describe(found->second.dtype, found->second.shape),
                                                   describe(tensor.dtype, tensor.shard.global_shape))});
    }
  }
  return {{"names", std::move(names)}, {"problems", std::move(problems)}};
}

struct MatchContext {
  const fs::path& path;
  const Manifest& manifest;
  std::vector<std::string> ignored;
};

void reject_mismatches(const std::vector<std::string>& answers, const MatchContext& context) {
  std::set<std::string> asked;
  std::set<std::pair<std::string, std::string>> found;
  for (const std::string& answer : answers) {
    const json value = json::parse(answer);
    for (const json& name : value["names"]) asked.insert(name);
    for (const json& problem : value["problems"]) found.emplace(problem[0], problem[1]);
  }
  for (const auto& [name, tensor] : context.manifest.tensors) {
    const bool ignored = std::any_of(context.ignored.begin(), context.ignored.end(),
                                     [&name](const std::string& prefix) { return name.starts_with(prefix); });
    if (!ignored && !asked.contains(name)) {
      found.emplace(name, fmt::format("({}) is in the checkpoint, but not in this run",
                                      describe(tensor.dtype, tensor.shape)));
    }
  }
  if (found.empty()) return;
  std::vector<Problem> problems;
  const std::string where = printable(context.path.string(), 4096);
  for (const auto& [name, what] : found) {
    problems.push_back({.what = fmt::format("tensor \"{}\" {}", printable(name), what), .where = where});
  }
  problems.back().fix =
      "The checkpoint is of another model: compare the settings with 'teratron ckpt inspect'";
  throw UserError(ExitCode::checkpoint, std::move(problems));
}

// Copies what one stored part and one local tensor share, block by block.
class PartLoader {
 public:
  PartLoader(ShardReader& reader, const LocalTensor& target, char* buffer)
      : reader_(reader), target_(target), element_(size_of(target.dtype)), buffer_(buffer) {}

  void load(const ManifestPart& part, const std::vector<CommonRun>& common) {
    size_t first = 0;
    for (int64_t block = 0; first < common.size(); ++block) {
      const int64_t begin = block * Manifest::block_bytes;
      const int64_t end = begin + ShardReader::block_size(part, block);
      TERATRON_ASSERT(begin < end, "{}", target_.name);
      if (common[first].other * element_ >= end) continue;
      copy_block(part, block, std::span(common).subspan(first), {begin, end});
      while (first < common.size() && (common[first].other + common[first].length) * element_ <= end) ++first;
    }
  }

 private:
  struct ByteRange {
    int64_t begin;
    int64_t end;
  };

  void copy_block(const ManifestPart& part, int64_t block, std::span<const CommonRun> common,
                  ByteRange range) {
    char* const data = static_cast<char*>(target_.data);
    const CommonRun& whole = common.front();
    if (whole.other * element_ <= range.begin && (whole.other + whole.length) * element_ >= range.end) {
      reader_.read_block(target_.name, part, block,
                         data + whole.local * element_ + range.begin - whole.other * element_);
      return;
    }
    if (!reader_.read_block(target_.name, part, block, buffer_)) return;
    for (const CommonRun& run : common) {
      const int64_t run_begin = run.other * element_;
      if (run_begin >= range.end) break;
      const int64_t begin = std::max(run_begin, range.begin);
      const int64_t end = std::min(run_begin + run.length * element_, range.end);
      std::memcpy(data + run.local * element_ + begin - run_begin, buffer_ + begin - range.begin,
                  static_cast<size_t>(end - begin));
    }
  }

  ShardReader& reader_;
  const LocalTensor& target_;
  int64_t element_;
  char* buffer_;
};

// The runs of all parts of a tensor, checked against the bytes that are stored.
std::vector<std::vector<Run>> runs_of_parts(const std::string& name, const ManifestTensor& tensor) {
  std::vector<std::vector<Run>> runs;
  for (const ManifestPart& part : tensor.parts) {
    runs.push_back(stored_runs(part));
    if (total_length(runs.back()) * size_of(tensor.dtype) != part.bytes) {
      throw DamagedCheckpoint(
          {{.what = fmt::format("tensor \"{}\": a part has {} bytes for {} elements", printable(name),
                                part.bytes, total_length(runs.back()))}});
    }
  }
  return runs;
}

// What no run covers is padding: whatever the memory held there must not enter any arithmetic.
void clear_padding(const LocalTensor& target, const std::vector<Run>& runs) {
  const int64_t element = size_of(target.dtype);
  char* const data = static_cast<char*>(target.data);
  int64_t end = 0;
  const auto clear_until = [&](int64_t begin) {
    if (begin > end) std::memset(data + end * element, 0, static_cast<size_t>((begin - end) * element));
  };
  for (const Run& run : runs) {
    clear_until(run.local);
    end = run.local + run.length;
  }
  clear_until(flat_end_of(target) - target.flat_begin);
}

// Loads one local tensor after the other; neighbours of the same name share the work of listing its parts.
class TensorLoader {
 public:
  TensorLoader(ShardReader& reader, const Manifest& manifest)
      : reader_(reader), manifest_(manifest), buffer_(std::make_unique<char[]>(Manifest::block_bytes)) {}

  void load(const LocalTensor& target) {
    const ManifestTensor& tensor = manifest_.tensors.at(target.name);
    if (current_ != target.name) part_runs_ = runs_of_parts(target.name, tensor);
    current_ = target.name;
    const std::vector<Run> wanted = runs_of(target.shard, target.flat_begin, flat_end_of(target));
    clear_padding(target, wanted);
    PartLoader loader(reader_, target, buffer_.get());
    int64_t found = 0;
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      const std::vector<CommonRun> common = intersect(wanted, part_runs_[i]);
      for (const CommonRun& run : common) found += run.length;
      loader.load(tensor.parts[i], common);
    }
    if (found != total_length(wanted)) {
      reader_.problems().push_back(
          {.what = fmt::format("tensor \"{}\": {} elements are needed, {} are stored", printable(target.name),
                               total_length(wanted), found)});
    }
  }

 private:
  ShardReader& reader_;
  const Manifest& manifest_;
  std::unique_ptr<char[]> buffer_;
  std::string current_;
  std::vector<std::vector<Run>> part_runs_;
};

void load_all(const std::vector<LocalTensor>& tensors, TensorLoader& loader) {
  std::vector<const LocalTensor*> order;
  for (const LocalTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const LocalTensor* a, const LocalTensor* b) { return a->name < b->name; });
  for (const LocalTensor* target : order) loader.load(*target);
}

void check_whole(const std::string& name, const ManifestTensor& tensor, std::vector<Problem>& problems) {
  std::vector<Run> all;
  for (const std::vector<Run>& runs : runs_of_parts(name, tensor))
    all.insert(all.end(), runs.begin(), runs.end());
  std::sort(all.begin(), all.end(), [](const Run& a, const Run& b) { return a.global < b.global; });
  int64_t end = 0;
  for (const Run& run : all) {
    if (run.global != end) break;
    end += run.length;
  }
  if (end != checked_numel(tensor.shape)) {
    problems.push_back({.what = fmt::format("tensor \"{}\": element {} is stored not at all or twice",
                                            printable(name), end)});
  }
}

}  // namespace

LoadReport load_tensors(const fs::path& path, const std::vector<LocalTensor>& tensors,
                        const std::vector<std::string>& ignored, Peers& peers) {
  const auto start = std::chrono::steady_clock::now();
  Manifest manifest;
  const std::vector<std::string> answers = on_every_rank(peers, [&] {
    fault_point("ckpt.load_begin");
    manifest = read_manifest(path);
    return match(tensors, manifest).dump();
  });
  reject_mismatches(answers, {path, manifest, ignored});
  ShardReader reader(path, manifest);
  on_every_rank(peers, [&]() -> std::string {
    TensorLoader loader(reader, manifest);
    load_all(tensors, loader);
    if (!reader.problems().empty()) throw DamagedCheckpoint(reader.problems());
    fault_point("ckpt.load_end");
    return "";
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {reader.bytes_read(), seconds.count(), reader.hash_seconds()};
}

struct CheckpointReader::State {
  explicit State(const fs::path& path)
      : manifest(read_manifest(path)), reader(path, manifest), loader(reader, manifest) {}
  Manifest manifest;
  ShardReader reader;
  TensorLoader loader;
};

CheckpointReader::CheckpointReader(const fs::path& path) : state_(std::make_unique<State>(path)) {}
CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::read(const LocalTensor& target) {
  const std::string answer = match({target}, state_->manifest).dump();
  reject_mismatches({answer}, {state_->reader.path(), state_->manifest, {""}});
  state_->loader.load(target);
  if (!state_->reader.problems().empty()) throw DamagedCheckpoint(std::move(state_->reader.problems()));
}

int64_t verify_checkpoint(const fs::path& path) {
  const Manifest manifest = read_manifest(path);
  ShardReader reader(path, manifest);
  const auto buffer = std::make_unique<char[]>(Manifest::block_bytes);
  for (const auto& [name, tensor] : manifest.tensors) {
    check_whole(name, tensor, reader.problems());
    for (const ManifestPart& part : tensor.parts) {
      for (int64_t block = 0; block < block_count(part.bytes); ++block) {
        reader.read_block(name, part, block, buffer.get());
      }
    }
  }
  if (!reader.problems().empty()) throw DamagedCheckpoint(std::move(reader.problems()));
  return reader.bytes_read();
}

}  // namespace teratron
