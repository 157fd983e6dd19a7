#include "teratron/ckpt/tensor_loader.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "teratron/ckpt/save_plan.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

namespace {

// Copies what a stored chunk and a local tensor share, block by block.
class ChunkLoader {
 public:
  ChunkLoader(ShardReader& reader, const LocalTensor& target, char* buffer)
      : reader_(reader), target_(target), element_(size_of(target.dtype)), buffer_(buffer) {}

  /// In the overlaps, `local` is an offset in the target and `other` in the chunk.
  void load(const ManifestChunk& chunk, const std::vector<Overlap>& overlaps) {
    for_each_block(chunk, overlaps, [&](int64_t block, std::span<const Overlap> rest, ByteRange range) {
      copy_block(chunk, block, rest, range);
    });
  }
  /// What load() will read of it.
  void list_blocks(const ManifestChunk& chunk, const std::vector<Overlap>& overlaps,
                   std::set<ShardBytes>& blocks) {
    for_each_block(chunk, overlaps, [&](int64_t block, std::span<const Overlap>, ByteRange) {
      blocks.insert(reader_.place_of(chunk, block));
    });
  }

 private:
  struct ByteRange {
    int64_t begin;
    int64_t end;
  };

  template <typename Use>
  void for_each_block(const ManifestChunk& chunk, const std::vector<Overlap>& overlaps, const Use& use) {
    size_t first = 0;
    for (int64_t block = 0; first < overlaps.size(); ++block) {
      const int64_t begin = block * Manifest::block_bytes;
      const int64_t end = begin + ShardReader::block_size(chunk, block);
      TERATRON_ASSERT(begin < end, "{}", target_.name);
      if (overlaps[first].other * element_ >= end) continue;
      use(block, std::span(overlaps).subspan(first), ByteRange{begin, end});
      while (first < overlaps.size() && end_of(overlaps[first]) <= end) ++first;
    }
  }

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

}  // namespace

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

void TensorLoader::find_ranges(const std::string& name, const ManifestTensor& tensor) {
  if (current_ == name) return;
  chunk_ranges_ = ranges_of_chunks(name, tensor);
  current_ = name;
}

void TensorLoader::load(const LocalTensor& target) {
  const ManifestTensor& tensor = manifest_.tensors.at(target.name);
  find_ranges(target.name, tensor);
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
    reader_.problems().push_back({.what = fmt::format("tensor \"{}\": {} elements are needed, {} are stored",
                                                      printable(target.name), total_length(needed), found)});
  }
}

void TensorLoader::list_blocks(const LocalTensor& target, const RemoteShards& remote,
                               std::set<ShardBytes>& blocks) {
  const ManifestTensor& tensor = manifest_.tensors.at(target.name);
  find_ranges(target.name, tensor);
  const std::vector<IndexRange> needed = index_ranges(target.shard, target.flat_begin, flat_end_of(target));
  ChunkLoader loader(reader_, target, buffer_.get());
  for (size_t i = 0; i < tensor.chunks.size(); ++i) {
    if (remote.holds(manifest_.shards[tensor.chunks[i].shard].file))
      loader.list_blocks(tensor.chunks[i], intersect(needed, chunk_ranges_[i]), blocks);
  }
}

}  // namespace teratron
