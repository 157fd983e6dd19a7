#include "teratron/ckpt/manifest.h"

#include <set>

#include "teratron/base/hash.h"
#include "teratron/base/json.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Thrown inside the parser; parse_manifest adds the file.
struct BadManifest {
  std::string what;
};

void require(bool condition, const std::string& what) {
  if (!condition) throw BadManifest{what};
}

const json& member(const json& value, const char* key) {
  const auto found = value.find(key);
  require(found != value.end(), fmt::format("{} is missing", key));
  return *found;
}

std::string text_of(const json& value, const char* key) {
  const json& text = member(value, key);
  require(text.is_string(), fmt::format("{} is not a string", key));
  return text;
}

int64_t to_int(const json& value, const char* name) {
  require(value.is_number_integer() && value.get<int64_t>() >= 0,
          fmt::format("{} is not a whole number", name));
  return value.get<int64_t>();
}

std::vector<int64_t> to_ints(const json& value, const char* name) {
  require(value.is_array(), fmt::format("{} is not a list", name));
  std::vector<int64_t> numbers;
  for (const json& element : value) numbers.push_back(to_int(element, name));
  return numbers;
}

uint64_t hash_of(const std::string& text) {
  const std::optional<uint64_t> hash = hash_from_hex(text);
  require(hash.has_value(), "a hash is not 16 hexadecimal digits");
  return *hash;
}

// Shard's factories assert; values from a file need checks first.
Shard sharding_from_json(const json& value, const std::vector<int64_t>& shape) {
  Shard shard = Shard::replicated(shape);
  shard.dim = to_int(member(value, "dim"), "dim");
  shard.segments = to_ints(member(value, "segments"), "segments");
  shard.padded = to_int(member(value, "padded"), "padded");
  shard.parts = to_int(member(value, "parts"), "parts");
  shard.index = to_int(member(value, "index"), "index");
  require(shard.dim < static_cast<int64_t>(shape.size()), "dim is out of range");
  require(shard.parts > 0 && shard.index < shard.parts, "index is out of range");
  int64_t total = 0;
  for (const int64_t segment : shard.segments) {
    require(!__builtin_add_overflow(total, segment, &total), "segments overflow");
    require(shard.segments.size() == 1 || segment % shard.parts == 0, "a segment is not divisible by parts");
  }
  require(!shard.segments.empty() && total == shape[shard.dim], "segments do not add up to the dimension");
  require(shard.padded % shard.parts == 0, "padded is not divisible by parts");
  require(shard.segments.size() == 1 ? shard.padded >= total : shard.padded == total,
          "padded does not fit the segments");
  require(checked_numel(shard.local_shape()).has_value(), "the local shape overflows");
  return shard;
}

std::vector<IndexRange> trimmed_from_json(const json& value, int64_t numel) {
  std::vector<IndexRange> ranges;
  int64_t end = 0;
  int64_t stored = 0;
  for (const json& element : value) {
    const std::vector<int64_t> pair = to_ints(element, "runs");
    require(pair.size() == 2 && pair[1] > 0 && pair[0] >= end && pair[1] <= numel - pair[0],
            "runs are not sorted, disjoint and inside the tensor");
    ranges.push_back({pair[0], stored, pair[1]});
    stored += pair[1];
    end = pair[0] + pair[1];
  }
  require(!ranges.empty(), "runs are empty");
  return ranges;
}

ManifestChunk chunk_from_json(const json& value, const std::vector<int64_t>& shape) {
  const std::optional<int64_t> numel = checked_numel(shape);
  require(numel.has_value(), "the shape overflows");
  ManifestChunk chunk;
  chunk.shard = to_int(member(value, "shard"), "shard");
  chunk.stored_name = text_of(value, "name");
  chunk.offset = to_int(member(value, "offset"), "offset");
  chunk.bytes = to_int(member(value, "bytes"), "bytes");
  if (value.contains("runs")) {
    chunk.region.sharding = Shard::replicated(shape);
    chunk.region.trimmed = trimmed_from_json(value["runs"], *numel);
  } else {
    chunk.region.sharding =
        value.contains("cut") ? sharding_from_json(value["cut"], shape) : Shard::replicated(shape);
    const std::vector<int64_t> range = to_ints(member(value, "range"), "range");
    require(range.size() == 2 && range[0] <= range[1] && range[1] <= local_numel(chunk.region.sharding),
            "range is outside the local tensor");
    chunk.region.flat_begin = range[0];
    chunk.region.flat_end = range[1];
  }
  const std::string hashes = text_of(value, "hashes");
  require(hashes.size() % 16 == 0 && static_cast<int64_t>(hashes.size() / 16) == block_count(chunk.bytes),
          "the number of hashes does not match the bytes");
  for (size_t i = 0; i < hashes.size(); i += 16) chunk.hashes.push_back(hash_of(hashes.substr(i, 16)));
  return chunk;
}

void require_plain(const std::string& file) {
  require(!file.empty() && file.find('/') == file.npos && file.front() != '.',
          fmt::format("'{}' is not a plain file name", printable(file)));
}

ManifestShard shard_from_json(const json& value) {
  ManifestShard shard;
  shard.file = text_of(value, "file");
  shard.bytes = to_int(member(value, "bytes"), "bytes");
  shard.header_bytes = to_int(member(value, "header_bytes"), "header_bytes");
  shard.header_hash = hash_of(text_of(value, "header_hash"));
  require_plain(shard.file);
  require(shard.header_bytes <= shard.bytes && shard.header_bytes <= (int64_t{1} << 27),
          "header_bytes is out of range");
  return shard;
}

// Together the chunks are the tensor. This also bounds the work for a chunk by the bytes on disk.
void check_complete(const ManifestTensor& tensor) {
  int64_t bytes = 0;
  for (const ManifestChunk& chunk : tensor.chunks) {
    require(!__builtin_add_overflow(bytes, chunk.bytes, &bytes), "the parts overflow");
  }
  const std::optional<int64_t> numel = checked_numel(tensor.shape);
  int64_t expected = 0;
  require(numel && !__builtin_mul_overflow(*numel, size_of(tensor.dtype), &expected), "the shape overflows");
  require(bytes == expected, fmt::format("its parts have {} bytes instead of {}", bytes, expected));
  require(expected > 0 || tensor.chunks.empty(), "it is empty and has parts");
}

ManifestTensor described_tensor(const json& value) {
  ManifestTensor tensor;
  const std::optional<Dtype> dtype = dtype_from_name(text_of(value, "dtype"));
  require(dtype.has_value(), "unknown dtype");
  tensor.dtype = *dtype;
  tensor.shape = to_ints(member(value, "shape"), "shape");
  require(tensor.shape.size() <= 32, "too many dimensions");
  require(checked_numel(tensor.shape).has_value(), "the shape overflows");
  return tensor;
}

ManifestTensor tensor_from_json(const json& value, const std::vector<ManifestShard>& shards) {
  ManifestTensor tensor = described_tensor(value);
  for (const json& element : member(value, "parts")) {
    ManifestChunk chunk = chunk_from_json(element, tensor.shape);
    require(chunk.shard < static_cast<int64_t>(shards.size()), "a part is in a shard that is not listed");
    const ManifestShard& shard = shards[chunk.shard];
    require(chunk.offset >= shard.header_bytes && chunk.offset <= shard.bytes &&
                chunk.bytes <= shard.bytes - chunk.offset,
            "a part is outside its shard");
    tensor.chunks.push_back(std::move(chunk));
  }
  return tensor;
}

template <typename Parse>
std::map<std::string, ManifestTensor> tensors_from_json(const json& value, const Parse& parse) {
  std::map<std::string, ManifestTensor> tensors;
  for (const auto& [name, tensor] : value.items()) {
    try {
      tensors.emplace(name, parse(tensor));
    } catch (const BadManifest& bad) {
      throw BadManifest{fmt::format("tensor \"{}\": {}", printable(name), bad.what)};
    }
  }
  return tensors;
}

ManifestFragment fragment_from_json(const json& value, Chunks chunks) {
  ManifestFragment fragment;
  for (const json& shard : member(value, "shards")) fragment.shards.push_back(shard_from_json(shard));
  fragment.tensors = tensors_from_json(member(value, "tensors"), [&](const json& entry) {
    ManifestTensor tensor = tensor_from_json(entry, fragment.shards);
    if (chunks == Chunks::all) check_complete(tensor);
    return tensor;
  });
  return fragment;
}

ManifestFile file_from_json(const json& value) {
  ManifestFile file{.file = text_of(value, "file"),
                    .bytes = to_int(member(value, "bytes"), "bytes"),
                    .hash = hash_of(text_of(value, "hash"))};
  require_plain(file.file);
  return file;
}

// Every rank is in one of them.
std::vector<CheckpointNode> nodes_from_json(const json& value, int64_t ranks) {
  std::vector<CheckpointNode> nodes;
  std::set<int64_t> all;
  for (const json& node : value) {
    nodes.push_back({text_of(node, "host"), to_ints(member(node, "ranks"), "ranks")});
    for (const int64_t rank : nodes.back().ranks)
      require(rank < ranks && all.insert(rank).second, "a node has a rank that is not its own");
    require(!nodes.back().ranks.empty(), "a node has no ranks");
  }
  require(static_cast<int64_t>(all.size()) == ranks, "a rank is on no node");
  return nodes;
}

// Format 2.0.
void read_index(const json& value, Manifest& manifest) {
  manifest.bytes = to_int(member(value, "bytes"), "bytes");
  manifest.ranks = to_int(member(value, "ranks"), "ranks");
  for (const json& file : member(value, "files")) manifest.files.push_back(file_from_json(file));
  require(!manifest.files.empty(), "files are empty");
  manifest.tensors = tensors_from_json(member(value, "tensors"), [&](const json& entry) {
    ManifestTensor tensor = described_tensor(entry);
    tensor.file = to_int(member(entry, "file"), "file");
    require(tensor.file < static_cast<int64_t>(manifest.files.size()), "its file is not listed");
    return tensor;
  });
}

// Format 1.0.
void read_whole(const json& value, Manifest& manifest) {
  ManifestFragment whole = fragment_from_json(value, Chunks::all);
  manifest.shards = std::move(whole.shards);
  manifest.tensors = std::move(whole.tensors);
  // Earlier releases wrote one shard per rank.
  manifest.ranks = value.contains("ranks") ? to_int(value["ranks"], "ranks")
                                           : static_cast<int64_t>(manifest.shards.size());
  for (const ManifestShard& shard : manifest.shards) {
    require(!__builtin_add_overflow(manifest.bytes, shard.bytes, &manifest.bytes), "the shards overflow");
  }
}

Manifest manifest_from_json(const json& value, bool is_divided) {
  Manifest manifest;
  manifest.run_id = text_of(value, "run_id");
  manifest.iteration = to_int(member(value, "iteration"), "iteration");
  manifest.sequence = to_int(member(value, "sequence"), "sequence");
  require(member(value, "block_bytes") == Manifest::block_bytes, "block_bytes is not supported");
  require(member(value, "config").is_object() && member(value, "state").is_object(),
          "config or state is not an object");
  manifest.config = value["config"].dump();
  manifest.state = member(value, "state").dump();
  if (is_divided) {
    read_index(value, manifest);
  } else {
    read_whole(value, manifest);
  }
  if (value.contains("nodes")) manifest.nodes = nodes_from_json(value["nodes"], manifest.ranks);
  return manifest;
}

// The major version.
int check_version(const json& value, const std::string& where) {
  require(value.is_object() && value.contains("format") && value["format"] == Manifest::format_name,
          "not a Teratron manifest");
  const std::string version = text_of(value, "format_version");
  const int major = std::atoi(version.c_str());
  if (major > Manifest::major_version) {
    throw checkpoint_error({.what = fmt::format("the checkpoint has format {}; this release reads up to {}.x",
                                                printable(version), Manifest::major_version),
                            .where = where,
                            .fix = fmt::format("Use Teratron {} (which wrote it) or newer",
                                               printable(text_of(value, "written_by")))});
  }
  require(major >= 1, "unknown format_version");
  return major;
}

}  // namespace

std::vector<IndexRange> index_ranges(const Region& region) {
  return region.trimmed.empty() ? index_ranges(region.sharding, region.flat_begin, region.flat_end)
                                : region.trimmed;
}

namespace {

// Parses, and turns whatever is wrong with the content into damage.
template <typename Read>
auto read_json_text(const std::string& text, const std::string& where, const Read& read) {
  json value;
  try {
    value = parse_json(text, {.where = where, .kind = ExitCode::checkpoint});
  } catch (const UserError& error) {
    throw CorruptCheckpoint(error.problems());
  }
  try {
    return read(value);
  } catch (const BadManifest& bad) {
    throw CorruptCheckpoint({{.what = "bad manifest: " + bad.what, .where = where}});
  } catch (const json::exception&) {
    throw CorruptCheckpoint({{.what = "bad manifest: a value has the wrong type", .where = where}});
  }
}

}  // namespace

Manifest parse_manifest(const std::string& text, const std::string& where) {
  return read_json_text(text, where, [&where](json& value) {
    const int version = check_version(value, where);
    const std::string hash = text_of(value, "hash");
    value.erase("hash");
    require(hash == hash_to_hex(hash_text(value.dump())), "the content does not match its hash");
    return manifest_from_json(value, version == 2);
  });
}

ManifestFragment parse_fragment(const std::string& text, const std::string& where, Chunks chunks) {
  return read_json_text(text, where, [&](const json& value) { return fragment_from_json(value, chunks); });
}

}  // namespace teratron
