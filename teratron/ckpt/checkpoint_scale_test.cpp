// What a save and a load cost one rank, counted on up to 16,384 simulated ranks (docs/scaling.md). A
// transformer of 64 layers on tp 8 x pp 8 with a distributed optimizer, and 64 tensors of experts that are
// cut over all ranks: the most chunks that a tensor can have.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/saved_metadata.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/counted_ranks.h"

namespace teratron {
namespace {

constexpr int64_t kTp = 8, kPp = 8;

struct Model {
  int64_t layers = 64, experts = 64;
};

struct Part {
  std::string name;
  Shard shard;
};

// The weights of one stage's layers on one tensor-parallel rank.
std::vector<Part> stage(int64_t layers, int64_t pp_rank, int64_t tp_rank) {
  std::vector<Part> parts;
  for (int64_t layer = pp_rank * layers / kPp; layer < (pp_rank + 1) * layers / kPp; ++layer) {
    const auto name = [layer](const char* of) { return fmt::format("decoder.layers.{}.{}", layer, of); };
    parts.push_back({name("linear_qkv.weight"), Shard::split({96, 16}, 0, kTp, tp_rank)});
    parts.push_back({name("linear_proj.weight"), Shard::split({16, 32}, 1, kTp, tp_rank)});
    parts.push_back({name("linear_fc1.weight"), Shard::split_segments({128, 16}, 0, {64, 64}, kTp, tp_rank)});
    parts.push_back({name("linear_fc2.weight"), Shard::split({16, 64}, 1, kTp, tp_rank)});
    parts.push_back({name("input_layernorm.weight"), Shard::replicated({16})});
    parts.push_back({name("pre_mlp_layernorm.weight"), Shard::replicated({16})});
  }
  return parts;
}

TestTensors tensors_of_rank(const Model& model, int64_t rank, int64_t ranks) {
  TestTensors tensors;
  const int64_t tp_rank = rank % kTp, dp = ranks / kTp / kPp;
  const int64_t dp_rank = rank / kTp % dp, pp_rank = rank / kTp / dp;
  const std::vector<Part> parts = stage(model.layers, pp_rank, tp_rank);
  int64_t total = 0;
  for (const Part& part : parts) total += local_numel(part.shard);
  const int64_t begin = total * dp_rank / dp, end = total * (dp_rank + 1) / dp;  // of the flat buffer
  int64_t at = 0;
  for (const Part& part : parts) {
    tensors.add(part.name, part.shard, Dtype::bf16);
    const int64_t numel = local_numel(part.shard);
    const int64_t first = std::clamp<int64_t>(begin - at, 0, numel);
    const int64_t last = std::clamp<int64_t>(end - at, 0, numel);
    at += numel;
    if (first >= last) continue;
    for (const char* state : {"master", "exp_avg", "exp_avg_sq"})
      tensors.add_range(fmt::format("optimizer.{}.{}", state, part.name), part.shard, first, last);
  }
  for (int64_t expert = 0; expert < model.experts; ++expert)
    tensors.add(fmt::format("experts.{}.weight", expert), Shard::split({ranks, 2}, 0, ranks, rank));
  tensors.add("step", Shard::replicated({}), Dtype::i64);
  return tensors;
}

// The largest of any rank.
struct Costs {
  RankCost most;
  void add(const RankCost& before, const RankCost& after) {
    most.messages = std::max(most.messages, after.messages - before.messages);
    most.sent = std::max(most.sent, after.sent - before.sent);
    most.received = std::max(most.received, after.received - before.received);
    most.rounds = std::max(most.rounds, after.rounds - before.rounds);
    most.seconds = std::max(most.seconds, after.seconds - before.seconds);
  }
};

struct Measured {
  int64_t ranks = 0;
  Costs save, load;         // of a load: everything but reading shards
  int64_t most_chunks = 0;  // that a rank receives
  int64_t manifest_bytes = 0, largest_file = 0, files = 0;
};

int64_t chunks_of(const Manifest& manifest) {
  int64_t chunks = 0;
  for (const auto& [name, tensor] : manifest.tensors) chunks += static_cast<int64_t>(tensor.chunks.size());
  return chunks;
}

void expect_loads(const std::filesystem::path& directory, const Model& model, int64_t ranks) {
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    TestTensors tensors = tensors_of_rank(model, group.rank(), ranks);
    load_checkpoint({.directory = directory, .tensors = tensors.list()}, group);
    EXPECT_EQ(tensors.difference(3), "") << group.rank();
  });
}

Measured measure(const Model& model, int64_t ranks) {
  const TemporaryDirectory directory;
  Measured measured{.ranks = ranks};
  std::mutex mutex;
  std::filesystem::path path;
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    TestTensors tensors = tensors_of_rank(model, group.rank(), ranks);
    tensors.fill(3);
    const SaveRequest request{.directory = directory.path(), .iteration = 1, .tensors = tensors.list()};
    const RankCost start = group.cost();
    const SavedCheckpoint saved = save_checkpoint(request, group);
    const RankCost end = group.cost();
    const std::lock_guard lock(mutex);
    measured.save.add(start, end);
    path = saved.path;
  });
  for (const std::string& name : list_directory(path, ExitCode::data)) {
    if (!name.starts_with("manifest")) continue;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path / name));
    ++measured.files;
    measured.manifest_bytes += bytes;
    measured.largest_file = std::max(measured.largest_file, bytes);
  }
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    const TestTensors tensors = tensors_of_rank(model, group.rank(), ranks);
    const RankCost start = group.cost();
    const SharedManifest::Selection selected = SharedManifest(path, group).select(tensors.list());
    const RankCost end = group.cost();
    const std::lock_guard lock(mutex);
    measured.load.add(start, end);
    measured.most_chunks = std::max(measured.most_chunks, chunks_of(selected.manifest));
  });
  // Ranks of one process may together have too many shards open.
  if (ranks <= 256) expect_loads(directory.path(), model, ranks);
  return measured;
}

void print_costs(const char* what, int64_t ranks, const RankCost& most) {
  print("{:5} {:6} ranks: {:4} messages, {:4} rounds, {:9} bytes sent, {:9} received, {:.3f} s CPU", what,
        ranks, most.messages, most.rounds, most.sent, most.received, most.seconds);
}

// The exponent of n with which a cost grows by `cost` while n grows by `ranks`.
double exponent(double cost, double ranks) {
  return std::log(cost) / std::log(ranks);
}

double ratio(int64_t more, int64_t less) {
  return static_cast<double>(more) / static_cast<double>(less);
}

struct Growth {
  double ranks;  // so many times more
  double most_exponent;
};

void expect_growth(const char* what, const RankCost& before, const RankCost& after, const Growth& growth) {
  const double ranks = growth.ranks;
  const double sent = exponent(ratio(after.sent, before.sent), ranks);
  const double received = exponent(ratio(after.received, before.received), ranks);
  const double seconds = exponent(after.seconds / before.seconds, ranks);
  print("{:5} exponents {:.2f} (sent), {:.2f} (received), {:.2f} (CPU)", what, sent, received, seconds);
  EXPECT_LE(sent, growth.most_exponent) << what;
  EXPECT_LE(received, growth.most_exponent) << what;
}

void expect_logarithmic(const RankCost& most, int64_t ranks) {
  const auto log = static_cast<int64_t>(std::ceil(std::log2(ranks)));
  EXPECT_LE(most.messages, 10 * log);
  EXPECT_LE(most.rounds, 8 * log);
}

// Returns the costs with most ranks. `most_exponent`: of the bytes of the busiest rank.
Measured expect_costs(const Model& model, const std::vector<int64_t>& sizes, double most_exponent) {
  Measured less;
  for (const int64_t ranks : sizes) {
    const auto start = std::chrono::steady_clock::now();
    const Measured m = measure(model, ranks);
    print_costs("save", ranks, m.save.most);
    print_costs("load", ranks, m.load.most);
    print("      {:6} ranks: manifest {} bytes in {} files, the largest {}; a rank has {} chunks; {:.1f} s",
          ranks, m.manifest_bytes, m.files, m.largest_file, m.most_chunks,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    expect_logarithmic(m.save.most, ranks);
    expect_logarithmic(m.load.most, ranks);
    if (ranks != sizes.front()) {
      const Growth growth{ratio(ranks, less.ranks), most_exponent};
      expect_growth("save", less.save.most, m.save.most, growth);
      expect_growth("load", less.load.most, m.load.most, growth);
    }
    less = m;
  }
  return less;
}

TEST(CheckpointScale, costs_of_a_rank) {
  const bool is_long = std::getenv("TERATRON_LONG_TESTS") != nullptr;
  const Measured last = expect_costs(
      {}, is_long ? std::vector<int64_t>{64, 256, 1024, 4096} : std::vector<int64_t>{64, 128}, 0.6);
  for (const RankCost& most : {last.save.most, last.load.most}) {
    EXPECT_LT(most.sent, 40 << 20);
    EXPECT_LT(most.received, 20 << 20);
  }
}

// Without pages that guard their stacks, of which a process may have 32,765 (vm.max_map_count).
void use_small_stacks() {
  pthread_attr_t attributes;
  ASSERT_EQ(::pthread_getattr_default_np(&attributes), 0);
  ::pthread_attr_setguardsize(&attributes, 0);
  ::pthread_attr_setstacksize(&attributes, 512 << 10);
  EXPECT_EQ(::pthread_setattr_default_np(&attributes), 0);
  ::pthread_attr_destroy(&attributes);
}

// With fewer tensors, so that one machine can be all of these ranks. So few are not spread over the ranks:
// the one that keeps a tensor of which every rank has a part has most of the bytes.
TEST(CheckpointScale, costs_of_a_rank_of_16384) {
  if (!std::getenv("TERATRON_LONG_TESTS")) GTEST_SKIP() << "needs minutes and TERATRON_LONG_TESTS";
  use_small_stacks();
  const Measured last = expect_costs({.layers = 8, .experts = 2}, {4096, 16384}, 1);
  EXPECT_LT(last.save.most.seconds, 10);
  EXPECT_LT(last.load.most.seconds, 30);
}

// Writing, checking and reading the metadata of a tensor that is cut over 16,384 ranks, which one rank does:
// some hundred bytes for each of them.
TEST(CheckpointScale, a_file_of_the_manifest_takes_little_time_and_memory) {
  constexpr int64_t ranks = 16384;
  ManifestFragment fragment;
  ManifestTensor& tensor = fragment.tensors["experts.weight"];
  tensor.shape = {1, ranks * 256};
  tensor.dtype = Dtype::f32;
  for (int64_t i = 0; i < ranks; ++i) {
    const std::string file = fmt::format("shard-{:05d}.safetensors", i);
    fragment.shards.push_back({.file = file, .bytes = 2000, .header_bytes = 100, .header_hash = 5});
    tensor.chunks.push_back({.shard = i,
                             .stored_name = "experts.weight",
                             .offset = 100,
                             .bytes = 1024,
                             .region = {Shard::replicated(tensor.shape), i * 256, (i + 1) * 256, {}},
                             .hashes = {static_cast<uint64_t>(i)}});
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string text = checked_text(fragment);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto allocated = [] {
    const struct mallinfo2 all = ::mallinfo2();
    return static_cast<int64_t>(all.uordblks + all.hblkhd);
  };
  const int64_t before = allocated();
  const ManifestFragment parsed = parse_fragment(text, "m", Chunks::all);
  const int64_t held = allocated() - before;
  print("{} bytes of metadata, {} a rank: {:.3f} s to write and check; {} bytes a rank in memory",
        text.size(), text.size() / ranks, seconds.count(), held / ranks);
  EXPECT_LT(seconds.count(), 5) << "also with sanitizers";
  EXPECT_LT(static_cast<int64_t>(text.size()), 400 * ranks);
  EXPECT_LT(held, 1000 * ranks);
}

}  // namespace
}  // namespace teratron
