#include "teratron/serve/request_head.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "teratron/base/strings.h"

namespace teratron {

namespace {

bool is_token(std::string_view text) {
  constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           marks.find(c) != marks.npos;
  });
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view without_blanks(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  const size_t end = text.find_last_not_of(" \t") + 1;
  return text.substr(begin, std::max(begin, end) - begin);
}

// A length beyond 64 bits is too long for everything.
uint64_t length_of(std::string_view digits) {
  uint64_t length = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
  return error == std::errc() ? length : std::numeric_limits<uint64_t>::max();
}

}  // namespace

void HeadReader::refuse(int status, std::string why) {
  refusal_ = {.status = status, .why = std::move(why)};
}

size_t HeadReader::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && !finished()) take(bytes[taken++]);
  return taken;
}

void HeadReader::take(char next) {
  const auto byte = static_cast<unsigned char>(next);
  const bool after_return = !line_.empty() && line_.back() == '\r';
  if (++bytes_ > most_bytes) return refuse(400, "its head is too long");
  if (after_return != (next == '\n')) return refuse(400, "a line of its head does not end with CR LF");
  if (next == '\n') {
    line_.pop_back();
    end_line();
    return line_.clear();
  }
  if ((byte < 0x20 && next != '\t' && next != '\r') || byte == 0x7f)
    return refuse(400, "its head has a control character");
  line_ += next;
}

void HeadReader::end_line() {
  if (request_line_.empty()) return read_request_line();
  if (line_.empty()) return finish();
  read_field();
}

void HeadReader::read_request_line() {
  if (line_.empty()) return;  // some clients end a body with an empty line
  const size_t first = line_.find(' '), last = line_.rfind(' ');
  const bool is_request = first != last && first != line_.npos &&
                          is_token(std::string_view(line_).substr(0, first)) &&
                          line_.find_first_of(" \t", first + 1) == last && last > first + 1;
  const std::string version = is_request ? line_.substr(last + 1) : "";
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return refuse(400, "its first line is not METHOD TARGET HTTP/1.1");
  old_version_ = version == "HTTP/1.0";
  request_line_ = line_;
}

void HeadReader::read_field() {
  const size_t colon = line_.find(':');
  const std::string_view name = std::string_view(line_).substr(0, colon);
  // A blank before the colon or at the beginning of a line has several readings.
  if (colon == line_.npos || !is_token(name)) return refuse(400, "a line of its head is not NAME: VALUE");
  fields_.emplace_back(to_lower(std::string(name)),
                       without_blanks(std::string_view(line_).substr(colon + 1)));
}

std::vector<std::string> HeadReader::values(std::string_view name) const {
  std::vector<std::string> found;
  for (const auto& [field, value] : fields_) {
    if (field == name) found.push_back(value);
  }
  return found;
}

void HeadReader::finish() {
  const std::vector<std::string> lengths = values("content-length"), codings = values("transfer-encoding");
  const size_t hosts = values("host").size();
  if (hosts > 1 || (hosts == 0 && !old_version_)) return refuse(400, "it must have one Host");
  if (lengths.size() + codings.size() > 1)
    return refuse(400, "it has more than one Content-Length or Transfer-Encoding");
  if (!lengths.empty()) {
    if (!is_number(lengths.front())) return refuse(400, "its Content-Length is not a number");
    body_.length = length_of(lengths.front());
  }
  if (!codings.empty()) {
    if (old_version_) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
    if (to_lower(codings.front()) != "chunked")
      return refuse(501, "its Transfer-Encoding is not chunked, the only one that is supported");
    body_.chunked = true;
  }
  complete_ = true;
}

std::string HeadReader::text() const {
  std::string text = request_line_ + "\r\n";
  for (const auto& [name, value] : fields_) {
    if (name == "transfer-encoding") continue;
    text.append(name).append(": ");
    // cpp-httplib decodes values as if they were parts of a URL.
    for (const char c : value) c == '%' ? text.append("%25") : text.append(1, c);
    text += "\r\n";
  }
  return text + "\r\n";
}

}  // namespace teratron
