#include "teratron/comm/host/status_reply.h"

#include <charconv>
#include <string_view>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {
namespace {

int64_t parse_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Fault(fmt::format("malformed message: '{}' in the status of a rank", printable(text)));
  }
  return value;
}

}  // namespace

Frame status_frame(uint64_t group_id, const StatusReply& reply) {
  return {.kind = Frame::Kind::status_reply,
          .group_id = group_id,
          .sequence = reply.trace.count,
          .text = reply.status};
}

/// First line: whether it diagnoses and, if it waits, in which collective and for whom; then the calls.
std::string status_body(const StatusReply& reply) {
  std::string body = reply.diagnoses ? "1" : "0";
  if (reply.wait) body += fmt::format(" {} {}", reply.wait->sequence, fmt::join(reply.wait->for_ranks, " "));
  for (const std::string& call : reply.trace.fingerprints) body += "\n" + call;
  return body;
}

StatusReply parse_status(const Frame& frame, int64_t rank) {
  const ByteSpan bytes = frame.body.bytes();
  std::vector<std::string> lines =
      split(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), '\n');
  StatusReply reply{.status = frame.text, .trace = {.rank = rank, .count = frame.sequence}};
  for (size_t i = 1; i < lines.size(); ++i)
    reply.trace.fingerprints.push_back(printable(lines[i], kMaxFrameText));
  const std::vector<std::string> numbers = split(lines.empty() ? "" : lines[0], ' ');
  reply.diagnoses = !numbers.empty() && numbers[0] == "1";
  if (numbers.size() < 2) return reply;
  RankWait& wait = reply.wait.emplace();
  wait.sequence = parse_number(numbers[1]);
  for (size_t i = 2; i < numbers.size() && i < 2 + kMaxAwaited; ++i) {
    wait.for_ranks.push_back(parse_number(numbers[i]));
  }
  return reply;
}

}  // namespace teratron
