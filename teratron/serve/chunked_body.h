// Decodes the chunks of a request's body (RFC 9112, section 7.1).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "teratron/serve/request_head.h"

namespace teratron {

class ChunkedBody {
 public:
  /// Reads as recv(): 0 at the end, below 0 on failure.
  using Source = std::function<ssize_t(char* data, size_t size)>;

  explicit ChunkedBody(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Reads at most `size` bytes of the content; 0 at its end, -1 if it is broken off or refused.
  ssize_t read(const Source& source, char* data, size_t size);
  bool finished() const { return finished_; }
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  bool begin_chunk(const Source& source);
  bool skip_trailers(const Source& source);
  /// A line without its CR LF.
  std::optional<std::string> read_line(const Source& source);
  bool refuse(int status, std::string why);

  size_t max_bytes_;
  uint64_t bytes_ = 0, left_ = 0;  // of the content, of the chunk
  size_t trailers_ = 0;            // bytes
  bool finished_ = false;
  std::optional<Refusal> refusal_;
};

}  // namespace teratron
