#include "teratron/testing/checkpoint_world.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/index_ranges.h"
#include "teratron/ckpt/save_plan.h"

namespace teratron {

namespace {

struct Exchange {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> slots;
  std::map<std::pair<int64_t, int64_t>, std::deque<std::string>> mailboxes;  // (from, to)
  int64_t arrived = 0;
  int64_t round = 0;
  bool aborted = false;
  std::vector<std::string> result;
};

class ThreadHostGroup final : public HostGroup {
 public:
  ThreadHostGroup(Exchange& exchange, int64_t rank) : exchange_(exchange), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(exchange_.slots.size()); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    std::unique_lock lock(exchange_.mutex);
    exchange_.slots[rank_] = bytes;
    const int64_t round = exchange_.round;
    if (++exchange_.arrived == size()) {
      exchange_.result = exchange_.slots;
      exchange_.arrived = 0;
      ++exchange_.round;
      exchange_.changed.notify_all();
    }
    exchange_.changed.wait(lock, [&] { return exchange_.round != round || exchange_.aborted; });
    if (exchange_.round == round) throw Fault("another rank failed");
    return exchange_.result;
  }

  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    std::vector<std::string> all = all_gather_bytes(bytes);
    if (rank_ > 0) all.clear();
    return all;
  }
  std::string broadcast_bytes(const std::string& bytes) override { return all_gather_bytes(bytes)[0]; }

  void send_bytes(int64_t to, const std::string& bytes) override {
    const std::lock_guard lock(exchange_.mutex);
    exchange_.mailboxes[{rank_, to}].push_back(bytes);
    exchange_.changed.notify_all();
  }

  std::string receive_bytes(int64_t from) override {
    std::unique_lock lock(exchange_.mutex);
    std::deque<std::string>& box = exchange_.mailboxes[{from, rank_}];
    exchange_.changed.wait(lock, [&] { return !box.empty() || exchange_.aborted; });
    if (box.empty()) throw Fault("another rank failed");
    std::string bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }

 private:
  Exchange& exchange_;
  int64_t rank_;
};

void put_value(unsigned char* to, int64_t bytes, const std::string& name, int64_t index, uint32_t seed) {
  const uint64_t value = hash_text(fmt::format("{}/{}/{}", name, index, seed));
  std::memcpy(to, &value, static_cast<size_t>(bytes));
}

}  // namespace

void run_host_group(int64_t ranks, const std::function<void(HostGroup&)>& body) {
  Exchange exchange;
  exchange.slots.resize(ranks);
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadHostGroup group(exchange, rank);
        body(group);
      } catch (...) {
        const std::lock_guard lock(exchange.mutex);
        if (!first) first = std::current_exception();
        exchange.aborted = true;
        exchange.changed.notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

namespace {

// Hundreds of saves with their fsyncs are fast in memory.
std::filesystem::path fast_directory() {
  std::error_code ignored;
  const std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory, ignored) && ::access(memory.c_str(), W_OK) == 0
             ? memory
             : std::filesystem::temp_directory_path();
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() : path_(fast_directory() / ("teratron-ckpt-" + random_hex(12))) {
  std::filesystem::create_directory(path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TestTensors::push(LocalTensor tensor) {
  const int64_t elements = flat_end_of(tensor) - tensor.flat_begin;
  storage_.emplace_back(elements * size_of(tensor.dtype), static_cast<unsigned char>(0xee));
  tensor.data = storage_.back().data();
  list_.push_back(std::move(tensor));
}

void TestTensors::add(const std::string& name, const Shard& shard, Dtype dtype) {
  push({.name = name, .dtype = dtype, .shard = shard});
}

void TestTensors::add_range(const std::string& name, const Shard& shard, int64_t begin, int64_t end) {
  push({.name = name, .shard = shard, .flat_begin = begin, .flat_end = end});
}

void TestTensors::fill(uint32_t seed) {
  for (size_t i = 0; i < list_.size(); ++i) {
    const int64_t bytes = size_of(list_[i].dtype);
    for (const IndexRange& run : index_ranges(list_[i].shard, list_[i].flat_begin, flat_end_of(list_[i]))) {
      for (int64_t k = 0; k < run.length; ++k) {
        put_value(storage_[i].data() + (run.local + k) * bytes, bytes, list_[i].name, run.global + k, seed);
      }
    }
  }
}

std::string TestTensors::difference(uint32_t seed) const {
  TestTensors expected;
  for (const LocalTensor& tensor : list_) {
    expected.push(tensor);
    std::fill(expected.storage_.back().begin(), expected.storage_.back().end(), 0);
  }
  expected.fill(seed);
  for (size_t i = 0; i < list_.size(); ++i) {
    for (size_t k = 0; k < storage_[i].size(); ++k) {
      if (storage_[i][k] != expected.storage_[i][k])
        return fmt::format("{} differs at byte {}", list_[i].name, k);
    }
  }
  return "";
}

}  // namespace teratron
