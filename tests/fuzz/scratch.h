// A folder in memory for the files that a fuzz target reads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace teratron::fuzz {

class Scratch {
 public:
  Scratch()
      : path_((std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp") +
              std::string("/fuzz_XXXXXX")) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::span<const uint8_t> bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

 private:
  std::string path_;
};

}  // namespace teratron::fuzz
