// Fixture files and temporary folders for tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace teratron::testing {

/// tests/fixtures/<name> of the source tree.
inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TERATRON_SOURCE_DIR) / "tests" / "fixtures" / name;
}

/// A new folder, removed by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "teratron-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }
  /// Writes a file of the folder; returns its path.
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream file(path_ / name, std::ios::binary);
    if (!(file << text).flush()) throw std::runtime_error("cannot write " + name);
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace teratron::testing
