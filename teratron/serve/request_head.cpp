#include "teratron/serve/request_head.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

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

// Where "http://host/path" has its authority; nullopt for a path.
struct Span {
  size_t begin, end;
};
std::optional<Span> authority_of(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == target.npos || target.starts_with('/')) return std::nullopt;
  const size_t begin = scheme + 3;
  return Span{begin, std::min(target.find_first_of("/?#", begin), target.size())};
}

}  // namespace

// A blank before the colon or at the beginning of a line has several readings.
bool is_field(std::string_view line) {
  const size_t colon = line.find(':');
  return colon != line.npos && is_token(line.substr(0, colon));
}

bool is_control(char byte) {
  return (static_cast<unsigned char>(byte) < 0x20 && byte != '\t') || byte == 0x7f;
}

void HeadReader::refuse(int status, std::string why) {
  refusal_ = {.status = status, .why = std::move(why)};
}

size_t HeadReader::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && !finished()) take(bytes[taken++]);
  return taken;
}

void HeadReader::take(char next) {
  const bool after_return = !line_.empty() && line_.back() == '\r';
  if (++bytes_ > most_bytes) return refuse(400, "its head is too long");
  if (after_return != (next == '\n')) return refuse(400, "a line of its head does not end with CR LF");
  if (next == '\n') {
    line_.pop_back();
    end_line();
    return line_.clear();
  }
  if (is_control(next) && next != '\r') return refuse(400, "its head has a control character");
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
  if (!is_field(line_)) return refuse(400, "a line of its head is not NAME: VALUE");
  const size_t colon = line_.find(':');
  fields_.emplace_back(to_lower(line_.substr(0, colon)),
                       without_blanks(std::string_view(line_).substr(colon + 1)));
}

std::vector<std::string> HeadReader::values(std::string_view name) const {
  std::vector<std::string> found;
  for (const auto& [field, value] : fields_) {
    if (field == name) found.push_back(value);
  }
  return found;
}

// Readers differ in which of several they take.
void HeadReader::check_single_fields() {
  const std::vector<std::string> hosts = values("host");
  const bool has_host = hosts.empty() ? old_version_ : hosts.size() == 1 && !hosts.front().empty();
  if (!has_host) return refuse(400, "it must have one Host");
  for (const char* name : {"origin", "content-type", "authorization"}) {
    if (values(name).size() > 1) return refuse(400, fmt::format("it has more than one {}", name));
  }
}

// A target with its host, as clients send it to proxies: the host counts, and not that of the field.
void HeadReader::take_authority() {
  const size_t first = request_line_.find(' ') + 1, last = request_line_.rfind(' ');
  const std::string target = request_line_.substr(first, last - first);
  const std::optional<Span> authority = authority_of(target);
  if (!authority) return;
  const std::string host = target.substr(authority->begin, authority->end - authority->begin);
  if (host.empty()) return refuse(400, "its target has no host");
  std::erase_if(fields_, [](const auto& field) { return field.first == "host"; });
  fields_.emplace_back("host", host);
  std::string path = target.substr(authority->end);
  if (!path.starts_with('/')) path.insert(0, "/");
  request_line_.replace(first, last - first, path);
}

void HeadReader::finish() {
  check_single_fields();
  if (!refusal_) take_authority();
  if (refusal_) return;
  const std::vector<std::string> lengths = values("content-length"), codings = values("transfer-encoding");
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
