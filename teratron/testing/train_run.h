// Tests of whole runs: a tiny training, its files and its output.
#pragma once

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/single_world.h"
#include "teratron/testing/run_log.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {

/// GPT, as `teratron pretrain gpt` trains it.
inline JobModel plain_gpt() {
  static const Registry nothing;
  return default_model(nothing);
}

namespace fs = std::filesystem;

/// The texts must occur in this order.
inline void expect_in_order(const std::string& output, const std::vector<std::string>& texts) {
  size_t at = 0;
  for (const std::string& text : texts) {
    const size_t found = output.find(text, at);
    ASSERT_NE(found, std::string::npos) << "'" << text << "' is missing, or too early, in:\n" << output;
    at = found + text.size();
  }
}

inline size_t count_of(const std::string& output, const std::string& text) {
  size_t count = 0;
  for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++count;
  return count;
}

/// Runs a tiny training in a temporary folder.
class SmallRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("teratron_run_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> flags(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::istringstream words(
        "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
        "--micro-batch-size 2 --global-batch-size 4 --train-iters 20 --lr 1e-2 --lr-decay-style cosine "
        "--lr-warmup-iters 3 --mock-data --tokenizer-type NullTokenizer --vocab-size 40 --eval-interval 5 "
        "--eval-iters 2 --log-interval 5 --save-interval 10 --device cpu --num-workers 1");
    std::vector<std::string> all(std::istream_iterator<std::string>(words), {});
    for (const char* flag : {"--save", "--load"}) all.insert(all.end(), {flag, (folder_ / name).string()});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static ExitCode train(const std::vector<std::string>& args, int64_t ranks = 1,
                        const Registry& registry = {}) {
    const ParsedArguments parsed = pretrain_arguments(args, ranks, default_model(registry));
    const StopSignals signals;
    if (ranks == 1) {
      SingleWorld world;
      return pretrain(parsed, world, signals, default_model(registry));
    }
    ExitCode code = ExitCode::ok;
    run_ranks(ranks, [&](World& world) {
      const ExitCode mine = pretrain(parsed, world, signals, default_model(registry));
      if (world.rank() == 0) code = mine;
    });
    return code;
  }

  /// `args` without the named flags, which take one value each.
  static std::vector<std::string> without(std::vector<std::string> args,
                                          const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto flag = std::find(args.begin(), args.end(), name);
      if (flag != args.end()) args.erase(flag, flag + 2);
    }
    return args;
  }

  /// stdout, or stderr, of a training. A failure of the training fails the test.
  static std::string stdout_of(const std::vector<std::string>& args, int64_t ranks = 1,
                               const Registry& registry = {}) {
    testing::internal::CaptureStdout();
    const std::string failure = failure_of(args, ranks, registry);
    std::string text = testing::internal::GetCapturedStdout();
    EXPECT_EQ(failure, "");
    return text;
  }
  static std::string stderr_of(const std::vector<std::string>& args, int64_t ranks = 1) {
    testing::internal::CaptureStderr();
    const std::string failure = failure_of(args, ranks, {});
    std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(failure, "");
    return text;
  }
  static std::string failure_of(const std::vector<std::string>& args, int64_t ranks,
                                const Registry& registry) {
    try {
      train(args, ranks, registry);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  RunLog log(const std::string& name) const { return read_run_log(folder_ / name / "metrics.jsonl"); }

  // Every tensor of one saved iteration, from all shards.
  std::map<std::string, std::string> tensors(const std::string& name, int iteration) const {
    std::map<std::string, std::string> all;
    for (const auto& file : fs::directory_iterator(folder_ / name / fmt::format("iter_{:07d}", iteration))) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsFile shard(file.path());
      for (const SafetensorsEntry& entry : shard.entries()) {
        std::string bytes(entry.bytes, '\0');
        shard.read(entry, 0, entry.bytes, bytes.data());
        all[file.path().filename().string() + " " + entry.name] = bytes;
      }
    }
    return all;
  }

  // Compares the losses of a finished run with a run on one rank.
  void expect_same_losses(const std::string& name, const std::string& serial_name,
                          const std::vector<std::string>& serial_flags) const {
    EXPECT_EQ(train(flags(serial_name, serial_flags)), ExitCode::ok);
    const auto serial = read_run_log(folder_ / serial_name / "metrics.jsonl");
    const auto parallel = read_run_log(folder_ / name / "metrics.jsonl");
    ASSERT_EQ(serial.steps.size(), parallel.steps.size());
    ASSERT_FALSE(serial.steps.empty());
    for (size_t i = 0; i < serial.steps.size(); ++i) {
      const double expected = serial.steps[i].losses.at(0).second;
      EXPECT_NEAR(parallel.steps[i].losses.at(0).second, expected, 1e-4 * expected) << i;
    }
  }

  fs::path folder_;
};

}  // namespace teratron
