#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/shard_reader.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/comm/collective_errors.h"

// Fault points: [that of shared_manifest.h,] ckpt.load_begin, ckpt.load_block (each; a bitflip damages what
// was read), ckpt.load_end.

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string describe(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

// Names, and what is wrong with them.
using Mismatches = std::set<std::pair<std::string, std::string>>;

// Compares the tensors that this rank asks for with those of the checkpoint.
Mismatches match(const std::vector<LocalTensor>& tensors, const CheckpointInfo& checkpoint) {
  Mismatches problems;
  for (const LocalTensor& tensor : tensors) {
    const auto found = checkpoint.tensors.find(tensor.name);
    if (found == checkpoint.tensors.end()) {
      problems.emplace(tensor.name, "is not in the checkpoint");
    } else if (found->second.shape != tensor.shard.global_shape || found->second.dtype != tensor.dtype) {
      problems.emplace(tensor.name, fmt::format("is {} in the checkpoint, {} in this run",
                                                describe(found->second.dtype, found->second.shape),
                                                describe(tensor.dtype, tensor.shard.global_shape)));
    }
  }
  return problems;
}

// Adds tensors of the checkpoint that no rank asks for.
void add_unused(const std::vector<std::string>& unused, const std::vector<std::string>& ignored_names,
                const CheckpointInfo& checkpoint, Mismatches& problems) {
  for (const std::string& name : unused) {
    const bool ignored = std::any_of(ignored_names.begin(), ignored_names.end(),
                                     [&name](const std::string& prefix) { return name.starts_with(prefix); });
    const TensorInfo& tensor = checkpoint.tensors.at(name);
    if (!ignored)
      problems.emplace(name, fmt::format("({}) is in the checkpoint, but not in this run",
                                         describe(tensor.dtype, tensor.shape)));
  }
}

void reject(const Mismatches& found, const CheckpointInfo& checkpoint) {
  if (found.empty()) return;
  std::vector<Problem> problems;
  const std::string where = printable(checkpoint.path.string(), 4096);
  for (const auto& [name, what] : found) {
    problems.push_back({.what = fmt::format("tensor \"{}\" {}", printable(name), what), .where = where});
  }
  // Rows of the vocabulary alone: the embedding, an output layer, its bias.
  const bool vocabulary_alone = std::all_of(found.begin(), found.end(), [](const auto& problem) {
    const auto& [name, what] = problem;
    const bool differs = what.starts_with("is ") && what.ends_with(" in this run");
    return differs && (name.ends_with("word_embeddings.weight") || name.find("output_layer.") != name.npos);
  });
  problems.back().fix =
      vocabulary_alone
          ? "The vocabularies differ in size: use the checkpoint's tokenizer, and --use-checkpoint-args or "
            "--vocab-size if it has more embedding rows than that"
          : "The checkpoint holds another model: compare the settings with 'teratron ckpt inspect'";
  throw UserError(ExitCode::checkpoint, std::move(problems));
}

// Collective: throws what is wrong on any rank, on all.
void reject_on_all(const Mismatches& mine, const CheckpointInfo& checkpoint, HostGroup& group) {
  const auto as_text = [&mine] { return mine.empty() ? std::string() : json(mine).dump(); };
  run_on_all_ranks(group, as_text, [&checkpoint](const std::vector<std::string>& lists) {
    Mismatches all;
    for (const std::string& list : lists) {
      if (!list.empty()) all.merge(json::parse(list).get<Mismatches>());
    }
    reject(all, checkpoint);
    return "";
  });
}

// Copies what a stored chunk and a local tensor share, block by block.
class ChunkLoader {
 public:
  ChunkLoader(ShardReader& reader, const LocalTensor& target, char* buffer)
      : reader_(reader), target_(target), element_(size_of(target.dtype)), buffer_(buffer) {}

  /// In the overlaps, `local` is an offset in the target and `other` in the chunk.
  void load(const ManifestChunk& chunk, const std::vector<Overlap>& overlaps) {
    size_t first = 0;
    for (int64_t block = 0; first < overlaps.size(); ++block) {
      const int64_t begin = block * Manifest::block_bytes;
      const int64_t end = begin + ShardReader::block_size(chunk, block);
      TERATRON_ASSERT(begin < end, "{}", target_.name);
      if (overlaps[first].other * element_ >= end) continue;
      copy_block(chunk, block, std::span(overlaps).subspan(first), {begin, end});
      while (first < overlaps.size() && end_of(overlaps[first]) <= end) ++first;
    }
  }

 private:
  struct ByteRange {
    int64_t begin;
    int64_t end;
  };

  int64_t end_of(const Overlap& overlap) const { return (overlap.other + overlap.length) * element_; }

  void copy_block(const ManifestChunk& chunk, int64_t block, std::span<const Overlap> overlaps,
                  ByteRange range) {
    char* const data = static_cast<char*>(target_.data);
    const Overlap& first = overlaps.front();
    if (first.other * element_ <= range.begin && end_of(first) >= range.end) {  // the whole block
      reader_.read_block(target_.name, chunk, block,
                         data + ((first.local - first.other) * element_ + range.begin));
      return;
    }
    if (!reader_.read_block(target_.name, chunk, block, buffer_)) return;
    for (const Overlap& overlap : overlaps) {
      const int64_t overlap_begin = overlap.other * element_;
      if (overlap_begin >= range.end) break;
      const int64_t begin = std::max(overlap_begin, range.begin);
      const int64_t end = std::min(end_of(overlap), range.end);
      std::memcpy(data + overlap.local * element_ + begin - overlap_begin, buffer_ + begin - range.begin,
                  static_cast<size_t>(end - begin));
    }
  }

  ShardReader& reader_;
  const LocalTensor& target_;
  int64_t element_;
  char* buffer_;
};

// The index ranges of each chunk of a tensor, checked against the bytes stored.
std::vector<std::vector<IndexRange>> ranges_of_chunks(const std::string& name, const ManifestTensor& tensor) {
  std::vector<std::vector<IndexRange>> ranges;
  for (const ManifestChunk& chunk : tensor.chunks) {
    ranges.push_back(stored_ranges(chunk));
    const int64_t elements = total_length(ranges.back());
    if (elements * size_of(tensor.dtype) != chunk.bytes) {
      throw CorruptCheckpoint({{.what = fmt::format("tensor \"{}\": a part has {} bytes for {} elements",
                                                    printable(name), chunk.bytes, elements)}});
    }
  }
  return ranges;
}

// Zeroes the elements outside `ranges`: uninitialized padding must not enter any arithmetic.
void clear_padding(const LocalTensor& target, const std::vector<IndexRange>& ranges) {
  const int64_t element = size_of(target.dtype);
  char* const data = static_cast<char*>(target.data);
  int64_t end = 0;
  const auto clear_until = [&](int64_t begin) {
    if (begin > end) std::memset(data + end * element, 0, static_cast<size_t>((begin - end) * element));
  };
  for (const IndexRange& range : ranges) {
    clear_until(range.local);
    end = range.local + range.length;
  }
  clear_until(flat_end_of(target) - target.flat_begin);
}

}  // namespace

// Loads one local tensor after the other; consecutive ones of the same name share the list of chunks.
class TensorLoader {
 public:
  TensorLoader(ShardReader& reader, const Manifest& manifest)
      : reader_(reader), manifest_(manifest), buffer_(std::make_unique<char[]>(Manifest::block_bytes)) {}

  void load(const LocalTensor& target) {
    const ManifestTensor& tensor = manifest_.tensors.at(target.name);
    if (current_ != target.name) chunk_ranges_ = ranges_of_chunks(target.name, tensor);
    current_ = target.name;
    const std::vector<IndexRange> needed = index_ranges(target.shard, target.flat_begin, flat_end_of(target));
    clear_padding(target, needed);
    ChunkLoader loader(reader_, target, buffer_.get());
    int64_t found = 0;
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      const std::vector<Overlap> overlaps = intersect(needed, chunk_ranges_[i]);
      for (const Overlap& overlap : overlaps) found += overlap.length;
      loader.load(tensor.chunks[i], overlaps);
    }
    if (found != total_length(needed)) {
      reader_.problems().push_back(
          {.what = fmt::format("tensor \"{}\": {} elements are needed, {} are stored", printable(target.name),
                               total_length(needed), found)});
    }
  }

 private:
  ShardReader& reader_;
  const Manifest& manifest_;
  std::unique_ptr<char[]> buffer_;
  std::string current_;
  std::vector<std::vector<IndexRange>> chunk_ranges_;
};

namespace {

void load_all(const std::vector<LocalTensor>& tensors, TensorLoader& loader) {
  std::vector<const LocalTensor*> order;
  for (const LocalTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const LocalTensor* a, const LocalTensor* b) { return a->name < b->name; });
  for (const LocalTensor* target : order) loader.load(*target);
}

void check_coverage(const std::string& name, const ManifestTensor& tensor, std::vector<Problem>& problems) {
  std::vector<IndexRange> all;
  for (const std::vector<IndexRange>& ranges : ranges_of_chunks(name, tensor))
    all.insert(all.end(), ranges.begin(), ranges.end());
  const int64_t end = covered_prefix(std::move(all));
  if (end != checked_numel(tensor.shape)) {
    problems.push_back({.what = fmt::format("tensor \"{}\": element {} is stored not at all or twice",
                                            printable(name), end)});
  }
}

}  // namespace

int64_t load_tensors(const SharedManifest& shared, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group) {
  const CheckpointInfo& checkpoint = shared.info();
  const SharedManifest::Selection selected = shared.select(tensors);
  Mismatches mismatches = match(tensors, checkpoint);
  add_unused(selected.unused, ignored, checkpoint, mismatches);
  reject_on_all(mismatches, checkpoint, group);
  ShardReader reader(checkpoint.path, selected.manifest);
  run_on_all_ranks(group, [&] {
    fault_point("ckpt.load_begin");
    TensorLoader loader(reader, selected.manifest);
    load_all(tensors, loader);
    if (!reader.problems().empty()) throw CorruptCheckpoint(reader.problems());
    fault_point("ckpt.load_end");
  });
  return reader.bytes_read();
}

int64_t load_tensors(const fs::path& path, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group) {
  return load_tensors(SharedManifest(path, group), tensors, ignored, group);
}

void load_tensors(const CheckpointSource& checkpoint, const std::vector<LocalTensor>& tensors,
                  const std::vector<std::string>& ignored, HostGroup& group) {
  const CheckpointInfo& info = checkpoint.info();
  std::map<std::string, TensorInfo> requested;
  for (const LocalTensor& tensor : tensors)
    requested[tensor.name] = {tensor.dtype, tensor.shard.global_shape};
  const std::map<std::string, TensorInfo> used = tensors_of_all_ranks(requested, group);
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : info.tensors) {
    if (!used.contains(name)) unused.push_back(name);
  }
  Mismatches mismatches = match(tensors, info);
  add_unused(unused, ignored, info, mismatches);
  reject_on_all(mismatches, info, group);
  run_on_all_ranks(group, [&] {
    for (const LocalTensor& target : tensors) {
      clear_padding(target, index_ranges(target.shard, target.flat_begin, flat_end_of(target)));
      checkpoint.read(target);
    }
  });
}

struct CheckpointReader::State {
  State(const fs::path& path, Manifest described)
      : manifest(std::move(described)),
        info(describe_checkpoint(path, manifest)),
        reader(path, manifest),
        loader(reader, manifest) {}
  Manifest manifest;
  CheckpointInfo info;
  ShardReader reader;
  TensorLoader loader;
};

CheckpointReader::CheckpointReader(const fs::path& path)
    : state_(std::make_unique<State>(path, read_manifest(path))) {}

CheckpointReader::CheckpointReader(const SharedManifest& manifest, const std::vector<LocalTensor>& parts)
    : state_(std::make_unique<State>(manifest.info().path, manifest.select(parts).manifest)) {}

CheckpointReader::~CheckpointReader() = default;

const CheckpointInfo& CheckpointReader::info() const {
  return state_->info;
}

void CheckpointReader::read(const LocalTensor& target) const {
  reject(match({target}, state_->info), state_->info);
  state_->loader.load(target);
  if (!state_->reader.problems().empty()) throw CorruptCheckpoint(std::move(state_->reader.problems()));
}

int64_t verify_checkpoint(const fs::path& path) {
  const Manifest manifest = read_manifest(path);
  ShardReader reader(path, manifest);
  const auto buffer = std::make_unique<char[]>(Manifest::block_bytes);
  for (const auto& [name, tensor] : manifest.tensors) {
    check_coverage(name, tensor, reader.problems());
    for (const ManifestChunk& chunk : tensor.chunks) {
      for (int64_t block = 0; block < block_count(chunk.bytes); ++block) {
        reader.read_block(name, chunk, block, buffer.get());
      }
    }
  }
  if (!reader.problems().empty()) throw CorruptCheckpoint(std::move(reader.problems()));
  return reader.bytes_read();
}

}  // namespace teratron
