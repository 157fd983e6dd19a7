#include "teratron/ckpt/manifest.h"

#include <algorithm>
#include <system_error>

#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/base/json.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* format_name = "teratron-checkpoint";
constexpr const char* format_version = "1.0";

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

json chunk_to_json(const ManifestChunk& chunk) {
  const Region& region = chunk.region;
  json value = {
      {"shard", chunk.shard}, {"name", chunk.stored_name}, {"offset", chunk.offset}, {"bytes", chunk.bytes}};
  if (!region.trimmed.empty()) {
    json ranges = json::array();
    for (const IndexRange& range : region.trimmed) ranges.push_back({range.global, range.length});
    value["runs"] = std::move(ranges);
  } else {
    if (region.sharding.dim >= 0) {
      value["cut"] = {{"dim", region.sharding.dim},
                      {"segments", region.sharding.segments},
                      {"padded", region.sharding.padded},
                      {"parts", region.sharding.parts},
                      {"index", region.sharding.index}};
    }
    value["range"] = {region.flat_begin, region.flat_end};
  }
  std::string hashes;
  for (const uint64_t hash : chunk.hashes) hashes += hash_to_hex(hash);
  value["hashes"] = std::move(hashes);
  return value;
}

json shard_to_json(const ManifestShard& shard) {
  return {{"file", shard.file},
          {"bytes", shard.bytes},
          {"header_bytes", shard.header_bytes},
          {"header_hash", hash_to_hex(shard.header_hash)}};
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

ManifestShard shard_from_json(const json& value) {
  ManifestShard shard;
  shard.file = text_of(value, "file");
  shard.bytes = to_int(member(value, "bytes"), "bytes");
  shard.header_bytes = to_int(member(value, "header_bytes"), "header_bytes");
  shard.header_hash = hash_of(text_of(value, "header_hash"));
  require(!shard.file.empty() && shard.file.find('/') == shard.file.npos && shard.file.front() != '.',
          fmt::format("'{}' is not a plain file name", printable(shard.file)));
  require(shard.header_bytes <= shard.bytes && shard.header_bytes <= (int64_t{1} << 27),
          "header_bytes is out of range");
  return shard;
}

ManifestTensor tensor_from_json(const json& value, const std::vector<ManifestShard>& shards) {
  ManifestTensor tensor;
  const std::optional<Dtype> dtype = dtype_from_name(text_of(value, "dtype"));
  require(dtype.has_value(), "unknown dtype");
  tensor.dtype = *dtype;
  tensor.shape = to_ints(member(value, "shape"), "shape");
  require(tensor.shape.size() <= 32, "too many dimensions");
  for (const json& element : member(value, "parts")) {
    ManifestChunk chunk = chunk_from_json(element, tensor.shape);
    require(chunk.shard < static_cast<int64_t>(shards.size()), "a part is in a shard that is not listed");
    const ManifestShard& shard = shards[chunk.shard];
    require(chunk.offset >= shard.header_bytes && chunk.offset <= shard.bytes &&
                chunk.bytes <= shard.bytes - chunk.offset,
            "a part is outside its shard");
    tensor.chunks.push_back(std::move(chunk));
  }
  // Together the chunks are the tensor. This also bounds the work for a chunk by the bytes on disk.
  int64_t bytes = 0;
  for (const ManifestChunk& chunk : tensor.chunks) {
    require(!__builtin_add_overflow(bytes, chunk.bytes, &bytes), "the parts overflow");
  }
  const std::optional<int64_t> numel = checked_numel(tensor.shape);
  int64_t expected = 0;
  require(numel && !__builtin_mul_overflow(*numel, size_of(tensor.dtype), &expected), "the shape overflows");
  require(bytes == expected, fmt::format("its parts have {} bytes instead of {}", bytes, expected));
  require(expected > 0 || tensor.chunks.empty(), "it is empty and has parts");
  return tensor;
}

Manifest manifest_from_json(const json& value) {
  Manifest manifest;
  manifest.run_id = text_of(value, "run_id");
  manifest.iteration = to_int(member(value, "iteration"), "iteration");
  manifest.sequence = to_int(member(value, "sequence"), "sequence");
  require(member(value, "block_bytes") == Manifest::block_bytes, "block_bytes is not supported");
  require(member(value, "config").is_object() && member(value, "state").is_object(),
          "config or state is not an object");
  manifest.config = value["config"].dump();
  manifest.state = member(value, "state").dump();
  for (const json& shard : member(value, "shards")) manifest.shards.push_back(shard_from_json(shard));
  // Earlier releases wrote one shard per rank.
  manifest.ranks = value.contains("ranks") ? to_int(value["ranks"], "ranks")
                                           : static_cast<int64_t>(manifest.shards.size());
  for (const auto& [name, tensor] : member(value, "tensors").items()) {
    try {
      manifest.tensors.emplace(name, tensor_from_json(tensor, manifest.shards));
    } catch (const BadManifest& bad) {
      throw BadManifest{fmt::format("tensor \"{}\": {}", printable(name), bad.what)};
    }
  }
  return manifest;
}

void check_version(const json& value, const std::string& where) {
  require(value.is_object() && value.contains("format") && value["format"] == format_name,
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
  require(major == Manifest::major_version, "unknown format_version");
}

}  // namespace

std::vector<IndexRange> index_ranges(const Region& region) {
  return region.trimmed.empty() ? index_ranges(region.sharding, region.flat_begin, region.flat_end)
                                : region.trimmed;
}

std::string to_text(const ManifestFragment& fragment) {
  json chunks = json::object();
  for (const auto& [name, list] : fragment.chunks) {
    json values = json::array();
    for (const ManifestChunk& chunk : list) values.push_back(chunk_to_json(chunk));
    chunks[name] = std::move(values);
  }
  json shards = json::array();
  for (const ManifestShard& shard : fragment.shards) shards.push_back(shard_to_json(shard));
  return json{{"shards", std::move(shards)}, {"parts", std::move(chunks)}}.dump();
}

int64_t fragment_bytes(const std::string& text) {
  const json value = json::parse(text);
  int64_t bytes = 0;
  for (const json& shard : value["shards"]) bytes += shard_from_json(shard).bytes;
  return bytes;
}

void add_fragment(Manifest& manifest, const std::string& text) {
  const json value = json::parse(text);
  const auto first = static_cast<int64_t>(manifest.shards.size());
  for (const json& shard : value["shards"]) manifest.shards.push_back(shard_from_json(shard));
  for (const auto& [name, list] : value["parts"].items()) {
    ManifestTensor& tensor = manifest.tensors.at(name);
    for (const json& element : list) {
      tensor.chunks.push_back(chunk_from_json(element, tensor.shape));
      tensor.chunks.back().shard += first;
    }
  }
}

std::string to_text(const Manifest& manifest) {
  json shards = json::array();
  for (const ManifestShard& shard : manifest.shards) shards.push_back(shard_to_json(shard));
  json tensors = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    json chunks = json::array();
    for (const ManifestChunk& chunk : tensor.chunks) chunks.push_back(chunk_to_json(chunk));
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"parts", std::move(chunks)}};
  }
  json value = {{"format", format_name},
                {"format_version", format_version},
                {"written_by", "0.1.0"},
                {"run_id", manifest.run_id},
                {"iteration", manifest.iteration},
                {"sequence", manifest.sequence},
                {"ranks", manifest.ranks},
                {"block_bytes", Manifest::block_bytes},
                {"config", json::parse(manifest.config)},
                {"state", json::parse(manifest.state)},
                {"shards", std::move(shards)},
                {"tensors", std::move(tensors)}};
  value["hash"] = hash_to_hex(hash_text(value.dump()));
  return value.dump() + "\n";
}

namespace {

template <typename Function>
auto as_corrupt(const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    throw CorruptCheckpoint(error.problems());
  }
}

}  // namespace

Manifest parse_manifest(const std::string& text, const std::string& where) {
  json value = as_corrupt([&] { return parse_json(text, {.where = where, .kind = ExitCode::checkpoint}); });
  try {
    check_version(value, where);
    const std::string hash = text_of(value, "hash");
    value.erase("hash");
    require(hash == hash_to_hex(hash_text(value.dump())), "the content does not match its hash");
    return manifest_from_json(value);
  } catch (const BadManifest& bad) {
    throw CorruptCheckpoint({{.what = "bad manifest: " + bad.what, .where = where}});
  } catch (const json::exception&) {
    throw CorruptCheckpoint({{.what = "bad manifest: a value has the wrong type", .where = where}});
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string text = as_corrupt([&] { return read_text(path, {.kind = ExitCode::checkpoint}); });
  const Manifest manifest = parse_manifest(text, printable(path.string(), 4096));
  std::vector<Problem> problems;
  for (const ManifestShard& shard : manifest.shards) {
    std::error_code error;
    const fs::path file = checkpoint / shard.file;
    const uintmax_t size = fs::file_size(file, error);
    const std::string where = printable(file.string(), 4096);
    if (error) {
      problems.push_back({.what = "the shard is missing or unreadable: " + error.message(), .where = where});
    } else if (static_cast<int64_t>(size) != shard.bytes) {
      problems.push_back(
          {.what = fmt::format("the shard has {} bytes, but {} in the manifest", size, shard.bytes),
           .where = where});
    }
  }
  if (!problems.empty()) throw CorruptCheckpoint(std::move(problems));
  return manifest;
}

}  // namespace teratron
