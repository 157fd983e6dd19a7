#include "teratron/serve/chunked_body.h"

#include <algorithm>
#include <charconv>

namespace teratron {

namespace {

constexpr size_t longest_line = 4096, most_trailers = 16384;

// "1a;name=value" as 26.
std::optional<uint64_t> chunk_size(const std::string& line) {
  uint64_t size = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  if (error != std::errc()) return std::nullopt;
  const size_t rest = line.find_first_not_of(" \t", static_cast<size_t>(end - line.data()));
  return rest == line.npos   ? (end == line.data() + line.size() ? std::optional(size) : std::nullopt)
         : line[rest] == ';' ? std::optional(size)
                             : std::nullopt;
}

}  // namespace

bool ChunkedBody::refuse(int status, std::string why) {
  refusal_ = {.status = status, .why = std::move(why)};
  return false;
}

std::optional<std::string> ChunkedBody::read_line(const Source& source) {
  std::string line;
  while (line.size() <= longest_line) {
    char next = 0;
    if (source(&next, 1) <= 0) return std::nullopt;
    const bool after_return = !line.empty() && line.back() == '\r';
    if (after_return != (next == '\n') || (is_control(next) && next != '\r' && next != '\n')) break;
    if (next == '\n') {
      line.pop_back();
      return line;
    }
    line += next;
  }
  refuse(400, "a line between chunks of its body has a control character or no CR LF at its end");
  return std::nullopt;
}

bool ChunkedBody::skip_trailers(const Source& source) {
  while (const std::optional<std::string> line = read_line(source)) {
    if (line->empty()) return finished_ = true;
    if (!is_field(*line)) return refuse(400, "a line after its last chunk is not NAME: VALUE");
    trailers_ += line->size();
    if (trailers_ > most_trailers) return refuse(400, "what follows its last chunk is too long");
  }
  return false;
}

bool ChunkedBody::begin_chunk(const Source& source) {
  if (bytes_ > 0) {
    const std::optional<std::string> end = read_line(source);
    if (!end) return false;
    if (!end->empty()) return refuse(400, "a chunk of its body is longer than its size");
  }
  const std::optional<std::string> line = read_line(source);
  if (!line) return false;
  const std::optional<uint64_t> size = chunk_size(*line);
  if (!size) return refuse(400, "the size of a chunk of its body is not a hexadecimal number");
  if (*size == 0) return skip_trailers(source);
  if (*size > max_bytes_ - bytes_) return refuse(413, "");
  left_ = *size;
  return true;
}

ssize_t ChunkedBody::read(const Source& source, char* data, size_t size) {
  if (refusal_) return -1;
  if (left_ == 0 && !finished_ && !begin_chunk(source)) return -1;
  if (finished_) return 0;
  const ssize_t count = source(data, std::min<uint64_t>(size, left_));
  if (count <= 0) return -1;
  left_ -= static_cast<uint64_t>(count);
  bytes_ += static_cast<uint64_t>(count);
  return count;
}

}  // namespace teratron
