#include "teratron/ckpt/manifest.h"

#include <algorithm>
#include <system_error>
#include <tuple>

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

// Thrown inside the parser and given its place by parse_manifest.
struct Bad {
  std::string what;
};

void require(bool condition, const std::string& what) {
  if (!condition) throw Bad{what};
}

int64_t whole(const json& value, const char* name) {
  require(value.is_number_integer() && value.get<int64_t>() >= 0,
          fmt::format("{} is not a whole number", name));
  return value.get<int64_t>();
}

std::vector<int64_t> wholes(const json& value, const char* name) {
  require(value.is_array(), fmt::format("{} is not a list", name));
  std::vector<int64_t> numbers;
  for (const json& element : value) numbers.push_back(whole(element, name));
  return numbers;
}

uint64_t hash_of(const json& value) {
  const std::optional<uint64_t> hash = hash_from_hex(value.get<std::string>());
  require(hash.has_value(), "a hash is not 16 hexadecimal digits");
  return *hash;
}

json part_to_json(const ManifestPart& part) {
  const Region& region = part.region;
  json value = {
      {"shard", part.shard}, {"name", part.stored_name}, {"offset", part.offset}, {"bytes", part.bytes}};
  if (!region.trimmed.empty()) {
    json runs = json::array();
    for (const Run& run : region.trimmed) runs.push_back({run.global, run.length});
    value["runs"] = std::move(runs);
  } else {
    if (region.cut.dim >= 0) {
      value["cut"] = {{"dim", region.cut.dim},
                      {"segments", region.cut.segments},
                      {"padded", region.cut.padded},
                      {"parts", region.cut.parts},
                      {"index", region.cut.index}};
    }
    value["range"] = {region.flat_begin, region.flat_end};
  }
  std::string hashes;
  for (const uint64_t hash : part.hashes) hashes += hash_to_hex(hash);
  value["hashes"] = std::move(hashes);
  return value;
}

json shard_to_json(const ManifestShard& shard) {
  return {{"file", shard.file},
          {"bytes", shard.bytes},
          {"header_bytes", shard.header_bytes},
          {"header_hash", hash_to_hex(shard.header_hash)}};
}

// Shard's own factories assert: what comes from a file must be proven before.
Shard cut_from_json(const json& value, const std::vector<int64_t>& shape) {
  Shard cut = Shard::replicated(shape);
  cut.dim = whole(value.at("dim"), "dim");
  cut.segments = wholes(value.at("segments"), "segments");
  cut.padded = whole(value.at("padded"), "padded");
  cut.parts = whole(value.at("parts"), "parts");
  cut.index = whole(value.at("index"), "index");
  require(cut.dim < static_cast<int64_t>(shape.size()), "the cut dimension does not exist");
  require(cut.parts > 0 && cut.index < cut.parts, "the cut has an impossible part");
  int64_t total = 0;
  for (const int64_t segment : cut.segments) {
    require(!__builtin_add_overflow(total, segment, &total), "the segments overflow");
    require(cut.segments.size() == 1 || segment % cut.parts == 0, "a segment is not divisible");
  }
  require(!cut.segments.empty() && total == shape[cut.dim], "the segments do not add up");
  require(cut.padded % cut.parts == 0, "the padding is not divisible");
  require(cut.segments.size() == 1 ? cut.padded >= total : cut.padded == total, "the padding is impossible");
  require(checked_numel(cut.local_shape()).has_value(), "the cut overflows");
  return cut;
}

std::vector<Run> trimmed_from_json(const json& value, int64_t numel) {
  std::vector<Run> runs;
  int64_t end = 0;
  int64_t stored = 0;
  for (const json& element : value) {
    const std::vector<int64_t> pair = wholes(element, "runs");
    require(pair.size() == 2 && pair[1] > 0 && pair[0] >= end && pair[1] <= numel - pair[0],
            "runs are impossible");
    runs.push_back({pair[0], stored, pair[1]});
    stored += pair[1];
    end = pair[0] + pair[1];
  }
  require(!runs.empty(), "runs are empty");
  return runs;
}

ManifestPart part_from_json(const json& value, const std::vector<int64_t>& shape) {
  const std::optional<int64_t> numel = checked_numel(shape);
  require(numel.has_value(), "the shape overflows");
  ManifestPart part;
  part.shard = whole(value.at("shard"), "shard");
  part.stored_name = value.at("name");
  part.offset = whole(value.at("offset"), "offset");
  part.bytes = whole(value.at("bytes"), "bytes");
  if (value.contains("runs")) {
    part.region.cut = Shard::replicated(shape);
    part.region.trimmed = trimmed_from_json(value["runs"], *numel);
  } else {
    part.region.cut = value.contains("cut") ? cut_from_json(value["cut"], shape) : Shard::replicated(shape);
    const std::vector<int64_t> range = wholes(value.at("range"), "range");
    require(range.size() == 2 && range[0] <= range[1] && range[1] <= local_numel(part.region.cut),
            "the range is impossible");
    part.region.flat_begin = range[0];
    part.region.flat_end = range[1];
  }
  const std::string hashes = value.at("hashes");
  require(hashes.size() % 16 == 0 && static_cast<int64_t>(hashes.size() / 16) == block_count(part.bytes),
          "the number of hashes does not match the bytes");
  for (size_t i = 0; i < hashes.size(); i += 16) part.hashes.push_back(hash_of(hashes.substr(i, 16)));
  return part;
}

ManifestShard shard_from_json(const json& value) {
  ManifestShard shard;
  shard.file = value.at("file");
  shard.bytes = whole(value.at("bytes"), "bytes");
  shard.header_bytes = whole(value.at("header_bytes"), "header_bytes");
  shard.header_hash = hash_of(value.at("header_hash"));
  require(!shard.file.empty() && shard.file.find('/') == shard.file.npos && shard.file.front() != '.',
          fmt::format("'{}' is no plain file name", printable(shard.file)));
  require(shard.header_bytes <= shard.bytes && shard.header_bytes <= (int64_t{1} << 27),
          "a header size is impossible");
  return shard;
}

ManifestTensor tensor_from_json(const json& value, const std::vector<ManifestShard>& shards) {
  ManifestTensor tensor;
  const std::optional<Dtype> dtype = dtype_from_name(value.at("dtype").get<std::string>());
  require(dtype.has_value(), "unknown dtype");
  tensor.dtype = *dtype;
  tensor.shape = wholes(value.at("shape"), "shape");
  require(tensor.shape.size() <= 32, "too many dimensions");
  for (const json& element : value.at("parts")) {
    ManifestPart part = part_from_json(element, tensor.shape);
    require(part.shard < static_cast<int64_t>(shards.size()), "a part lies in a shard that is not listed");
    const ManifestShard& shard = shards[part.shard];
    require(part.offset >= shard.header_bytes && part.offset <= shard.bytes &&
                part.bytes <= shard.bytes - part.offset,
            "a part lies outside its shard");
    tensor.parts.push_back(std::move(part));
  }
  // Together the parts are the tensor; this also bounds, by what is on disk, the work that a cut can ask for.
  int64_t bytes = 0;
  for (const ManifestPart& part : tensor.parts) {
    require(!__builtin_add_overflow(bytes, part.bytes, &bytes), "the parts overflow");
  }
  const std::optional<int64_t> numel = checked_numel(tensor.shape);
  int64_t expected = 0;
  require(numel && !__builtin_mul_overflow(*numel, size_of(tensor.dtype), &expected), "the shape overflows");
  require(bytes == expected, fmt::format("its parts have {} bytes, {} are needed", bytes, expected));
  require(expected > 0 || tensor.parts.empty(), "it is empty and has parts");
  return tensor;
}

Manifest manifest_from_json(const json& value) {
  Manifest manifest;
  manifest.run_id = value.at("run_id");
  manifest.iteration = whole(value.at("iteration"), "iteration");
  manifest.sequence = whole(value.at("sequence"), "sequence");
  require(value.at("block_bytes") == Manifest::block_bytes, "block_bytes is not supported");
  require(value.at("config").is_object() && value.at("state").is_object(),
          "config or state is not an object");
  manifest.config = value["config"].dump();
  manifest.state = value.at("state").dump();
  for (const json& shard : value.at("shards")) manifest.shards.push_back(shard_from_json(shard));
  for (const auto& [name, tensor] : value.at("tensors").items()) {
    try {
      manifest.tensors.emplace(name, tensor_from_json(tensor, manifest.shards));
    } catch (const Bad& bad) {
      throw Bad{fmt::format("tensor \"{}\": {}", printable(name), bad.what)};
    }
  }
  return manifest;
}

void check_version(const json& value, const std::string& where) {
  require(value.is_object() && value.contains("format") && value["format"] == format_name,
          "this is not a manifest of Teratron");
  const std::string version = value.at("format_version");
  const int major = std::atoi(version.c_str());
  if (major > Manifest::major_version) {
    throw checkpoint_error({.what = fmt::format("the checkpoint has format {}, this release reads up to {}.x",
                                                printable(version), Manifest::major_version),
                            .where = where,
                            .fix = fmt::format("Use Teratron {} or newer, which wrote it",
                                               printable(value.value("written_by", std::string("?"))))});
  }
  require(major == Manifest::major_version, "unknown format_version");
}

}  // namespace

bool Region::operator==(const Region& other) const {
  const auto key = [](const Region& r) {
    return std::tie(r.cut.global_shape, r.cut.dim, r.cut.segments, r.cut.padded, r.cut.parts, r.cut.index,
                    r.flat_begin, r.flat_end, r.trimmed);
  };
  return key(*this) == key(other);
}

std::vector<Run> runs_of(const Region& region) {
  return region.trimmed.empty() ? runs_of(region.cut, region.flat_begin, region.flat_end) : region.trimmed;
}

std::string to_text(const ManifestFragment& fragment) {
  json parts = json::object();
  for (const auto& [name, list] : fragment.parts) {
    json values = json::array();
    for (const ManifestPart& part : list) values.push_back(part_to_json(part));
    parts[name] = std::move(values);
  }
  return json{{"shard", shard_to_json(fragment.shard)}, {"parts", std::move(parts)}}.dump();
}

void add_fragment(Manifest& manifest, const std::string& text) {
  const json value = json::parse(text);
  const auto shard = static_cast<int64_t>(manifest.shards.size());
  manifest.shards.push_back(shard_from_json(value["shard"]));
  for (const auto& [name, list] : value["parts"].items()) {
    ManifestTensor& tensor = manifest.tensors.at(name);
    for (const json& element : list) {
      tensor.parts.push_back(part_from_json(element, tensor.shape));
      tensor.parts.back().shard = shard;
    }
  }
}

std::string to_text(const Manifest& manifest) {
  json shards = json::array();
  for (const ManifestShard& shard : manifest.shards) shards.push_back(shard_to_json(shard));
  json tensors = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    json parts = json::array();
    for (const ManifestPart& part : tensor.parts) parts.push_back(part_to_json(part));
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"parts", std::move(parts)}};
  }
  json value = {{"format", format_name},
                {"format_version", format_version},
                {"written_by", "0.1.0"},
                {"run_id", manifest.run_id},
                {"iteration", manifest.iteration},
                {"sequence", manifest.sequence},
                {"block_bytes", Manifest::block_bytes},
                {"config", json::parse(manifest.config)},
                {"state", json::parse(manifest.state)},
                {"shards", std::move(shards)},
                {"tensors", std::move(tensors)}};
  value["hash"] = hash_to_hex(hash_text(value.dump()));
  return value.dump() + "\n";
}

namespace {

// Whatever is wrong with the file itself is damage.
template <typename Function>
auto or_damaged(const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    throw DamagedCheckpoint(error.problems());
  }
}

}  // namespace

Manifest parse_manifest(const std::string& text, const std::string& where) {
  json value = or_damaged([&] { return parse_json(text, {.where = where, .kind = ExitCode::checkpoint}); });
  try {
    check_version(value, where);
    const std::string hash = value.at("hash");
    value.erase("hash");
    require(hash == hash_to_hex(hash_text(value.dump())), "the content does not match its hash");
    return manifest_from_json(value);
  } catch (const Bad& bad) {
    throw DamagedCheckpoint({{.what = "bad manifest: " + bad.what, .where = where}});
  } catch (const json::exception& error) {
    throw DamagedCheckpoint(
        {{.what = fmt::format("bad manifest: {}", printable(error.what())), .where = where}});
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string text = or_damaged([&] { return read_text(path, {.kind = ExitCode::checkpoint}); });
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
          {.what = fmt::format("the shard has {} bytes, the manifest says {}", size, shard.bytes),
           .where = where});
    }
  }
  if (!problems.empty()) throw DamagedCheckpoint(std::move(problems));
  return manifest;
}

}  // namespace teratron
