// The head of an HTTP request, and where the request ends.
//
// Two readers of one connection, a proxy and this server, must agree on where each request ends: else a
// client hides a second request in the body of the first (request smuggling). So what the standard does not
// allow is refused, where cpp-httplib would guess.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace teratron {

/// Why a request is answered with an error before anything else looks at it. The connection ends then.
struct Refusal {
  int status = 400;
  std::string why;
};

/// How the body is delimited: in chunks, or by its length.
struct BodyFraming {
  bool chunked = false;
  uint64_t length = 0;
};

/// Whether a line begins with "NAME:".
bool is_field(std::string_view line);
/// Whether a byte may stand neither in a head nor between chunks: a control character other than a tab.
bool is_control(char byte);

class HeadReader {
 public:
  static constexpr size_t most_bytes = size_t{1} << 16U;

  /// Takes bytes up to the end of the head, and no more; their number.
  size_t take(std::string_view bytes);
  /// The head is complete or refused: nothing more is taken.
  bool finished() const { return complete_ || refusal_; }
  const std::optional<Refusal>& refusal() const { return refusal_; }

  // When the head is complete:
  const BodyFraming& body() const { return body_; }
  /// The head as cpp-httplib reads it: without Transfer-Encoding, whose chunks chunked_body.h decodes.
  std::string text() const;

 private:
  void take(char next);
  void end_line();
  void read_request_line();
  void read_field();
  void finish();
  void check_single_fields();
  void take_authority();
  std::vector<std::string> values(std::string_view name) const;
  void refuse(int status, std::string why);

  std::string line_;  // so far
  size_t bytes_ = 0;
  std::string request_line_;
  bool old_version_ = false;                                 // HTTP/1.0
  std::vector<std::pair<std::string, std::string>> fields_;  // names in lower case
  BodyFraming body_;
  bool complete_ = false;
  std::optional<Refusal> refusal_;
};

}  // namespace teratron
