// Wire format: one message between two processes of a job, sent over a Transport.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/transport/transport.h"

namespace teratron {

/// A buffer of received bytes; uninitialized until written.
class ByteBuffer {
 public:
  ByteBuffer() = default;
  explicit ByteBuffer(size_t size) : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  explicit ByteBuffer(ByteSpan bytes);
  std::byte* data() { return data_.get(); }
  size_t size() const { return size_; }
  ByteSpan bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

struct Frame {
  enum class Kind : uint32_t {
    hello,           // text: pid and host of the sender
    collective,      // a part of a collective; text: fingerprint, "" in later phases
    point_to_point,  // text: fingerprint
    status_query,    // asks for the receiver's status and flight trace of the group
    status_reply,    // text: RankStatus; body: recorded fingerprints, one per line; `sequence`: of the newest
    failure,         // text: reason; `sequence`: ExitCode, not 0; `group_id`: the rank that failed first
    goodbye,         // the sender has completed successfully
  };
  Kind kind = Kind::hello;
  uint64_t group_id = 0;
  int64_t sequence = 0;
  std::string text = {};
  ByteBuffer body = {};
};

/// Longest text of a frame.
constexpr size_t kMaxFrameText = size_t{1} << 16;

/// The bytes that precede the body. Cuts texts that are too long.
std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes);

/// Parses a byte stream into frames and checks their sizes and numbers. Control characters in texts are
/// escaped, except line ends.
class FrameReader {
 public:
  /// Calls `take` for every frame that these bytes complete. Throws Fault if the stream is malformed.
  void feed(ByteSpan bytes, const std::function<void(Frame)>& take);

 private:
  struct Head {
    uint32_t magic;
    uint32_t kind;
    uint64_t group_id;
    int64_t sequence;
    uint64_t text_bytes;
    uint64_t body_bytes;
  };
  friend std::vector<std::byte> encode_head(const Frame& frame, size_t body_bytes);
  void begin_frame();
  void check_head() const;

  std::array<std::byte, sizeof(Head)> head_;
  size_t received_ = 0;  // bytes of the current frame: head, text, body
  Head parsed_head_{};
  Frame frame_;
};

}  // namespace teratron
