#include "teratron/cli/generate/line_editor.h"

#include <algorithm>
#include <array>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace teratron {

namespace {

constexpr char interrupt = 3;

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

// Bytes of the key at the beginning; 0: not complete.
size_t key_size(std::string_view typed) {
  const auto first = static_cast<unsigned char>(typed[0]);
  if (first >= 0xC0U) {
    const size_t size = first >= 0xF0U ? 4 : first >= 0xE0U ? 3 : 2;
    return typed.size() < size ? 0 : size;
  }
  if (first != 0x1B) return 1;
  if (typed.size() == 1) return 0;
  if (typed[1] != '[' && typed[1] != 'O') return 2;
  for (size_t i = 2; i < typed.size(); ++i) {
    if (typed[i] >= 0x40 && typed[i] <= 0x7E) return i + 1;
  }
  return 0;
}

}  // namespace

size_t EditedLine::before(size_t position) const {
  if (position == 0) return 0;
  do --position;
  while (position > 0 && continues(text_[position]));
  return position;
}

size_t EditedLine::after(size_t position) const {
  if (position == text_.size()) return position;
  do ++position;
  while (position < text_.size() && continues(text_[position]));
  return position;
}

void EditedLine::replace(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void EditedLine::browse(std::vector<std::string>& history, bool back) {
  if (history.empty()) return;
  const size_t at = browsed_.value_or(history.size());
  if (back ? at == 0 : at >= history.size()) return;
  browsed_ = back ? at - 1 : at + 1;
  replace(*browsed_ < history.size() ? history[*browsed_] : "");
}

void EditedLine::erase_word() {
  size_t begin = cursor_;
  while (begin > 0 && text_[begin - 1] == ' ') --begin;
  while (begin > 0 && text_[begin - 1] != ' ') --begin;
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

// Keys that move the cursor.
bool EditedLine::move(const std::string& bytes) {
  const auto is = [&](std::initializer_list<const char*> keys) {
    return std::find(keys.begin(), keys.end(), bytes) != keys.end();
  };
  if (is({"\x1b[D", "\x1bOD", "\x02"})) {
    cursor_ = before(cursor_);
  } else if (is({"\x1b[C", "\x1bOC", "\x06"})) {
    cursor_ = after(cursor_);
  } else if (is({"\x1b[H", "\x1bOH", "\x1b[1~", "\x01"})) {
    cursor_ = 0;
  } else if (is({"\x1b[F", "\x1bOF", "\x1b[4~", "\x05"})) {
    cursor_ = text_.size();
  } else {
    return false;
  }
  return true;
}

EditedLine::Action EditedLine::key(const std::string& bytes, std::vector<std::string>& history) {
  const char first = bytes[0];
  if (move(bytes)) return Action::none;
  if (first == interrupt) return Action::cancel;
  if (first == 4 && text_.empty()) return Action::end;
  if (bytes == "\x1b\r" || bytes == "\x1b\n") {
    text_.insert(cursor_++, 1, '\n');
  } else if (first == '\r' || first == '\n') {
    if (!text_.ends_with('\\')) return Action::accept;
    replace(text_.substr(0, text_.size() - 1) + '\n');
  } else if (bytes == "\x1b[A" || bytes == "\x1bOA") {
    browse(history, true);
  } else if (bytes == "\x1b[B" || bytes == "\x1bOB") {
    browse(history, false);
  } else if (first == 127 || first == 8) {
    const size_t begin = before(cursor_);
    text_.erase(begin, cursor_ - begin);
    cursor_ = begin;
  } else if (bytes == "\x1b[3~" || first == 4) {
    text_.erase(cursor_, after(cursor_) - cursor_);
  } else if (first == 21) {
    text_.erase(0, cursor_);
    cursor_ = 0;
  } else if (first == 11) {
    text_.erase(cursor_);
  } else if (first == 23) {
    erase_word();
  } else if (static_cast<unsigned char>(first) >= 32) {
    text_.insert(cursor_, bytes);
    cursor_ += bytes.size();
  }
  return Action::none;
}

LineEditor::LineEditor(int in, int out) : in_(in), out_(out) {
  tcgetattr(in_, &saved_);
  termios raw = saved_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
  tcsetattr(in_, TCSADRAIN, &raw);
}

LineEditor::~LineEditor() {
  tcsetattr(in_, TCSADRAIN, &saved_);
}

bool LineEditor::wait_input(int milliseconds) const {
  pollfd descriptor{.fd = in_, .events = POLLIN, .revents = 0};
  return poll(&descriptor, 1, milliseconds) > 0;
}

bool LineEditor::fill() {
  std::array<char, 256> bytes{};
  const ssize_t count = ::read(in_, bytes.data(), bytes.size());
  if (count <= 0) return false;
  typed_.append(bytes.data(), static_cast<size_t>(count));
  return true;
}

std::optional<std::string> LineEditor::next_key(const std::function<void()>& idle) {
  constexpr int idle_milliseconds = 20'000, escape_milliseconds = 50;
  while (true) {
    size_t size = typed_.empty() ? 0 : key_size(typed_);
    if (size == 0 && !typed_.empty() && !wait_input(escape_milliseconds)) size = typed_.size();
    if (size > 0) {
      const std::string key = typed_.substr(0, size);
      typed_.erase(0, size);
      return key;
    }
    if (!wait_input(idle_milliseconds)) {
      idle();
    } else if (!fill()) {
      return std::nullopt;
    }
  }
}

void LineEditor::write(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(out_, text.data() + done, text.size() - done);
    if (count <= 0) return;
    done += static_cast<size_t>(count);
  }
}

// One row of the terminal: the last line of the input, as much of it as fits before the cursor.
void LineEditor::draw(const std::string& prompt, const EditedLine& line) {
  winsize size{};
  const size_t width = ioctl(out_, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
  const size_t room = width - columns_of(prompt) - 1;
  std::string left = line.text().substr(0, line.cursor()), right = line.text().substr(line.cursor());
  for (std::string* part : {&left, &right}) {
    for (size_t at = 0; (at = part->find('\n', at)) != std::string::npos;) part->replace(at, 1, "\u21b5");
  }
  const auto drop_first = [](std::string& text) {
    size_t size = 1;
    while (size < text.size() && continues(text[size])) ++size;
    text.erase(0, size);
  };
  while (columns_of(left) > room) drop_first(left);
  while (columns_of(left) + columns_of(right) > room) {
    do right.pop_back();
    while (!right.empty() && continues(right.back()));
    if (!right.empty() && static_cast<unsigned char>(right.back()) >= 0xC0U) right.pop_back();
  }
  write("\r" + prompt + left + right + "\x1b[K\r" + prompt + left);
}

std::optional<std::string> LineEditor::read(const std::string& prompt, const std::function<void()>& idle) {
  EditedLine line;
  draw(prompt, line);
  while (const std::optional<std::string> key = next_key(idle)) {
    switch (line.key(*key, history_)) {
      case EditedLine::Action::accept:
        write("\n");
        if (!line.text().empty()) history_.push_back(line.text());
        return line.text();
      case EditedLine::Action::cancel:
        line = {};
        break;
      case EditedLine::Action::end:
        write("\n");
        return std::nullopt;
      case EditedLine::Action::none:
        break;
    }
    draw(prompt, line);
  }
  return std::nullopt;
}

bool LineEditor::interrupted() {
  while (wait_input(0) && fill()) {
  }
  const size_t at = typed_.find(interrupt);
  if (at == std::string::npos) return false;
  typed_.erase(0, at + 1);
  return true;
}

}  // namespace teratron
