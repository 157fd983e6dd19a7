// Lines typed in a terminal, with editing and history.
//
//   left, right, Home, End, Ctrl-A, Ctrl-E   move       Backspace, Delete, Ctrl-U, Ctrl-K, Ctrl-W   erase
//   up, down                                 history    Ctrl-C   empties the line
//   Alt-Enter, or Enter after a backslash    another line of the same input
//   Ctrl-D on an empty line                  the end
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <termios.h>

namespace teratron {

/// The text and the cursor of a line, without a terminal. UTF-8.
class EditedLine {
 public:
  enum class Action { none, accept, cancel, end };
  /// Takes the bytes of one key.
  Action key(const std::string& bytes, std::vector<std::string>& history);
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // bytes

 private:
  size_t before(size_t position) const;
  size_t after(size_t position) const;
  void replace(std::string text);
  void browse(std::vector<std::string>& history, bool back);
  void erase_word();
  bool move(const std::string& bytes);

  std::string text_;
  size_t cursor_ = 0;
  std::optional<size_t> browsed_;
};

class LineEditor {
 public:
  /// Descriptors of a terminal, which is restored at the end. Keys are not echoed and Ctrl-C is a key.
  LineEditor(int in, int out);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next input; nullopt at the end. `idle` is called every 20 seconds.
  std::optional<std::string> read(const std::string& prompt, const std::function<void()>& idle);
  /// Whether Ctrl-C was typed since the last call; other keys are kept for read().
  bool interrupted();
  void write(const std::string& text);

 private:
  std::optional<std::string> next_key(const std::function<void()>& idle);
  bool wait_input(int milliseconds) const;
  bool fill();
  void draw(const std::string& prompt, const EditedLine& line);

  int in_, out_;
  termios saved_{};
  std::string typed_;  // bytes not used yet
  std::vector<std::string> history_;
};

}  // namespace teratron
