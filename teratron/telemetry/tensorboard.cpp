#include "teratron/telemetry/tensorboard.h"

#include <array>

#include "tensorboard_event.pb.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "teratron/base/environment.h"

namespace teratron {
namespace {

constexpr uint32_t kCastagnoli = 0x82f63b78;  // reflected
constexpr int kStringTensor = 7;              // TensorFlow's DT_STRING

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = crc_table();

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <typename Integer>
std::string little_endian(Integer value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Integer); ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

File create_in(const std::filesystem::path& directory, double wall_time) {
  make_directories(directory, ExitCode::config);
  const std::string name = fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                       static_cast<int64_t>(wall_time), host_name(), getpid(), random_hex(6));
  return File::create(directory / name, ExitCode::config);
}

/// nlohmann's serializer replaces invalid UTF-8 by U+FFFD.
std::string valid_utf8(std::string_view text) {
  const std::string json =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(json).get<std::string>();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

EventFileWriter::EventFileWriter(const std::filesystem::path& directory, double wall_time)
    : file_(create_in(directory, wall_time)) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_file_version("brain.Event:2");
  append_record(event.SerializeAsString());
}

void EventFileWriter::scalars(const Scalars& points, int64_t step, double wall_time) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  for (const auto& [tag, number] : points) {
    tensorboard::Value* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(number));
  }
  append_record(event.SerializeAsString());
}

void EventFileWriter::text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  tensorboard::Value* value = event.mutable_summary()->add_value();
  value->set_tag(std::string(tag) + "/text_summary");
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value->mutable_tensor()->set_dtype(kStringTensor);
  value->mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
  value->mutable_tensor()->add_string_val(valid_utf8(markdown));
  append_record(event.SerializeAsString());
}

void EventFileWriter::append_record(const std::string& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  file_.write(length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event)));
}

}  // namespace teratron
