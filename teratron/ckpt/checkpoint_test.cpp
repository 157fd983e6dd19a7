#include "teratron/ckpt/checkpoint.h"

#include <atomic>
#include <random>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/ckpt/directory.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

// A small transformer's tensors as rank `rank` of tp x dp holds them. With `distributed`, the optimizer state
// is cut into flat ranges over dp; the vocabulary (11 rows) is padded to a multiple of 4 x tp.
TestTensors transformer(int64_t rank, int64_t tp, int64_t dp, bool distributed) {
  const int64_t t = rank % tp;
  const int64_t d = rank / tp;
  const int64_t padded = (11 + 4 * tp - 1) / (4 * tp) * 4 * tp;
  const std::vector<std::pair<std::string, Shard>> parameters = {
      {"embedding.word_embeddings.weight", Shard::split_padded({11, 6}, 0, padded, tp, t)},
      {"decoder.layers.0.self_attention.linear_qkv.weight", Shard::split({12, 6}, 0, tp, t)},
      {"decoder.layers.0.self_attention.linear_proj.weight", Shard::split({6, 12}, 1, tp, t)},
      {"decoder.layers.0.mlp.linear_fc1.weight", Shard::split_segments({24, 6}, 0, {12, 12}, tp, t)},
      {"decoder.layers.0.mlp.experts.weight", Shard::split_segments({3, 24, 2}, 1, {12, 12}, tp, t)},
      {"decoder.final_layernorm.weight", Shard::replicated({6})},
  };
  TestTensors tensors;
  for (const auto& [name, shard] : parameters) {
    tensors.add(name, shard, Dtype::bf16);
    const std::string state = "optimizer." + name;
    int64_t numel = 1;
    for (const int64_t size : shard.local_shape()) numel *= size;
    if (!distributed) {
      tensors.add(state, shard);
    } else if (numel * (d + 1) / dp > numel * d / dp) {
      tensors.add_range(state, shard, numel * d / dp, numel * (d + 1) / dp);
    }
  }
  tensors.add("step", Shard::replicated({}), Dtype::i64);
  return tensors;
}

struct Layout {
  int64_t tp;
  int64_t dp;
  bool distributed;
};

void save(const std::filesystem::path& directory, int64_t iteration, const Layout& layout, uint32_t seed) {
  run_host_group(layout.tp * layout.dp, [&](HostGroup& group) {
    TestTensors tensors = transformer(group.rank(), layout.tp, layout.dp, layout.distributed);
    tensors.fill(seed);
    save_checkpoint({.directory = directory,
                     .iteration = iteration,
                     .tensors = tensors.list(),
                     .config = R"({"hidden_size":6})",
                     .state = R"({"consumed_samples":1.5})"},
                    group);
  });
}

void expect_loads(const std::filesystem::path& directory, const Layout& layout, uint32_t seed) {
  run_host_group(layout.tp * layout.dp, [&](HostGroup& group) {
    TestTensors tensors = transformer(group.rank(), layout.tp, layout.dp, layout.distributed);
    const auto info = load_checkpoint({.directory = directory, .tensors = tensors.list()}, group);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->state, R"({"consumed_samples":1.5})");
    EXPECT_EQ(tensors.difference(seed), "")
        << "tp " << layout.tp << " dp " << layout.dp << " rank " << group.rank();
  });
}

const std::vector<Layout> layouts = {{1, 1, false}, {2, 1, false}, {1, 3, true}, {2, 2, true},
                                     {3, 1, false}, {6, 2, true},  {3, 2, false}};

TEST(Checkpoint, fault_15_any_layout_loads_what_any_other_saved) {
  for (size_t from = 0; from < layouts.size(); ++from) {
    const TemporaryDirectory directory;
    save(directory.path(), 7, layouts[from], 5);
    for (const Layout& to : layouts) expect_loads(directory.path(), to, 5);
    EXPECT_GT(verify_checkpoint(directory / "iter_0000007"), 0);
  }
}

TEST(Checkpoint, ReplicatedTensorsAreWrittenOnceAndSpread) {
  const TemporaryDirectory directory;
  run_host_group(4, [&](HostGroup& group) {
    TestTensors tensors;
    for (int i = 0; i < 8; ++i) tensors.add("t" + std::to_string(i), Shard::replicated({1000}));
    tensors.fill(1);
    save_checkpoint({.directory = directory.path(), .iteration = 1, .tensors = tensors.list()}, group);
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto size = std::filesystem::file_size(directory / "iter_0000001" /
                                                 ("shard-0000" + std::to_string(rank) + ".safetensors"));
    EXPECT_GE(size, 8000U);
    EXPECT_LT(size, 9000U) << "two of the eight tensors per rank";
  }
}

TEST(Checkpoint, OverlappingPartsAreTrimmed) {
  const TemporaryDirectory directory;
  const auto tensors_of = [](int64_t rank) {
    TestTensors tensors;
    const Shard whole = Shard::replicated({10, 10});
    if (rank == 0) tensors.add_range("w", whole, 0, 60);
    if (rank == 1) tensors.add_range("w", whole, 35, 100);
    if (rank == 2) tensors.add("w", Shard::split({10, 10}, 1, 2, 1));
    return tensors;
  };
  run_host_group(3, [&](HostGroup& group) {
    TestTensors tensors = tensors_of(group.rank());
    tensors.fill(9);
    save_checkpoint({.directory = directory.path(), .iteration = 1, .tensors = tensors.list()}, group);
  });
  verify_checkpoint(directory / "iter_0000001");
  run_host_group(3, [&](HostGroup& group) {
    TestTensors tensors = tensors_of(group.rank());
    load_tensors(directory / "iter_0000001", tensors.list(), {}, group);
    EXPECT_EQ(tensors.difference(9), "");
  });
}

TEST(Checkpoint, LargeTensorsSpanBlocks) {
  const TemporaryDirectory directory;
  const Shard whole = Shard::replicated({3, 1 << 20});  // 12 MiB: three blocks
  SingleHostGroup alone;
  std::vector<uint32_t> data(3 << 20);
  std::mt19937 random(1);
  for (uint32_t& value : data) value = random();
  save_checkpoint({.directory = directory.path(),
                   .iteration = 1,
                   .tensors = {{"w", Dtype::u32, whole, 0, -1, data.data()}}},
                  alone);
  for (int64_t half = 0; half < 2; ++half) {
    std::vector<uint32_t> part(3 << 19);
    const LocalTensor target{"w", Dtype::u32, Shard::split({3, 1 << 20}, 1, 2, half), 0, -1, part.data()};
    const int64_t bytes_read = load_tensors(directory / "iter_0000001", {target}, {}, alone);
    EXPECT_EQ(bytes_read, 12 << 20) << "each half of a row is in every block";
    bool same = true;
    for (int64_t i = 0; i < 3 << 19; ++i) {
      same = same && part[i] == data[(i >> 19) * (1 << 20) + half * (1 << 19) + (i & ((1 << 19) - 1))];
    }
    EXPECT_TRUE(same);
  }
  std::vector<uint32_t> middle(10);
  const LocalTensor target{"w", Dtype::u32, whole, (2 << 20) - 5, (2 << 20) + 5, middle.data()};
  EXPECT_EQ(load_tensors(directory / "iter_0000001", {target}, {}, alone), 8 << 20);
  EXPECT_TRUE(std::equal(middle.begin(), middle.end(), data.begin() + (2 << 20) - 5));
}

TEST(Checkpoint, fault_16_another_model_is_reported_in_full) {
  const TemporaryDirectory directory;
  save(directory.path(), 1, {1, 1, false}, 5);
  SingleHostGroup alone;
  TestTensors tensors;
  tensors.add("embedding.word_embeddings.weight", Shard::replicated({12, 6}), Dtype::bf16);
  tensors.add("decoder.layers.0.self_attention.linear_qkv.weight", Shard::replicated({12, 6}), Dtype::f32);
  tensors.add("decoder.layers.9.mlp.linear_fc1.weight", Shard::replicated({24, 6}), Dtype::bf16);
  const auto load = [&](const std::vector<std::string>& ignored) {
    return message_of<UserError>(
        [&] { load_tensors(directory / "iter_0000001", tensors.list(), ignored, alone); });
  };
  const std::string text = load({});
  for (const char* part : {"tensor \"embedding.word_embeddings.weight\" is BF16 [11, 6] in the checkpoint, "
                           "BF16 [12, 6] in this run",
                           "is BF16 [12, 6] in the checkpoint, F32 [12, 6] in this run",
                           "layers.9.mlp.linear_fc1.weight\" is not in",
                           "tensor \"step\" (I64 []) is in the checkpoint, but not in this run",
                           "another model", "optimizer."}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in: " << text;
  }
  EXPECT_EQ(load({"optimizer.", "step"}).find("optimizer."), std::string::npos);
  const CheckpointInfo info = open_checkpoint(directory / "iter_0000001");
  EXPECT_EQ(info.tensors.at("step").dtype, Dtype::i64);
  check_same_model(info, R"({"hidden_size":6,"num_layers":3})", {"hidden_size", "num_layers"});
  const std::string differs =
      message_of<UserError>([&] { check_same_model(info, R"({"hidden_size":8})", {"hidden_size"}); });
  EXPECT_NE(differs.find("hidden_size: 6 in the checkpoint, 8 in this run"), std::string::npos) << differs;
  std::string manifest = read_text(directory / "iter_0000001" / "manifest.json", {});
  manifest.replace(manifest.find(R"("format_version":"1.0")"), 22, R"("format_version":"3.0")");
  write_text(directory / "iter_0000001" / "manifest.json", manifest, ExitCode::data);
  const std::string newer = message_of<UserError>([&] { open_checkpoint(directory / "iter_0000001"); });
  EXPECT_NE(newer.find("Use Teratron"), std::string::npos) << newer;
}

// The checkpoints that stay after saves at these iterations.
std::vector<std::string> kept(const TemporaryDirectory& directory, const std::vector<int64_t>& iterations,
                              const Retention& retain) {
  SingleHostGroup alone;
  for (const int64_t iteration : iterations) {
    TestTensors tensors;
    tensors.add("w", Shard::replicated({3}));
    tensors.fill(static_cast<uint32_t>(iteration));
    save_checkpoint(
        {.directory = directory.path(), .iteration = iteration, .tensors = tensors.list(), .retain = retain},
        alone);
  }
  std::vector<std::string> names = list_directory(directory.path(), ExitCode::data);
  std::erase(names, "latest_checkpointed_iteration.txt");
  return names;
}

TEST(Checkpoint, RetainsTheLastAndThoseAtTheInterval) {
  using Names = std::vector<std::string>;
  const auto after = [](const std::vector<int64_t>& iterations, const Retention& retain) {
    return kept(TemporaryDirectory(), iterations, retain);
  };
  EXPECT_EQ(after({1, 2, 3, 4, 5}, {.last = 2}), (Names{"iter_0000004", "iter_0000005"}));
  EXPECT_EQ(after({1, 2, 3, 4, 5}, {.interval = 2, .last = 2}),
            (Names{"iter_0000002", "iter_0000004", "iter_0000005"}));
  EXPECT_EQ(after({1, 2}, {.last = 5}), (Names{"iter_0000001", "iter_0000002"}));
  // A training that went back to 1: its former continuation stays.
  EXPECT_EQ(after({1, 9, 2, 3}, {.last = 2}), (Names{"iter_0000002", "iter_0000003", "iter_0000009"}));
}

TEST(Checkpoint, RetainsTheNewestAndThoseAtTheInterval) {
  const TemporaryDirectory directory;
  SingleHostGroup alone;
  kept(directory, {1, 2, 3, 4, 5}, {.interval = 4});
  EXPECT_EQ(list_directory(directory.path(), ExitCode::data),
            (std::vector<std::string>{"iter_0000004", "iter_0000005", "latest_checkpointed_iteration.txt"}));
  EXPECT_EQ(read_text(directory / "latest_checkpointed_iteration.txt", {}), "5");
  EXPECT_EQ(find_checkpoint(directory.path(), {}, alone)->filename(), "iter_0000005");
  EXPECT_EQ(find_checkpoint(directory.path(), 4, alone)->filename(), "iter_0000004");
  const std::string missing = message_of<UserError>([&] { find_checkpoint(directory.path(), 3, alone); });
  EXPECT_NE(missing.find("It has iter_0000005, iter_0000004"), std::string::npos) << missing;
}

TEST(Checkpoint, AnAbandonedLaterIterationIsNotTheNewest) {
  const TemporaryDirectory directory;
  SingleHostGroup alone;
  for (const int64_t iteration : {10, 20, 30, 20}) {
    TestTensors tensors;
    tensors.add("w", Shard::replicated({3}));
    tensors.fill(1);
    save_checkpoint({.directory = directory.path(), .iteration = iteration, .tensors = tensors.list()},
                    alone);
  }
  EXPECT_EQ(find_checkpoint(directory.path(), {}, alone)->filename(), "iter_0000020");
  const auto order = list_checkpoints(directory.path());
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order[1].filename(), "iter_0000030");
  std::filesystem::remove(directory / "latest_checkpointed_iteration.txt");
  EXPECT_EQ(find_checkpoint(directory.path(), {}, alone)->filename(), "iter_0000030")
      << "the hint is only a hint";
}

TEST(Checkpoint, AnEmptyFolderIsAFreshStart) {
  const TemporaryDirectory directory;
  SingleHostGroup alone;
  EXPECT_FALSE(find_checkpoint(directory.path(), {}, alone).has_value());
  EXPECT_FALSE(find_checkpoint(directory / "none", {}, alone).has_value());
  EXPECT_FALSE(load_checkpoint({.directory = directory.path()}, alone).has_value());
}

// Large parts are several files of about equal size, written at once; small ones are one file.
TEST(Checkpoint, EveryRankWritesSeveralFiles) {
  const TemporaryDirectory directory;
  const auto tensors_of = [](int64_t rank, int64_t ranks) {
    TestTensors tensors;
    for (int i = 0; i < 7; ++i)
      tensors.add(fmt::format("t{}", i), Shard::split({8, 300 * (i + 1)}, 0, ranks, rank));
    tensors.add("half", Shard::replicated({33}), Dtype::bf16);
    return tensors;
  };
  run_host_group(2, [&](HostGroup& group) {
    TestTensors tensors = tensors_of(group.rank(), 2);
    tensors.fill(5);
    save_checkpoint({.directory = directory.path(),
                     .iteration = 1,
                     .tensors = tensors.list(),
                     .writers = 3,
                     .min_file_bytes = 1000},
                    group);
  });
  const std::filesystem::path path = directory / "iter_0000001";
  EXPECT_EQ(
      list_directory(path, ExitCode::data),
      (std::vector<std::string>{"manifest.json", "shard-00000-1.safetensors", "shard-00000-2.safetensors",
                                "shard-00000.safetensors", "shard-00001-1.safetensors",
                                "shard-00001-2.safetensors", "shard-00001.safetensors"}));
  EXPECT_EQ(open_checkpoint(path).ranks, 2);
  EXPECT_EQ(verify_checkpoint(path), 28 * 2400 * 4 + 33 * 2);
  uintmax_t least = UINTMAX_MAX, most = 0;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    if (file.path().extension() != ".safetensors") continue;
    least = std::min(least, file.file_size());
    most = std::max(most, file.file_size());
  }
  EXPECT_LT(static_cast<double>(most), 1.2 * static_cast<double>(least));
  for (const int64_t ranks : {1, 4}) {
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors loaded = tensors_of(group.rank(), ranks);
      load_tensors(path, loaded.list(), {}, group);
      EXPECT_EQ(loaded.difference(5), "");
    });
  }
}

// Tensors are read in pieces of at most a block, of which several threads ask at once. A thread
// releases its piece before it asks for the next: there may be memory for one piece a thread.
TEST(Checkpoint, TensorsCanBeReadInPieces) {
  const TemporaryDirectory directory;
  SingleHostGroup alone;
  TestTensors tensors;
  tensors.add("large", Shard::replicated({3 << 20}));
  tensors.add("small", Shard::replicated({5}));
  tensors.fill(2);
  SaveRequest request{
      .directory = directory.path(), .iteration = 1, .tensors = tensors.list(), .min_file_bytes = 1};
  std::vector<bool> planned;
  request.on_planned = [&planned](const std::vector<bool>& written) { planned = written; };
  std::atomic<int64_t> longest = 0, held = 0, most_held = 0;  // held: pieces of the tensor of several
  for (LocalTensor& tensor : request.tensors) {
    const auto* const data = static_cast<const float*>(tensor.data);
    tensor.data = nullptr;
    tensor.read = [&, data](int64_t begin, int64_t end) {
      longest = std::max<int64_t>(longest, end - begin);
      if (end - begin == 5) return std::shared_ptr<const void>(std::shared_ptr<const void>(), data);
      most_held = std::max<int64_t>(most_held, ++held);
      const std::shared_ptr<std::vector<float>> piece(new std::vector<float>(data + begin, data + end),
                                                      [&held](std::vector<float>* released) {
                                                        delete released;
                                                        --held;
                                                      });
      return std::shared_ptr<const void>(piece, piece->data());
    };
  }
  const SavedCheckpoint saved = save_checkpoint(request, alone);
  EXPECT_EQ(planned, (std::vector<bool>{true, true}));
  EXPECT_EQ(longest, 1 << 20) << "elements of a block";
  EXPECT_EQ(most_held, 1);
  EXPECT_EQ(saved.bytes, open_checkpoint(saved.path).bytes);
  TestTensors loaded;
  loaded.add("large", Shard::replicated({3 << 20}));
  loaded.add("small", Shard::replicated({5}));
  load_tensors(saved.path, loaded.list(), {}, alone);
  EXPECT_EQ(loaded.difference(2), "");
}

}  // namespace
}  // namespace teratron
