#include "teratron/pickle/torch_file.h"

#include <cstring>

#include <gtest/gtest.h>
#include <zlib.h>

#include "teratron/base/error.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {
namespace {

std::string little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// A zip file of stored entries, with their checksums or 0.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries,
                   bool has_checksums = false) {
  std::string file, directory;
  for (const auto& [name, data] : entries) {
    const std::string sizes = little(data.size(), 4) + little(data.size(), 4) + little(name.size(), 2);
    const uint64_t crc =
        has_checksums ? crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()) : 0;
    const std::string common =
        little(0, 2) + little(0, 2) + little(0, 4) + little(crc, 4) + sizes + little(0, 2);
    directory += "PK\1\2" + little(20, 2) + little(20, 2) + common + little(0, 2) + little(0, 2) +
                 little(0, 2) + little(0, 4) + little(file.size(), 4) + name;
    file += "PK\3\4" + little(20, 2) + common + name + data;
  }
  const std::string count = little(entries.size(), 2);
  return file + directory + "PK\5\6" + little(0, 4) + count + count + little(directory.size(), 4) +
         little(file.size(), 4) + little(0, 2);
}

constexpr std::string_view storage_of_six =
    "(U\x07storagectorch\nFloatStorage\nU\x01"
    "0U\x03"
    "cpuK\x06tQ";

std::string pickle_of(const std::string& offset, const std::string& shape, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + std::string(storage_of_six) + offset + "(" + shape + "t(" +
         strides + "ttR.";
}

std::string six_floats() {
  const float values[] = {0, 1, 2, 3, 4, 5};
  return std::string(reinterpret_cast<const char*>(values), sizeof(values));
}

std::vector<float> floats_of(const std::string& file) {
  const TorchFile torch(bytes_in_memory(file), "x.pt");
  const std::vector<char> bytes = torch.read(torch.root().tensor());
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string read_error(const std::string& file) {
  try {
    floats_of(file);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    return error.what();
  }
  return "";
}

std::string torch_zip(const std::string& pickle, const std::string& data) {
  return zip_of({{"a/data.pkl", pickle}, {"a/byteorder", "little"}, {"a/data/0", data}});
}

std::string torch_stream(const std::string& pickle, const std::string& data) {
  return std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.") + "\x80\x02M\xe9\x03." +
         "\x80\x02}U\x0dlittle_endian\x88s." + pickle +
         "\x80\x02]U\x01"
         "0a." +
         little(6, 8) + data;
}

TEST(TorchFileTest, ReadsBothFormatsInRowMajorOrder) {
  const std::string transposed = pickle_of("I0\n", "K\x03K\x02", "K\x01K\x03"),
                    last = pickle_of("K\x03", "K\x03", "K\x01");
  for (auto* const file : {torch_zip, torch_stream}) {
    EXPECT_EQ(floats_of(file(transposed, six_floats())), (std::vector<float>{0, 3, 1, 4, 2, 5}));
    EXPECT_EQ(floats_of(file(last, six_floats())), (std::vector<float>{3, 4, 5}));
  }
}

TEST(TorchFileTest, RefusesEveryCutFile) {
  const std::string pickle = pickle_of("I0\n", "K\x06", "K\x01");
  for (auto* const make : {torch_zip, torch_stream}) {
    const std::string file = make(pickle, six_floats());
    for (size_t size = 0; size < file.size(); ++size) EXPECT_NE(read_error(file.substr(0, size)), "") << size;
  }
}

TEST(TorchFileTest, RefusesShortAndMissingStorages) {
  const std::string pickle = pickle_of("I0\n", "K\x06", "K\x01");
  EXPECT_NE(read_error(torch_zip(pickle, "abc")).find("shorter than its 6 elements"), std::string::npos);
  EXPECT_NE(read_error(zip_of({{"a/data.pkl", pickle}})).find("lacks 'a/data/0'"), std::string::npos);
  EXPECT_NE(read_error(zip_of({{"a/b", pickle}})).find("no data.pkl"), std::string::npos);
  EXPECT_NE(read_error(zip_of({{"a/data.pkl", pickle}, {"a/byteorder", "big"}})).find("little-endian"),
            std::string::npos);
  EXPECT_NE(read_error(zip_of({{"a/data.pkl", pickle}, {"a/byteorder", std::string(1000, 'l')}}))
                .find("little-endian"),
            std::string::npos);
}

// torch.save computes checksums, or writes 0 for all of them.
TEST(TorchFileTest, FindsAFlippedBit) {
  const std::string pickle = pickle_of("I0\n", "K\x06", "K\x01");
  const auto file = [&](bool has_checksums) {
    return zip_of({{"a/data.pkl", pickle}, {"a/byteorder", "little"}, {"a/data/0", six_floats()}},
                  has_checksums);
  };
  EXPECT_EQ(read_error(file(true)), "");
  std::string damaged = file(true), unchecked = file(false);
  damaged[damaged.find(six_floats()) + 5] ^= 4;
  EXPECT_NE(read_error(damaged).find("'a/data/0' is damaged"), std::string::npos);
  EXPECT_NE(read_error(damaged).find("x.pt"), std::string::npos);
  unchecked[unchecked.find(six_floats()) + 5] ^= 4;
  EXPECT_EQ(read_error(unchecked), "");
}

TEST(TorchFileTest, RefusesOtherFiles) {
  EXPECT_NE(read_error("").find("not a file of torch.save"), std::string::npos);
  EXPECT_NE(read_error(std::string(1000, 'x')).find("not a file of torch.save"), std::string::npos);
}

TEST(ZipArchiveTest, RefusesEntriesOutsideTheFile) {
  std::string file = zip_of({{"a", "data"}});
  file.replace(file.rfind("PK\1\2") + 20, 8, little(0x7fffffff, 4) + little(0x7fffffff, 4));
  EXPECT_THROW(ZipArchive(bytes_in_memory(file), "x.zip"), UserError);
  EXPECT_THROW(ZipArchive(bytes_in_memory(zip_of({{"a", "1"}, {"a", "2"}})), "x.zip"), UserError);
}

}  // namespace
}  // namespace teratron
