#include "teratron/comm/host/thread_world.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/thread_communicator.h"
#include "teratron/comm/torch_fault.h"

namespace teratron {
namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<ThreadBackend> backend, int64_t rank)
      : backend_(std::move(backend)), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return backend_->size(); }

  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override {
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    TERATRON_ASSERT(mine != ranks.end(), "rank {} is not in its group", rank_);
    for (int64_t rank : ranks) TERATRON_ASSERT(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
    return thread_communicator(backend_, backend_->group(rank_, ranks), mine - ranks.begin());
  }

 private:
  std::shared_ptr<ThreadBackend> backend_;
  const int64_t rank_;
};

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return to_fault(e).what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

void run_ranks(int64_t ranks, const std::function<void(World&)>& body, ThreadOptions options) {
  TERATRON_ASSERT(ranks >= 1, "{} ranks", ranks);
  const int threads_before = at::get_num_threads();
  const auto backend = std::make_shared<ThreadBackend>(ranks, options.timeout);
  std::exception_ptr first;
  std::once_flag failed;
  const auto run = [&](int64_t rank) {
    at::set_num_threads(1);
    try {
      ThreadWorld world(backend, rank);
      body(world);
    } catch (...) {
      // Before the abort, which makes the other ranks throw too.
      std::call_once(failed, [&] { first = std::current_exception(); });
      backend->abort(fmt::format("rank {} failed: {}", rank, message_of(std::current_exception())));
    }
    backend->finish(rank);
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  at::set_num_threads(threads_before);  // the default of new threads is global
  if (first) std::rethrow_exception(first);
}

void run_ranks(MeshOptions options, const std::function<void(const Mesh&)>& body, ThreadOptions threads) {
  if (options.dp == 0) options.dp = 1;
  const int64_t ranks = options.tp * options.cp * options.dp * options.pp;
  const RankGrid checked(options, ranks);
  run_ranks(ranks, [&](World& world) { body(Mesh(options, world)); }, threads);
}

}  // namespace teratron
