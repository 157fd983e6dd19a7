// For tests of checkpoints: ranks as threads, a temporary folder, and tensors whose elements are functions of
// their global index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

/// Runs `body` on `ranks` threads that form a HostGroup; rethrows the first exception. A rank that throws
/// outside of a collective makes the others' collectives throw Fault.
void run_host_group(int64_t ranks, const std::function<void(HostGroup&)>& body);

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Local tensors with storage.
class TestTensors {
 public:
  /// A part of tensor `name`, of 0xee bytes until filled.
  void add(const std::string& name, const Shard& shard, Dtype dtype = Dtype::f32);
  void add_range(const std::string& name, const Shard& shard, int64_t begin, int64_t end);

  /// Sets every element to a function of (name, global index, seed).
  void fill(uint32_t seed);
  /// Empty, or the first element that differs from fill(seed); padding must be zero.
  std::string difference(uint32_t seed) const;

  const std::vector<LocalTensor>& list() const { return list_; }

 private:
  void push(LocalTensor tensor);
  std::vector<LocalTensor> list_;
  std::vector<std::vector<unsigned char>> storage_;
};

/// The message of the Error that `body` throws; "" if it returns.
template <typename Error, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace teratron
