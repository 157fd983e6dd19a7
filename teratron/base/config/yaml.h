// YAML settings as a flat list of keys with their position: yaml-cpp's parser, made strict. Duplicate keys
// (of which it would silently keep one), several documents, nested lists and keys that are not plain text are
// problems.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// One key with its value. `a: {b: [1, 2]}` is section "a", key "b", texts "1", "2".
struct YamlEntry {
  std::string section;  // "" at the top, "a", "a.b"
  std::string key;
  std::vector<std::string> texts;  // one for a scalar
  bool null = false;               // no value, ~ or null
  std::string where;               // file:line:column of the key, from 1
  std::string value_where;         // and of the value
};

/// Entries of the file in their order, after those of the files that its top-level `base:` names (one or a
/// list, relative to the file). A file is at most 1 MiB, bases at most 16 deep. Problems are added, not
/// thrown; `where` is said of problems with the file itself.
std::vector<YamlEntry> read_yaml(const std::filesystem::path& path, const std::string& where,
                                 std::vector<Problem>& problems);

/// The same for a text; `name` stands for the file in positions, `directory` is where bases are looked up.
struct YamlText {
  std::string text;
  std::string name;
  std::filesystem::path directory = {};
};
std::vector<YamlEntry> parse_yaml(const YamlText& yaml, std::vector<Problem>& problems);

}  // namespace teratron
