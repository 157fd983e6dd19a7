// Test helpers for tokenizers: files of the repository and of the test data, expected errors.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/testing/files.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron::testing {

inline std::string data_file(const std::string& name) {
  const char* const given = std::getenv("TERATRON_TEST_DATA");
  return std::string(given != nullptr ? given : std::string(TERATRON_SOURCE_DIR) + "/../shared/data") + "/" +
         name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// `action` must throw a UserError of this kind whose message contains `fragment`.
template <class Action>
void expect_user_error(ExitCode kind, const std::string& fragment, Action&& action) {
  try {
    action();
    ADD_FAILURE() << "no error, expected: " << fragment;
  } catch (const UserError& error) {
    EXPECT_EQ(static_cast<int>(error.exit_code()), static_cast<int>(kind));
    EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
  }
}

}  // namespace teratron::testing

/// Skips the test if a file of the test data is missing.
#define TERATRON_NEED_DATA(name)                                      \
  if (!std::filesystem::exists(::teratron::testing::data_file(name))) \
  GTEST_SKIP() << ::teratron::testing::data_file(name) << " is missing: set TERATRON_TEST_DATA"
