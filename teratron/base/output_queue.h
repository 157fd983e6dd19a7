// A bounded queue of text for a terminal, pipe or file, and a thread that writes it: a reader that stops
// reading (Ctrl-S, a pager, a stopped `tee`) or goes away never makes the program wait.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace teratron {

class OutputQueue {
 public:
  struct Options {
    size_t max_bytes = size_t{1} << 20;
    std::string elsewhere = "";            // ends the notice of dropped lines: where they can be read
    std::function<void()> on_closed = {};  // the reader is gone; called once, on the writing thread
  };
  explicit OutputQueue(Options options);
  /// Abandons what is not written: call flush() before.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  enum class Priority : uint8_t { normal, urgent };  // urgent text has as much room again
  /// Queues whole lines for a descriptor, which must stay open. Never waits: a full queue drops them and,
  /// once all queued before is written, a notice on the same descriptor states how many.
  void push(int fd, std::string lines, Priority priority);
  /// Drops the text unless all text before it is written: for what is soon drawn again.
  void push_if_idle(int fd, std::string text);
  /// Waits until all is written. False if the reader takes nothing for `patience`, or not all within 5 times
  /// that.
  bool flush(std::chrono::milliseconds patience);

 private:
  class State;
  std::shared_ptr<State>
      state_;  // the thread shares it: it may hang in write() when this object is destroyed
};

}  // namespace teratron
