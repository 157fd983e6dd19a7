#include "teratron/base/text_lines.h"

#include "teratron/base/file.h"

namespace teratron {

bool next_line(std::istream& input, std::string& line, std::string_view where, size_t limit) {
  constexpr auto end = std::char_traits<char>::eof();
  line.clear();
  if (!input.good()) return false;  // also a stream without a buffer
  for (int next = input.rdbuf()->sbumpc(); next != end; next = input.rdbuf()->sbumpc()) {
    if (next == '\n') return true;
    if (line.size() == limit) {
      throw data_error({.what = fmt::format("a line is longer than {} bytes", limit),
                        .where = printable(where, 4096),
                        .fix = "Give text with shorter lines"});
    }
    line += static_cast<char>(next);
  }
  input.setstate(line.empty() ? std::ios::eofbit | std::ios::failbit : std::ios::eofbit);
  return !line.empty();
}

std::string read_rest(std::istream& input, std::string_view where, size_t limit) {
  constexpr size_t step = size_t{1} << 20;
  std::string text;
  while (input) {
    const size_t before = text.size();
    text.resize(before + step);
    input.read(text.data() + before, step);
    text.resize(before + static_cast<size_t>(input.gcount()));
    if (text.size() <= limit) continue;
    throw data_error({.what = fmt::format("more than {} bytes", limit),
                      .where = printable(where, 4096),
                      .fix = "Give the text in smaller parts"});
  }
  return text;
}

std::ifstream open_text(const std::filesystem::path& path, ExitCode kind) {
  const File regular = File::open(path, kind);
  std::ifstream stream(path, std::ios::binary);
  if (stream) return stream;
  throw UserError(kind, {{.what = "cannot be read", .where = printable(path.string(), 4096)}});
}

}  // namespace teratron
