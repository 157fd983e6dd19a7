// For the tests of this layer: ranks as threads, a folder that disappears, and tensors whose every element is
// known from its global index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

/// Runs `body` on `ranks` threads that gather bytes among each other; the first exception is rethrown. A rank
/// that throws outside of a collective makes the others' collectives throw Fault.
void run_peers(int64_t ranks, const std::function<void(Peers&)>& body);

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
  /// A part of tensor `name`, f32 unless said; elements are 0xee bytes until filled.
  void add(const std::string& name, const Shard& shard, Dtype dtype = Dtype::f32);
  void add_range(const std::string& name, const Shard& shard, int64_t begin, int64_t end);

  /// Every element gets the value that belongs to (name, global index, seed).
  void fill(uint32_t seed);
  /// Empty, or the first element that has not that value; padding must be zero.
  std::string difference(uint32_t seed) const;

  const std::vector<LocalTensor>& list() const { return list_; }

 private:
  void push(LocalTensor tensor);
  std::vector<LocalTensor> list_;
  std::vector<std::vector<unsigned char>> storage_;
};

/// What `body` throws, as text; "" if it returns. The exception must be an Error.
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
