#include "teratron/comm/host/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr uint32_t kMagic = 0x7E4A7204;

}  // namespace

Block::Block(ByteSpan bytes) : Block(bytes.size()) {
  if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
}

std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes) {
  const FrameReader::Head head{.magic = kMagic,
                               .kind = static_cast<uint32_t>(frame.kind),
                               .channel = frame.channel,
                               .number = frame.number,
                               .text_bytes = frame.text.size(),
                               .body_bytes = body_bytes};
  std::vector<std::byte> bytes(sizeof(head) + frame.text.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), frame.text.data(), frame.text.size());
  return bytes;
}

void FrameReader::begin_frame() {
  std::memcpy(&fields_, head_.data(), sizeof(fields_));
  if (fields_.magic != kMagic || fields_.kind > static_cast<uint32_t>(Frame::Kind::goodbye)) {
    throw Fault("what another rank sent cannot be read: is it the same version of the program?");
  }
  frame_ = {
      .kind = static_cast<Frame::Kind>(fields_.kind), .channel = fields_.channel, .number = fields_.number};
  frame_.text.resize(fields_.text_bytes);
  frame_.body = Block(fields_.body_bytes);
}

void FrameReader::feed(ByteSpan bytes, const std::function<void(Frame)>& take) {
  // Copies what belongs to a section of the frame that begins at `start`; true when the section is complete.
  const auto fill = [&](void* target, size_t start, size_t size) {
    const size_t done = have_ - start;
    const size_t count = std::min(bytes.size(), size - done);
    if (count > 0) std::memcpy(static_cast<std::byte*>(target) + done, bytes.data(), count);
    bytes = bytes.subspan(count);
    have_ += count;
    return done + count == size;
  };
  while (true) {
    if (have_ < sizeof(Head)) {
      if (bytes.empty() || !fill(head_.data(), 0, sizeof(Head))) return;
      begin_frame();
    }
    const size_t text_end = sizeof(Head) + frame_.text.size();
    if (have_ < text_end && !fill(frame_.text.data(), sizeof(Head), frame_.text.size())) return;
    if (!fill(frame_.body.data(), text_end, frame_.body.size())) return;
    have_ = 0;
    take(std::move(frame_));
  }
}

}  // namespace teratron
