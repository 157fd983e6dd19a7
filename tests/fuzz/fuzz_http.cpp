// Requests to the server as bytes: heads and chunked bodies. How they arrive in pieces changes nothing.
#include <algorithm>
#include <cstdint>
#include <string>

#include "teratron/base/error.h"
#include "teratron/serve/chunked_body.h"
#include "teratron/serve/request_head.h"

namespace {

using namespace teratron;

constexpr size_t most_bytes = 1000;

struct Read {
  HeadReader head;
  size_t taken = 0;
  std::string body;
  ssize_t end = 0;
};

Read read(const std::string& bytes, size_t piece) {
  Read result;
  while (result.taken < bytes.size() && !result.head.finished())
    result.taken += result.head.take(std::string_view(bytes).substr(result.taken, piece));
  if (!result.head.finished() || result.head.refusal() || !result.head.body().chunked) return result;
  ChunkedBody body(most_bytes);
  const auto source = [&](char* data, size_t size) -> ssize_t {
    const size_t count = std::min({size, piece, bytes.size() - result.taken});
    std::copy_n(bytes.data() + result.taken, count, data);
    result.taken += count;
    return static_cast<ssize_t>(count);
  };
  char data[64];
  while ((result.end = body.read(source, data, std::min(piece, sizeof data))) > 0)
    result.body.append(data, static_cast<size_t>(result.end));
  TERATRON_ASSERT(result.body.size() <= most_bytes && (result.end == 0) == body.finished(), "the body");
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const Read whole = read(bytes, 4096), pieces = read(bytes, 1);
  TERATRON_ASSERT(whole.head.finished() == pieces.head.finished() && whole.taken == pieces.taken, "pieces");
  TERATRON_ASSERT(whole.body == pieces.body && whole.end == pieces.end, "the body in pieces");
  if (!whole.head.finished() || whole.head.refusal()) return 0;
  const std::string text = whole.head.text();
  const Read again = read(text, 4096);
  TERATRON_ASSERT(again.taken == text.size() && again.head.finished() && !again.head.refusal(), "the head");
  TERATRON_ASSERT(again.head.body().length == whole.head.body().length && !again.head.body().chunked,
                  "the framing");
  return 0;
}
