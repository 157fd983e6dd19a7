// What torch.save wrote: a zip file (since torch 1.6), or the stream of earlier releases. The pickle in it is
// read as data (unpickler.h); the bytes of tensors stay in the file until they are asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "teratron/pickle/byte_source.h"
#include "teratron/pickle/value.h"

namespace teratron {

class TorchFile {
 public:
  /// UserError(checkpoint) with `where` if this is not such a file, or holds what is not allowed.
  TorchFile(ByteSourcePtr source, std::string where);
  explicit TorchFile(const std::filesystem::path& path);

  const PickleValue& root() const { return *pickle_.root; }
  Dtype dtype_of(const PickledTensor& tensor) const { return pickle_.storages[tensor.storage].dtype; }
  /// Row-major, whatever its strides. Thread-safe. UserError(checkpoint) if the checksum of the storage's
  /// entry in the zip file is wrong, which the first read of it finds.
  std::vector<char> read(const PickledTensor& tensor) const;
  /// Elements [begin, end) of that.
  void read(const PickledTensor& tensor, int64_t begin, int64_t end, char* out) const;

 private:
  void open_zip();
  void open_stream();
  void parse(std::string text);
  void place_stream_storages(const PickleValue& keys, int64_t at);
  [[noreturn]] void fail(const std::string& what) const;

  ByteSourcePtr source_;
  std::string where_;
  std::unique_ptr<const std::string> text_;  // of the pickle
  Pickle pickle_;
  std::vector<ByteSourcePtr> storages_;  // of Pickle::storages
};

/// Number of elements.
int64_t numel(const PickledTensor& tensor);

}  // namespace teratron
