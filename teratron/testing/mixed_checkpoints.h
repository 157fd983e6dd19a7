// For tests: checkpoints of tensors of every kind.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {

class MixedCheckpoints : public testing::Test {
 protected:
  // Weights that all ranks hold, parts of others, optimizer state in flat ranges, overlaps, nothing at all.
  static TestTensors tensors(int64_t rank, int64_t ranks) {  // lint: allow(global-state): a function
    TestTensors tensors;
    for (int i = 0; i < 5; ++i) {
      const std::string name = fmt::format("layers.{}.weight", i);
      tensors.add(name, Shard::replicated({7, 5 + i}), Dtype::bf16);
      const int64_t numel = 7 * (5 + i);
      if (numel * (rank + 1) / ranks > numel * rank / ranks)
        tensors.add_range("optimizer." + name, Shard::replicated({7, 5 + i}), numel * rank / ranks,
                          numel * (rank + 1) / ranks);
    }
    tensors.add("embedding.weight", Shard::split_padded({11, 3}, 0, 12 * ranks, ranks, rank));
    tensors.add("columns.weight", Shard::split({4, 12 * ranks}, 1, 1, 0));
    tensors.add("nothing", Shard::replicated({0, 3}));
    return tensors;
  }

  std::filesystem::path save(int64_t iteration, int64_t ranks, int64_t file_bytes = 400) {
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), ranks);
      own.fill(static_cast<uint32_t>(iteration));
      const SaveRequest request{.directory = directory_.path(),
                                .iteration = iteration,
                                .tensors = own.list(),
                                .config = R"({"hidden_size":6})",
                                .min_file_bytes = 200,
                                .manifest_file_bytes = file_bytes};
      const SavedCheckpoint saved = save_checkpoint(request, group);
      EXPECT_EQ(saved.bytes, open_checkpoint(saved.path).bytes);
    });
    return directory_ / fmt::format("iter_{:07d}", iteration);
  }

  int64_t load(int64_t ranks, std::optional<int64_t> iteration = {}) {
    std::atomic<int64_t> loaded = -1;
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own = tensors_of_saved(group.rank(), ranks);
      const auto info = load_checkpoint(
          {.directory = directory_.path(), .iteration = iteration, .tensors = own.list()}, group);
      EXPECT_EQ(own.difference(static_cast<uint32_t>(info->iteration)), "");
      loaded = info->iteration;
    });
    return loaded;
  }

  // The columns and the padding depend on the ranks that saved; here they are of 4.
  static TestTensors tensors_of_saved(int64_t rank, int64_t ranks) {
    TestTensors tensors;
    for (int i = 0; i < 5; ++i) {
      const std::string name = fmt::format("layers.{}.weight", i);
      tensors.add(name, Shard::replicated({7, 5 + i}), Dtype::bf16);
      tensors.add("optimizer." + name, Shard::replicated({7, 5 + i}));
    }
    tensors.add("embedding.weight", Shard::split_padded({11, 3}, 0, 12 * ranks, ranks, rank));
    tensors.add("columns.weight", Shard::split({4, 48}, 1, ranks, rank));
    tensors.add("nothing", Shard::replicated({0, 3}));
    return tensors;
  }

  std::vector<std::string> manifests(const std::filesystem::path& checkpoint) const {
    std::vector<std::string> names = list_directory(checkpoint, ExitCode::data);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("manifest"); });
    return names;
  }

  TemporaryDirectory directory_;
};

}  // namespace teratron
