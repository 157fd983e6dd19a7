#include "teratron/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Batch read_batch(const Dataset& dataset, const std::vector<int64_t>& numbers) {
  Batch batch;
  batch.micro_batch = static_cast<int64_t>(numbers.size());
  batch.seq_length = dataset.sequence_length();
  Sample sample;
  for (const int64_t number : numbers) {
    dataset.get(number, sample);
    append(batch.tokens, sample.tokens);
    append(batch.labels, sample.labels);
    append(batch.position_ids, sample.position_ids);
    append(batch.loss_mask, sample.loss_mask);
    append(batch.document_start, sample.document_start);
  }
  const bool reset = std::any_of(batch.document_start.begin(), batch.document_start.end(),
                                 [](int32_t start) { return start != 0; });
  if (!reset) batch.document_start.clear();
  return batch;
}

}  // namespace

struct Loader::State {
  struct Result {
    std::unique_ptr<Batch> batch;  // null: the end
    std::exception_ptr error;
  };

  State(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
      : dataset(std::move(dataset)), cyclic(options.sampler.kind == SamplerKind::cyclic) {
    SamplerOptions sampler_options = options.sampler;
    if (sampler_options.total_samples == 0) sampler_options.total_samples = this->dataset->size();
    TERATRON_ASSERT(sampler_options.total_samples <= this->dataset->size(), "{} samples of {}",
                    sampler_options.total_samples, this->dataset->size());
    sampler = build_sampler(sampler_options);
    ahead = static_cast<int64_t>(options.workers) * std::max(options.prefetch, 1);
    for (int i = 0; i < options.workers; ++i) threads.emplace_back([this] { work(); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  /// A cyclic sampler ends its pass at every epoch; asked again it begins the next one.
  std::optional<std::vector<int64_t>> next_numbers() {
    auto numbers = sampler->next();
    if (!numbers && cyclic) numbers = sampler->next();
    return numbers;
  }

  Result read(const std::optional<std::vector<int64_t>>& numbers) const {
    Result result;
    try {
      if (numbers) result.batch = std::make_unique<Batch>(read_batch(*dataset, *numbers));
    } catch (...) {
      result.error = std::current_exception();
    }
    return result;
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || (!ended && given < taken + ahead); });
      if (stopping) return;
      const int64_t ticket = given++;
      const auto numbers = next_numbers();
      ended = ended || !numbers;
      lock.unlock();
      Result result = read(numbers);
      lock.lock();
      results.emplace(ticket, std::move(result));
      changed.notify_all();
    }
  }

  Result take() {
    if (threads.empty()) return read(next_numbers());
    std::unique_lock lock(mutex);
    const auto ready = [&] { return results.contains(taken) || (ended && taken >= given); };
    changed.wait(lock, ready);
    const auto found = results.find(taken);
    if (found == results.end()) return {};
    Result result = std::move(found->second);
    results.erase(found);
    ++taken;
    changed.notify_all();
    return result;
  }

  std::shared_ptr<const Dataset> dataset;
  std::unique_ptr<Sampler> sampler;
  const bool cyclic;
  int64_t ahead = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, Result> results;  // finished but not yet taken, by ticket
  int64_t given = 0;                  // tickets handed to workers
  int64_t taken = 0;
  bool ended = false;
  bool stopping = false;
  std::vector<std::thread> threads;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(dataset), options)) {}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() {
  State::Result result = state_->take();
  if (result.error) std::rethrow_exception(result.error);
  if (result.batch == nullptr) return {};
  return std::move(*result.batch);
}

}  // namespace teratron
