#include "teratron/ckpt/manifest.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

using nlohmann::json;

Manifest sample() {
  Manifest manifest{.run_id = "0123", .iteration = 7, .sequence = 3, .config = R"({"a":1})", .state = "{}"};
  manifest.shards = {{"shard-00000.safetensors", 1000, 200, 11}, {"shard-00001.safetensors", 500, 100, 12}};
  const ManifestChunk whole{0, "w", 200, 96, {Shard::split({4, 12}, 1, 2, 0), 0, 24, {}}, {77}};
  ManifestChunk trimmed{1, "w", 100, 96, {Shard::replicated({4, 12}), 0, 0, {}}, {78}};
  for (int64_t row = 0; row < 4; ++row) trimmed.region.trimmed.push_back({row * 12 + 6, row * 6, 6});
  manifest.tensors["w"] = {Dtype::f32, {4, 12}, {whole, trimmed}};
  const ManifestChunk padded{0, "e", 300, 20, {Shard::split_padded({5, 1}, 0, 8, 1, 0), 0, 8, {}}, {79}};
  manifest.tensors["e"] = {Dtype::f32, {5, 1}, {padded}};
  return manifest;
}

TEST(ManifestTest, ReadsWhatItWrites) {
  const std::string text = to_text(sample());
  EXPECT_EQ(to_text(parse_manifest(text, "m")), text);
}

std::vector<std::pair<const char*, json>> hostile_changes() {
  const int64_t huge = int64_t{1} << 62;
  return {
      {"/iteration", -1},
      {"/iteration", "x"},
      {"/config", 3},
      {"/block_bytes", 1},
      {"/shards", 5},
      {"/shards/0/file", "../x"},
      {"/shards/0/file", ".hidden"},
      {"/shards/0/file", ""},
      {"/shards/0/header_bytes", 1001},
      {"/shards/0/header_hash", "zz"},
      {"/tensors/w/dtype", "F31"},
      {"/tensors/w/shape", json::array({huge, huge})},
      {"/tensors/w/shape", json::array({4, -12})},
      {"/tensors/w/shape", json::array({4, 13})},
      {"/tensors/w/shape", json::array({48})},
      {"/tensors/w/parts/0", nullptr},
      {"/tensors/w/parts/0/shard", 2},
      {"/tensors/w/parts/0/offset", 100},
      {"/tensors/w/parts/0/offset", 990},
      {"/tensors/w/parts/0/offset", huge},
      {"/tensors/w/parts/0/bytes", 92},
      {"/tensors/w/parts/0/bytes", huge},
      {"/tensors/w/parts/0/hashes", ""},
      {"/tensors/w/parts/0/hashes", "000000000000000g"},
      {"/tensors/w/parts/0/range", json::array({0, 25})},
      {"/tensors/w/parts/0/range", json::array({2, 1})},
      {"/tensors/w/parts/0/range", json::array({0})},
      {"/tensors/w/parts/0/cut/dim", 2},
      {"/tensors/w/parts/0/cut/parts", 0},
      {"/tensors/w/parts/0/cut/parts", 5},
      {"/tensors/w/parts/0/cut/index", 2},
      {"/tensors/w/parts/0/cut/padded", 11},
      {"/tensors/w/parts/0/cut/padded", huge},
      {"/tensors/w/parts/0/cut/segments", json::array()},
      {"/tensors/w/parts/0/cut/segments", json::array({huge, huge, huge, huge})},
      {"/tensors/w/parts/0/cut/segments", json::array({5, 7})},
      {"/tensors/w/parts/1/runs", json::array()},
      {"/tensors/w/parts/1/runs/3", json::array({42, 7})},
      {"/tensors/w/parts/1/runs/3", json::array({2, 6})},
      {"/tensors/w/parts/1/runs/3", json::array({42, 0})},
      {"/tensors/w/parts/1/runs/3", json::array({huge, huge})},
      {"/tensors/e/shape", json::array({0, 1})},
  };
}

// The hash keeps out damage; what a forger writes with a right hash must be rejected by the checks behind it.
TEST(ManifestTest, fault_17_hostile_manifests_with_a_right_hash) {
  const json good = json::parse(to_text(sample()));
  const auto error_of = [](json value) {
    value.erase("hash");
    value["hash"] = hash_to_hex(hash_text(value.dump()));
    return message_of<CorruptCheckpoint>([&] { parse_manifest(value.dump(), "m"); });
  };
  ASSERT_EQ(error_of(good), "");
  for (const auto& [pointer, value] : hostile_changes()) {
    json bad = good;
    bad[json::json_pointer(pointer)] = value;
    EXPECT_NE(error_of(bad), "") << pointer << " = " << value.dump();
  }
  for (const char* key : {"run_id", "shards", "tensors", "config", "sequence", "format_version"}) {
    json bad = good;
    bad.erase(key);
    EXPECT_NE(error_of(bad), "") << "without " << key;
  }
}

}  // namespace
}  // namespace teratron
