#include "teratron/ckpt/safetensors.h"

#include <random>

#include <gtest/gtest.h>

#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

std::string with_length(std::string_view json, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return file.append(json).append(data);
}

class SafetensorsTest : public testing::Test {
 protected:
  // What opening a file of these bytes says; "" where it is accepted.
  std::string error_of(const std::string& bytes) {
    write_text(directory_ / "f.safetensors", bytes, ExitCode::data);
    try {
      const SafetensorsFile file(directory_ / "f.safetensors");
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
      EXPECT_NE(std::string(error.what()).find("f.safetensors"), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }
  std::string error_of(std::string_view json, std::string_view data) {
    return error_of(with_length(json, data));
  }

  TemporaryDirectory directory_;
};

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {7, 8};
  SafetensorsWriter writer(
      directory_ / "x.safetensors",
      {{"a \"quoted\"", Dtype::f32, {2, 3}}, {"b", Dtype::bf16, {2}}, {"none", Dtype::i64, {0, 4}}},
      {{"format", "pt"}});
  writer.write(a.data(), 10);
  writer.write(reinterpret_cast<const char*>(a.data()) + 10, 14);
  writer.write(b.data(), 4);
  writer.finish();
  const SafetensorsFile file(directory_ / "x.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.entries().size(), 3U);
  const SafetensorsEntry* const entry = file.find("a \"quoted\"");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
  float got = 0;
  file.read(*entry, 16, 4, &got);
  EXPECT_EQ(got, 5);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find("none")->bytes, 0);
  EXPECT_EQ(std::filesystem::file_size(directory_ / "x.safetensors"),
            static_cast<uint64_t>(writer.file_bytes()));
}

TEST_F(SafetensorsTest, AcceptsScalarsSpacesAndNothing) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )", "1234"), "");
  EXPECT_EQ(error_of("{}", ""), "");
  EXPECT_EQ(error_of(R"({"__metadata__":{"k":"v"}})", ""), "");
}

struct Hostile {
  const char* json;
  const char* data;
  const char* message;
};

TEST_F(SafetensorsTest, fault_17_hostile_headers_are_rejected) {
  const Hostile cases[] = {
      {"[]", "", "not a JSON object"},
      {"", "", "not a JSON object"},
      {"  {}", "", "not a JSON object"},
      {"{", "", "not valid JSON"},
      {"{} {}", "", "not valid JSON"},
      {R"({"a":1})", "", "a number where none is expected"},
      {R"({"a":[[[[]]]]})", "", "an array where none is expected"},
      {R"({"a":{"b":{}}})", "", "unknown key \"b\""},
      {R"({"a":{"dtype":{"x":1}}})", "", "an object where a value"},
      {R"({"a":null})", "", "null"},
      {R"({"__metadata__":{"k":1}})", "", "a number where none"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", "", "twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "12345678", "the name appears twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234", "twice"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "1234", "all required"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "1234", "unknown dtype \"F33\""},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "negative number -1"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234", "not a whole number"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", "1234", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551617],"data_offsets":[0,4]}})", "1234", "in range"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "1234", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})", "1234", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "reversed"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "1234", "two numbers"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234", "beyond the end of the file"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "needs 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678", "hole of 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "12345678",
       "do not belong to any tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "1234", "overlaps"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "12345678", "overlaps"},
  };
  for (const Hostile& hostile : cases) {
    const std::string message = error_of(hostile.json, hostile.data);
    EXPECT_NE(message.find(hostile.message), std::string::npos) << hostile.json << "\nsays: " << message;
  }
}

TEST_F(SafetensorsTest, fault_17_lengths_are_checked_before_anything_is_allocated) {
  EXPECT_NE(error_of(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8)).find("at most"), std::string::npos);
  EXPECT_NE(error_of(std::string("\0\0\0\0\0\0\0\x80", 8)).find("at most"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)).find("at most 100000000"),
            std::string::npos);
  EXPECT_NE(error_of(std::string("\xff\0\0\0\0\0\0\0{}", 10)).find("in a file of 10"), std::string::npos);
  EXPECT_NE(error_of("short"), "");
  EXPECT_NE(error_of(""), "");
  const std::string deep = "{\"a\":" + std::string(200000, '[');
  EXPECT_NE(error_of(with_length(deep, "")), "");
  const std::string wide = R"({"a":{"dtype":"F32","shape":[)" + std::string(100000, '1');
  EXPECT_NE(error_of(with_length(wide, "")), "");
}

// Every prefix and many bit flips: a typed error or a sound file, never anything else.
TEST_F(SafetensorsTest, fault_17_prefixes_and_bit_flips) {
  const std::string good = with_length(
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})",
      "0123456789abcdefXYZ");
  ASSERT_EQ(error_of(good), "");
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_NE(error_of(good.substr(0, length)), "") << length;
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::string bad = good;
    const size_t bit = random() % (bad.size() * 8);
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << (bit % 8));
    error_of(bad);
  }
}

}  // namespace
}  // namespace teratron
