// Manifests divided into files (format 2.0), and what loading and saving look at.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/mixed_checkpoints.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DividedManifest : public MixedCheckpoints {};

TEST_F(DividedManifest, any_ranks_load_what_any_other_layout_saved) {
  const fs::path path = save(1, 4);
  EXPECT_GT(manifests(path).size(), 5U);
  EXPECT_NE(read_text(path / "manifest.json", {}).find(R"("format_version":"2.0")"), std::string::npos);
  for (const int64_t ranks : {1, 2, 3, 4, 6}) EXPECT_EQ(load(ranks), 1) << ranks;
  SingleHostGroup alone;
  EXPECT_EQ(find_checkpoint(directory_.path(), {}, alone), path);
  int64_t bytes = 11 * 3 * 4 + 48 * 4 * 4;
  for (int i = 0; i < 5; ++i) bytes += int64_t{7} * (5 + i) * 6;
  EXPECT_EQ(verify_checkpoint(path), bytes);
  TestTensors part;
  part.add("columns.weight", Shard::split({4, 48}, 1, 3, 2));
  CheckpointReader(path).read(part.list()[0]);
  EXPECT_EQ(part.difference(1), "");
}

// What is saved does not depend on the number of files.
TEST_F(DividedManifest, holds_what_one_file_holds) {
  const fs::path divided = save(1, 4), whole = save(2, 4, 1 << 20);
  EXPECT_EQ(manifests(whole), (std::vector<std::string>{"manifest.json"}));
  EXPECT_NE(read_text(whole / "manifest.json", {}).find(R"("format_version":"1.0")"), std::string::npos);
  Manifest a = read_manifest(divided), b = read_manifest(whole);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.config, b.config);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (auto& [name, tensor] : a.tensors) {
    const ManifestTensor& other = b.tensors.at(name);
    EXPECT_EQ(tensor.dtype, other.dtype);
    EXPECT_EQ(tensor.shape, other.shape);
    ASSERT_EQ(tensor.chunks.size(), other.chunks.size()) << name;
    for (size_t i = 0; i < other.chunks.size(); ++i) {
      const ManifestChunk &chunk = tensor.chunks[i], &expected = other.chunks[i];
      EXPECT_EQ(a.shards.at(chunk.shard).file, b.shards.at(expected.shard).file);
      EXPECT_EQ(chunk.stored_name, expected.stored_name);
      EXPECT_EQ(chunk.offset, expected.offset);
      EXPECT_EQ(index_ranges(chunk.region), index_ranges(expected.region));
    }
  }
}

TEST_F(DividedManifest, fault_16_another_model_is_reported_in_full_by_any_holder) {
  const fs::path path = save(1, 4);
  for (const int64_t ranks : {1, 4}) {
    const std::string text = message_of<UserError>([&] {
      run_host_group(ranks, [&](HostGroup& group) {
        TestTensors own;
        own.add("layers.0.weight", Shard::replicated({7, 6}), Dtype::bf16);
        if (group.rank() == ranks - 1) own.add("layers.9.weight", Shard::replicated({7, 5}));
        load_tensors(path, own.list(), {"optimizer."}, group);
      });
    });
    for (const char* part :
         {"tensor \"layers.0.weight\" is BF16 [7, 5] in the checkpoint, BF16 [7, 6] in this run",
          "\"layers.9.weight\" is not in the checkpoint",
          "tensor \"columns.weight\" (F32 [4, 48]) is in the checkpoint, but not in this run",
          "tensor \"nothing\" (F32 [0, 3])", "\"layers.4.weight\" (BF16 [7, 9])"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in: " << text;
    }
    EXPECT_EQ(text.find("\"optimizer."), std::string::npos);
  }
}

// Checkpoints of other formats are read through the same interface.
TEST_F(DividedManifest, another_source_loads_on_several_ranks_or_is_rejected_by_all) {
  const CheckpointReader reader(save(1, 4));
  std::mutex mutex;  // readers of this kind are not thread-safe
  struct Locked final : CheckpointSource {
    Locked(const CheckpointReader& reader, std::mutex& mutex) : reader(reader), mutex(mutex) {}
    const CheckpointInfo& info() const override { return reader.info(); }
    void read(const LocalTensor& target) const override {
      const std::lock_guard lock(mutex);
      reader.read(target);
    }
    const CheckpointReader& reader;
    std::mutex& mutex;
  };
  const Locked source(reader, mutex);
  for (const int64_t ranks : {1, 3}) {
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own;
      if (group.rank() == ranks - 1) own.add("columns.weight", Shard::replicated({4, 48}));
      const std::vector<std::string> ignored = {"optimizer.", "layers.", "embedding.", "nothing"};
      load_tensors(source, own.list(), ignored, group);
      EXPECT_EQ(own.difference(1), "");
      const std::string unused =
          message_of<UserError>([&] { load_tensors(source, own.list(), {"optimizer.", "layers."}, group); });
      EXPECT_NE(unused.find("tensor \"embedding.weight\" (F32 [11, 3]) is in the checkpoint"),
                std::string::npos)
          << unused;
      EXPECT_EQ(unused.find("columns"), std::string::npos) << unused;
    });
  }
}

void flip(const fs::path& path, int64_t byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(byte);
  const char value = static_cast<char>(file.get() ^ 4);
  file.seekp(byte);
  file.put(value);
}

TEST_F(DividedManifest, fault_12_a_flip_anywhere_in_a_file_of_the_manifest_is_found) {
  const fs::path path = save(1, 4);
  int64_t flips = 0;
  for (const std::string& name : manifests(path)) {
    const auto size = static_cast<int64_t>(fs::file_size(path / name));
    for (int64_t byte = 0; byte < size; byte += 11, ++flips) {
      flip(path / name, byte);
      EXPECT_NE(message_of<UserError>([&] { load(1, 1); }), "") << name << " byte " << byte;
      flip(path / name, byte);
    }
  }
  EXPECT_GT(flips, 300);
  EXPECT_EQ(load(1, 1), 1);
}

TEST_F(DividedManifest, fault_13_missing_and_foreign_files_of_the_manifest_are_damage) {
  for (const int64_t ranks : {1, 4}) {
    const fs::path good = save(1, 4), bad = save(2, 4);
    const std::string name = manifests(bad).at(2);
    fs::remove(bad / name);
    const std::string missing = message_of<CorruptCheckpoint>([&] { load(ranks, 2); });
    EXPECT_NE(missing.find(name), std::string::npos) << missing;
    fs::copy_file(good / name, bad / name);
    const std::string foreign = message_of<CorruptCheckpoint>([&] { load(ranks, 2); });
    EXPECT_NE(foreign.find(name + ": the content does not match its hash in manifest.json"),
              std::string::npos)
        << foreign;
    testing::internal::CaptureStderr();
    EXPECT_EQ(load(ranks), 1) << "the older one";
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("iter_0000002.bad"), std::string::npos) << said;
    fs::remove_all(directory_ / "iter_0000002.bad");
  }
}

// With the right hash; the checks behind it must reject them.
TEST_F(DividedManifest, fault_17_hostile_indices_and_files) {
  const fs::path path = save(1, 4);
  const std::string text = read_text(path / "manifest.json", {});
  const auto error_of = [](json value) {
    value.erase("hash");
    value["hash"] = hash_to_hex(hash_text(value.dump()));
    return message_of<CorruptCheckpoint>([&] { parse_manifest(value.dump(), "m"); });
  };
  ASSERT_EQ(error_of(json::parse(text)), "");
  const std::vector<std::pair<const char*, json>> changes = {
      {"/files", json::array()},
      {"/files", 3},
      {"/files/0/file", "../x"},
      {"/files/0/file", ""},
      {"/files/0/hash", "zz"},
      {"/files/0/bytes", -1},
      {"/bytes", -1},
      {"/ranks", "x"},
      {"/tensors/nothing/file", 100},
      {"/tensors/nothing/file", -1},
      {"/tensors/nothing/dtype", "F"},
      {"/tensors/nothing/shape", json::array({1LL << 62, 1LL << 62})}};
  for (const auto& [pointer, value] : changes) {
    json bad = json::parse(text);
    bad[json::json_pointer(pointer)] = value;
    EXPECT_NE(error_of(bad), "") << pointer << " = " << value.dump();
  }
  for (const char* key : {"files", "tensors", "bytes", "ranks"}) {
    json bad = json::parse(text);
    bad.erase(key);
    EXPECT_NE(error_of(bad), "") << "without " << key;
  }
  // A file that lacks a tensor of the index, has another, or one more.
  json index = json::parse(text);
  const int64_t file = index["tensors"]["columns.weight"]["file"];
  const std::string name = index["files"][file]["file"];
  const auto forge = [](json& tensors, const std::string& change) {
    if (change == "without") tensors.erase("columns.weight");
    if (change == "other") tensors["columns.weight"]["parts"].erase(0);
    if (change == "more") tensors["not.listed"] = tensors["columns.weight"];
    if (change == "of another file")
      tensors["nothing"] = {{"dtype", "F32"}, {"shape", {0, 3}}, {"parts", json::array()}};
  };
  ASSERT_NE(index["tensors"]["nothing"]["file"], file) << "else the last change is none";
  for (const std::string change : {"without", "other", "more", "of another file"}) {
    json part = json::parse(read_text(path / name, {}));
    forge(part["tensors"], change);
    const std::string forged = part.dump();
    Manifest manifest = parse_manifest(text, "m");
    manifest.files[file] = {
        .file = "forged", .bytes = static_cast<int64_t>(forged.size()), .hash = hash_text(forged)};
    write_text(path / "forged", forged, ExitCode::data);
    EXPECT_THROW(read_manifest_file(path, manifest, file), CorruptCheckpoint) << change;
  }
}

// A load opens the shards that hold what it needs and looks at no other; finding one for inference checks
// all, each by one rank.
TEST_F(DividedManifest, a_shard_is_looked_at_by_the_rank_that_opens_it) {
  for (const int64_t file_bytes : {400, 1 << 20}) {
    const fs::path path = save(1, 4, file_bytes);
    const Manifest manifest = read_manifest(path);
    std::set<int64_t> needed;
    for (const auto& [name, tensor] : manifest.tensors) {
      if (name.starts_with("optimizer.")) continue;
      for (const ManifestChunk& chunk : tensor.chunks) needed.insert(chunk.shard);
    }
    ASSERT_LT(needed.size(), manifest.shards.size());
    for (size_t shard = 0; shard < manifest.shards.size(); ++shard) {
      if (!needed.contains(static_cast<int64_t>(shard))) fs::remove(path / manifest.shards[shard].file);
    }
    for (const int64_t ranks : {1, 3}) {
      run_host_group(ranks, [&](HostGroup& group) {
        TestTensors own;
        for (int i = 0; i < 5; ++i)
          own.add(fmt::format("layers.{}.weight", i), Shard::replicated({7, 5 + i}), Dtype::bf16);
        own.add("embedding.weight", Shard::replicated({11, 3}));
        own.add("columns.weight", Shard::replicated({4, 48}));
        own.add("nothing", Shard::replicated({0, 3}));
        load_tensors(path, own.list(), {"optimizer."}, group);
        EXPECT_EQ(own.difference(1), "");
        const std::string missing =
            message_of<CorruptCheckpoint>([&] { find_checkpoint(directory_.path(), {}, group); });
        for (size_t shard = 0; shard < manifest.shards.size(); ++shard) {
          const std::string& file = manifest.shards[shard].file;
          const size_t first = missing.find(file);
          EXPECT_EQ(first == missing.npos, needed.contains(static_cast<int64_t>(shard))) << missing;
          if (first != missing.npos) {
            EXPECT_EQ(missing.find(file, first + 1), missing.npos) << "told once: " << missing;
          }
        }
      });
      EXPECT_NE(message_of<CorruptCheckpoint>([&] { load(ranks, 1); }).find("the shard is missing"),
                std::string::npos);
    }
    fs::remove_all(path);
  }
}

// Inference finds a checkpoint and then reads weights, those with adapters in parts: the ranks read the
// manifest once, each file of it by one of them.
TEST_F(DividedManifest, what_was_found_is_loaded_without_reading_the_manifest_again) {
  for (const int64_t file_bytes : {400, 1 << 20}) {
    const fs::path path = save(1, 4, file_bytes);
    for (const int64_t ranks : {1, 3}) {
      run_host_group(ranks, [&](HostGroup& group) {
        const std::optional<SharedManifest> found = find_manifest(directory_.path(), {}, group);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->info().path, path);
        group.all_gather_bytes("found");
        const ScopedFaults faults(group.rank() == 0 ? "ckpt.read_index:throw;ckpt.read_manifest_file:throw"
                                                    : "");
        group.all_gather_bytes("armed");
        TestTensors own = tensors_of_saved(group.rank(), ranks),
                    parts = tensors_of_saved(group.rank(), ranks);
        load_tensors(*found, own.list(), {}, group);
        EXPECT_EQ(own.difference(1), "");
        const CheckpointReader reader(*found, parts.list(), group);
        EXPECT_EQ(reader.info().tensors, found->info().tensors);
        for (const LocalTensor& part : parts.list()) reader.read(part);
        for (const LocalTensor& part : parts.list()) reader.read(part);
        EXPECT_EQ(parts.difference(1), "");
        group.all_gather_bytes("read");
      });
    }
    fs::remove_all(path);
  }
}

// What find_checkpoint() has found sound may be damaged until it is read.
TEST_F(DividedManifest, fault_14_a_part_that_is_damaged_when_it_is_read) {
  const fs::path path = save(1, 4);
  run_host_group(2, [&](HostGroup& group) {
    const std::optional<SharedManifest> found = find_manifest(directory_.path(), {}, group);
    TestTensors parts = tensors_of_saved(group.rank(), 2);
    const CheckpointReader reader(*found, parts.list(), group);
    if (group.rank() == 0) {
      for (const std::string& name : list_directory(path, ExitCode::data)) fs::remove(path / name);
    }
    group.all_gather_bytes("removed");
    const std::string said = message_of<CorruptCheckpoint>([&] { reader.read(parts.list().front()); });
    EXPECT_NE(said.find("the shard is missing"), said.npos) << said;
  });
}

TEST_F(DividedManifest, fault_08_a_full_disk_while_files_of_the_manifest_are_written) {
  save(1, 4);
  const auto before = list_directory(directory_.path(), ExitCode::data);
  for (const char* fault :
       {"ckpt.before_manifest_file@rank=3,step=2:throw", "ckpt.manifest_file_written@rank=1,step=2:throw",
        "ckpt.before_manifest@step=2:throw"}) {
    const ScopedFaults faults(fault);
    EXPECT_NE(message_of<Fault>([&] { save(2, 4); }), "") << fault;
    EXPECT_EQ(list_directory(directory_.path(), ExitCode::data), before) << fault;
    EXPECT_EQ(load(2), 1);
  }
}

}  // namespace
}  // namespace teratron
