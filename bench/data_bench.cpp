// Speed of the data layer on synthetic data: wall time, and CPU time of all threads for busy machines.
//
//   data_bench loader FOLDER   tokens/s of DataLoader, 0 to 2 workers, hot page cache (writes 200 MB)
//   data_bench index           time and memory of a GPT index: 100 billion tokens, 100 million documents
#include <chrono>
#include <filesystem>
#include <random>

#include <sys/resource.h>

#include "teratron/base/log.h"
#include "teratron/data/data_loader.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/gpt/data/gpt_dataset.h"

namespace teratron {
namespace {

double cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Runs the action and returns {wall, CPU} seconds.
template <class Action>
std::pair<double, double> timed(Action&& action) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  action();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {wall.count(), cpu_seconds() - cpu};
}

void bench_loader(const std::string& folder) {
  constexpr int64_t kDocuments = 200'000, kLength = 2048, kMicroBatch = 8;
  const std::string prefix = folder + "/data_bench";
  IndexedDatasetBuilder builder(prefix, Dtype::u16);
  std::mt19937 random(1);
  std::vector<int32_t> text;
  for (int64_t d = 0; d < kDocuments; ++d) {
    text.resize(1 + random() % 1000);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % 50000);
    text.back() = 50256;
    builder.add_sequence(text);
    builder.end_document();
  }
  builder.finalize();
  const auto data = std::make_shared<IndexedDataset>(prefix);
  const GPTIndexOptions options{.sequence_length = kLength};
  const auto dataset = std::make_shared<GPTDataset>(
      data, build_gpt_index({0, data->sequences()}, data->lengths(0, data->sequences()), options), options,
      GPTMaskOptions{.eod_id = 50256, .vocab_size = 50257});
  for (const int workers : {0, 1, 2, 0, 1, 2}) {
    DataLoader loader(dataset, {.sampler = {.micro_batch_size = kMicroBatch}, .num_workers = workers});
    int64_t tokens = 0;
    const auto [wall, cpu] = timed([&] {
      while (const auto batch = loader.next()) tokens += static_cast<int64_t>(batch->tokens.size());
    });
    const auto millions = static_cast<double>(tokens) / 1e6;
    print("loader, {} workers: {:.1f} M tokens/s wall, {:.1f} M tokens per CPU second", workers,
          millions / wall, millions / cpu);
  }
  for (const char* const suffix : {".bin", ".idx"}) std::filesystem::remove(prefix + suffix);
}

void bench_index() {
  constexpr int64_t kDocuments = 100'000'000;
  std::vector<int32_t> lengths(kDocuments);
  std::mt19937 random(1);
  for (int32_t& length : lengths) length = static_cast<int32_t>(1 + random() % 1999);
  GPTIndex index;
  const auto [wall, cpu] =
      timed([&] { index = build_gpt_index({0, kDocuments}, lengths, {.sequence_length = 2048}); });
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  print(
      "index of {} tokens, {} documents, {} samples: {:.1f} s wall, {:.1f} s CPU; peak memory {} MB, {} MB "
      "of it lengths",
      index.tokens_per_epoch, kDocuments, index.samples(), wall, cpu, usage.ru_maxrss / 1024,
      kDocuments * sizeof(int32_t) >> 20);
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "loader" && argc == 3) {
    teratron::bench_loader(argv[2]);
  } else if (what == "index") {
    teratron::bench_index();
  } else {
    teratron::print("usage: data_bench loader FOLDER | data_bench index");
    return 2;
  }
  return 0;
}
