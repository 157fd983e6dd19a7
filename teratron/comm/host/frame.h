// One message between two processes of a job, as it travels over a Wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/host/transport.h"

namespace teratron {

/// Bytes that came from another rank; not initialised before they are written.
class Block {
 public:
  Block() = default;
  explicit Block(size_t size) : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  explicit Block(ByteSpan bytes);
  std::byte* data() { return data_.get(); }
  size_t size() const { return size_; }
  ByteSpan bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

struct Frame {
  enum class Kind : uint32_t {
    hello,     // text: pid and host of the sender
    part,      // of collective `number` of a channel; text: the call, "" in its later phases
    message,   // point to point; text: the call
    question,  // where are you, and what did you ask for on this channel?
    answer,    // text: Whereabouts in words; body: the last calls, a line each; `number`: of the newest
    failure,   // text: the reason; `number`: the exit code; `channel`: the rank that failed first
    goodbye,   // the sender's part has ended in order
  };
  Kind kind = Kind::hello;
  uint64_t channel = 0;
  int64_t number = 0;
  std::string text = {};
  Block body = {};
};

/// What travels before the body.
std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes);

/// Cuts a stream into frames.
class FrameReader {
 public:
  /// Calls `take` for every frame that these bytes complete. Throws Fault when the stream is none of frames.
  void feed(ByteSpan bytes, const std::function<void(Frame)>& take);

 private:
  struct Head {
    uint32_t magic;
    uint32_t kind;
    uint64_t channel;
    int64_t number;
    uint64_t text_bytes;
    uint64_t body_bytes;
  };
  friend std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes);
  void begin_frame();

  std::array<std::byte, sizeof(Head)> head_;
  size_t have_ = 0;  // bytes of the frame so far: head, text, body
  Head fields_{};
  Frame frame_;
};

}  // namespace teratron
