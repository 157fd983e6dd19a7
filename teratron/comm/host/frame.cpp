#include "teratron/comm/host/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr uint32_t kMagic = 0x7E4A7204;

}  // namespace

ByteBuffer::ByteBuffer(ByteSpan bytes) : ByteBuffer(bytes.size()) {
  if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
}

std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes) {
  const FrameReader::Head head{.magic = kMagic,
                               .kind = static_cast<uint32_t>(frame.kind),
                               .group_id = frame.group_id,
                               .sequence = frame.sequence,
                               .text_bytes = frame.text.size(),
                               .body_bytes = body_bytes};
  std::vector<std::byte> bytes(sizeof(head) + frame.text.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), frame.text.data(), frame.text.size());
  return bytes;
}

void FrameReader::begin_frame() {
  std::memcpy(&parsed_head_, head_.data(), sizeof(parsed_head_));
  if (parsed_head_.magic != kMagic || parsed_head_.kind > static_cast<uint32_t>(Frame::Kind::goodbye)) {
    throw Fault("malformed message from another rank: is it the same version of the program?");
  }
  frame_ = {.kind = static_cast<Frame::Kind>(parsed_head_.kind),
            .group_id = parsed_head_.group_id,
            .sequence = parsed_head_.sequence};
  frame_.text.resize(parsed_head_.text_bytes);
  frame_.body = ByteBuffer(parsed_head_.body_bytes);
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
    take(std::move(frame_));
  }
}

}  // namespace teratron
