// Strict YAML reader on yaml-cpp: a flat list of keys with their positions. Duplicate keys (of which yaml-cpp
// silently keeps one), multiple documents, nested lists and non-scalar keys are problems.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// A key with its value. `a: {b: [1, 2]}` is section "a", key "b", values "1", "2".
struct YamlEntry {
  std::string section;  // "" at the top level, "a", "a.b"
  std::string key;
  std::vector<std::string> values;  // one for a scalar
  bool null = false;                // no value, ~ or null
  std::string where;                // file:line:column of the key, from 1
  std::string value_where;          // and of the value
};

struct YamlEntries {
  std::vector<YamlEntry> entries;
  bool complete = true;  // false: a file or one of its bases could not be read or parsed
};

/// Entries of the file in order, preceded by those of the files in its top-level `base:` (one file or a list,
/// relative to this file). A file is limited to 1 MiB, bases to 16 levels. Problems are collected, not
/// thrown; `where` is the position of problems with the file itself.
YamlEntries read_yaml(const std::filesystem::path& path, const std::string& where,
                      std::vector<Problem>& problems);

/// Parses a string; `name` replaces the file name in positions, `directory` resolves bases.
struct YamlSource {
  std::string text;
  std::string name;
  std::filesystem::path directory = {};
};
YamlEntries parse_yaml(const YamlSource& yaml, std::vector<Problem>& problems);

}  // namespace teratron
