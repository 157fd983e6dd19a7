#include "teratron/ckpt/write_shards.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <numeric>

#include "teratron/base/fault_point.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

// Shape in the file: the part's if it is rectangular, else flat.
std::vector<int64_t> stored_shape(const SaveItem& item) {
  const Region& region = item.region;
  const std::vector<Piece> pieces = region.sharding.pieces();
  const bool whole = region.trimmed.empty() && region.flat_begin == 0 &&
                     region.flat_end == local_numel(region.sharding) && pieces.size() == 1;
  if (whole) return pieces[0].global.size;
  return {total_length(item.ranges)};
}

// What the threads of one save share.
struct Save {
  const SaveRequest& request;
  const SavePlan& plan;
  const ShardTarget& target;
  std::atomic<bool> failed = false;

  int64_t element_bytes(const SaveItem& item) const { return size_of(plan.tensors.at(item.name).dtype); }
  int64_t bytes(const SaveItem& item) const { return total_length(item.ranges) * element_bytes(item); }
};

struct ShardFile {
  std::string name;
  std::vector<const SaveItem*> items;
  int64_t bytes = 0;
};

// Files of about equal size: the largest item goes first, to the smallest file.
std::vector<ShardFile> divide(const Save& save) {
  std::vector<const SaveItem*> items;
  int64_t total = 0;
  for (const SaveItem& item : save.plan.items) {
    items.push_back(&item);
    total += save.bytes(item);
  }
  std::stable_sort(items.begin(), items.end(),
                   [&](const SaveItem* a, const SaveItem* b) { return save.bytes(*a) > save.bytes(*b); });
  const int64_t most = std::min<int64_t>(save.request.writers, static_cast<int64_t>(items.size()));
  const int64_t count =
      std::clamp<int64_t>(total / save.request.min_file_bytes, 1, std::max<int64_t>(most, 1));
  std::vector<ShardFile> files(static_cast<size_t>(count));
  for (const SaveItem* item : items) {
    ShardFile& smallest = *std::min_element(
        files.begin(), files.end(), [](const ShardFile& a, const ShardFile& b) { return a.bytes < b.bytes; });
    smallest.items.push_back(item);
    smallest.bytes += save.bytes(*item);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = i == 0 ? fmt::format("shard-{:05d}.safetensors", save.target.rank)
                           : fmt::format("shard-{:05d}-{}.safetensors", save.target.rank, i);
    // Widest dtype first keeps every tensor aligned.
    std::sort(files[i].items.begin(), files[i].items.end(), [&](const SaveItem* a, const SaveItem* b) {
      return std::pair(-save.element_bytes(*a), a) < std::pair(-save.element_bytes(*b), b);
    });
  }
  return files;
}

std::vector<SafetensorsWriter::Tensor> declare(const Save& save, const ShardFile& file) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::map<std::string, int> uses;
  for (const SaveItem* item : file.items) {
    const int use = uses[item->name]++;
    tensors.push_back({use == 0 ? item->name : fmt::format("{}#{}", item->name, use),
                       save.plan.tensors.at(item->name).dtype, stored_shape(*item)});
  }
  return tensors;
}

// The elements of a tensor of the request, in host memory.
class Source {
 public:
  explicit Source(const LocalTensor& tensor)
      : tensor_(tensor), fetched_(tensor.fetch ? tensor.fetch() : nullptr) {}

  /// Valid until the next call.
  const char* elements(int64_t begin, int64_t count) {
    if (tensor_.read) {
      piece_.reset();  // before the next read, which may wait for its memory
      piece_ = tensor_.read(begin, begin + count);
      return static_cast<const char*>(piece_.get());
    }
    const void* const data = tensor_.fetch ? fetched_.get() : tensor_.data;
    return static_cast<const char*>(data) + begin * size_of(tensor_.dtype);
  }

 private:
  const LocalTensor& tensor_;
  std::shared_ptr<const void> fetched_;
  std::shared_ptr<const void> piece_;
};

// Streams an item into the file and returns its block hashes.
std::vector<uint64_t> write_item(const Save& save, const SaveItem& item, SafetensorsWriter& writer) {
  const std::vector<IndexRange>& ranges = item.ranges;
  std::vector<uint64_t> hashes;
  Hasher hasher;
  Source source(save.request.tensors[item.source]);
  const int64_t element = save.element_bytes(item), block = Manifest::block_bytes / element;
  int64_t in_block = 0;
  const auto end_block = [&] {
    hashes.push_back(hasher.digest());
    hasher.reset();
    in_block = 0;
    fault_point("ckpt.shard_block");
    if (save.failed) throw Fault("another file of this checkpoint failed");  // is not reported
  };
  for (size_t i = 0; i < ranges.size();) {
    // Ranges that are contiguous in the source are read and written together.
    int64_t at = ranges[i].local, left = ranges[i].length;
    for (++i; i < ranges.size() && ranges[i].local == ranges[i - 1].local + ranges[i - 1].length; ++i) {
      left += ranges[i].length;
    }
    while (left > 0) {
      const int64_t step = std::min(left, block - in_block);
      const char* const data = source.elements(at, step);
      hasher.update(data, static_cast<size_t>(step * element));
      writer.write(data, step * element);
      at += step;
      left -= step;
      in_block += step;
      if (in_block == block) end_block();
    }
  }
  if (in_block > 0) end_block();
  return hashes;
}

ManifestFragment write_file(const Save& save, const ShardFile& file) {
  set_fault_context(save.target.rank, save.request.iteration);
  const std::vector<SafetensorsWriter::Tensor> tensors = declare(save, file);
  SafetensorsWriter writer(save.target.partial / file.name, tensors,
                           {{"run_id", save.target.run_id},
                            {"iteration", std::to_string(save.request.iteration)},
                            {"rank", std::to_string(save.target.rank)}});
  ManifestFragment written;
  const auto header_bytes = static_cast<int64_t>(writer.header().size());
  written.shards.push_back({.file = file.name,
                            .bytes = writer.file_bytes(),
                            .header_bytes = header_bytes,
                            .header_hash = hash_text(writer.header())});
  fault_point("ckpt.shard_created");
  int64_t offset = header_bytes;
  for (size_t i = 0; i < file.items.size(); ++i) {
    const SaveItem& item = *file.items[i];
    ManifestChunk chunk{.stored_name = tensors[i].name, .offset = offset, .region = item.region};
    chunk.bytes = save.bytes(item);
    chunk.hashes = write_item(save, item, writer);
    offset += chunk.bytes;
    ManifestTensor& tensor = written.tensors[item.name];
    tensor.dtype = tensors[i].dtype;
    tensor.shape = save.plan.tensors.at(item.name).shape;
    tensor.chunks.push_back(std::move(chunk));
  }
  fault_point("ckpt.before_shard_sync");
  writer.finish();
  fault_point("ckpt.shard_done");
  return written;
}

}  // namespace

ManifestFragment write_shards(const SaveRequest& request, const SavePlan& plan, const ShardTarget& target) {
  Save save{request, plan, target};
  const std::vector<ShardFile> files = divide(save);
  std::vector<ManifestFragment> written(files.size());
  std::mutex mutex;
  std::exception_ptr first;
  const auto write = [&](size_t i) {
    try {
      written[i] = write_file(save, files[i]);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      save.failed = true;
    }
  };
  {
    std::vector<std::future<void>> others;  // their destructors wait
    for (size_t i = 1; i < files.size(); ++i) others.push_back(std::async(std::launch::async, write, i));
    write(0);
  }
  if (first) std::rethrow_exception(first);
  FragmentBuilder all;
  for (const ManifestFragment& part : written) all.add(part);
  return all.take();
}

}  // namespace teratron
