#include "teratron/comm/host/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {
namespace {

constexpr uint32_t kMagic = 0x7E4A7204;
constexpr size_t kMaxTrace = size_t{1} << 22;  // bytes of a status reply's body

size_t machine_memory() {
  static const auto bytes =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  return bytes;
}

size_t max_body(Frame::Kind kind) {
  switch (kind) {
    case Frame::Kind::collective:
    case Frame::Kind::point_to_point:
      return machine_memory();
    case Frame::Kind::status_reply:
      return kMaxTrace;
    default:
      return 0;
  }
}

/// The exit code of a failed job: neither 0 nor the code of a run that was stopped.
bool is_failure(int64_t code) {
  if (code < 0 || code > 255) return false;
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::config:
    case ExitCode::data:
    case ExitCode::checkpoint:
    case ExitCode::retryable:
    case ExitCode::numerics:
    case ExitCode::out_of_memory:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void malformed(const std::string& what) {
  throw Fault(
      fmt::format("malformed message from another rank ({}): is it the same version of the program?", what));
}

std::string printable_lines(std::string text) {
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = printable(line, kMaxFrameText);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

ByteBuffer::ByteBuffer(ByteSpan bytes) : ByteBuffer(bytes.size()) {
  if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
}

std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes) {
  const std::string_view text = std::string_view(frame.text).substr(0, kMaxFrameText);
  const FrameReader::Head head{.magic = kMagic,
                               .kind = static_cast<uint32_t>(frame.kind),
                               .group_id = frame.group_id,
                               .sequence = frame.sequence,
                               .text_bytes = text.size(),
                               .body_bytes = body_bytes};
  std::vector<std::byte> bytes(sizeof(head) + text.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), text.data(), text.size());
  return bytes;
}

void FrameReader::begin_frame() {
  std::memcpy(&parsed_head_, head_.data(), sizeof(parsed_head_));
  check_head();
  frame_ = {.kind = static_cast<Frame::Kind>(parsed_head_.kind),
            .group_id = parsed_head_.group_id,
            .sequence = parsed_head_.sequence};
  frame_.text.resize(parsed_head_.text_bytes);
  frame_.body = ByteBuffer(parsed_head_.body_bytes);
}

void FrameReader::check_head() const {
  const Head& head = parsed_head_;
  if (head.magic != kMagic) malformed("not one of this program");
  if (head.kind > static_cast<uint32_t>(Frame::Kind::goodbye)) malformed(fmt::format("kind {}", head.kind));
  const auto kind = static_cast<Frame::Kind>(head.kind);
  if (head.text_bytes > kMaxFrameText) malformed(fmt::format("a text of {} bytes", head.text_bytes));
  if (head.body_bytes > max_body(kind)) malformed(fmt::format("{} bytes", head.body_bytes));
  if (kind == Frame::Kind::failure && !is_failure(head.sequence)) {
    malformed(fmt::format("a failure with exit code {}", head.sequence));
  }
  if (head.sequence < 0) malformed(fmt::format("number {}", head.sequence));
}

void FrameReader::feed(ByteSpan bytes, const std::function<void(Frame)>& take) {
  // Fills the section of the frame that starts at offset `start`; true if it is complete.
  const auto fill = [&](void* target, size_t start, size_t size) {
    const size_t done = received_ - start;
    const size_t count = std::min(bytes.size(), size - done);
    if (count > 0) std::memcpy(static_cast<std::byte*>(target) + done, bytes.data(), count);
    bytes = bytes.subspan(count);
    received_ += count;
    return done + count == size;
  };
  while (true) {
    if (received_ < sizeof(Head)) {
      if (bytes.empty() || !fill(head_.data(), 0, sizeof(Head))) return;
      begin_frame();
    }
    const size_t text_end = sizeof(Head) + frame_.text.size();
    if (received_ < text_end && !fill(frame_.text.data(), sizeof(Head), frame_.text.size())) return;
    if (!fill(frame_.body.data(), text_end, frame_.body.size())) return;
    received_ = 0;
    frame_.text = printable_lines(std::move(frame_.text));
    take(std::move(frame_));
  }
}

}  // namespace teratron
