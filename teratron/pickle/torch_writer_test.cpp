#include "teratron/pickle/torch_writer.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/pickle/torch_file.h"
#include "teratron/pickle/unpickler.h"
#include "teratron/pickle/zip_archive.h"
#include "teratron/pickle/zip_writer.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

class TorchWriterTest : public testing::Test {
 protected:
  TorchWriterTest() { fs::create_directory(folder_); }
  ~TorchWriterTest() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("torch_writer_" + random_hex(8));
};

TEST_F(TorchWriterTest, ScalarsAreReadAsWritten) {
  const int64_t integers[] = {0, -1, 255, INT32_MIN, INT32_MAX, int64_t{1} << 40, INT64_MIN, INT64_MAX};
  const double reals[] = {0.0, -0.5, 3.0, 1e300, 1.0 / 3};
  PickleWriter writer;
  writer.begin(PickledDict::plain);
  for (const int64_t value : integers) {
    writer.text(std::to_string(value));
    writer.integer(value);
  }
  for (const double value : reals) {
    writer.text("r" + std::to_string(value));
    writer.real(value);
  }
  writer.text("none"), writer.none();
  writer.text("true"), writer.boolean(true);
  writer.text("empty"), writer.begin(PickledDict::ordered), writer.end(PickledDict::ordered);
  writer.text("list"), writer.begin_list(), writer.integer(3), writer.integer(4), writer.end_list();
  writer.text("args"), writer.begin(PickledDict::name_space);
  writer.text("dtype"), writer.global("torch", "bfloat16");
  writer.end(PickledDict::name_space);
  writer.end(PickledDict::plain);
  const std::string stream = writer.finish();
  const Pickle pickle = parse_pickle(stream, "x");
  const PickleValue& root = *pickle.root;
  for (const int64_t value : integers) EXPECT_EQ(root.find(std::to_string(value))->integer(), value);
  for (const double value : reals) EXPECT_EQ(root.find("r" + std::to_string(value))->real(), value);
  EXPECT_TRUE(root.find("none")->is(Kind::none));
  EXPECT_EQ(root.find("true")->integer(), 1);
  EXPECT_TRUE(root.find("empty")->items().empty());
  EXPECT_EQ(root.find("list")->items()[1]->integer(), 4);
  EXPECT_EQ(root.find("args")->find("dtype")->text(), "torch.bfloat16");
}

TEST_F(TorchWriterTest, TensorsAreReadAsWrittenAndAligned) {
  PickleWriter writer;
  writer.begin(PickledDict::ordered);
  writer.text("a"), writer.tensor(Dtype::f16, {2, 3});
  writer.text("b"), writer.tensor(Dtype::i64, {});
  writer.text("c"), writer.tensor(Dtype::f32, {0, 5});
  writer.end(PickledDict::ordered);
  const std::string contents[] = {"0123456789ab", "ABCDEFGH", ""};
  write_torch_file(folder_ / "x.pt", writer, [&](size_t tensor, const AppendBytes& append) {
    for (const char& byte : contents[tensor]) append(&byte, 1);
  });
  const TorchFile file(folder_ / "x.pt");
  int64_t i = 0;
  for (const char* name : {"a", "b", "c"}) {
    const std::vector<char> bytes = file.read(file.root().find(name)->tensor());
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), contents[i++]);
  }
  EXPECT_EQ(file.root().find("a")->tensor().strides, (std::vector<int64_t>{3, 1}));
  const std::string text = read_text(folder_ / "x.pt", {});
  for (const std::string& data : {contents[0], contents[1]}) EXPECT_EQ(text.find(data) % 64, 0U);
}

// As if 32 bits were five: sizes, offsets or both are zip64's. Python's zipfile reads the same.
TEST_F(TorchWriterTest, SmallFilesCanBeZip64) {
  if (std::system("python3 -c 'import zipfile' > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  for (const int64_t most : {int64_t{0}, int64_t{31}, int64_t{200}, ZipWriter::most_without_zip64}) {
    SCOPED_TRACE(most);
    const fs::path path = folder_ / (std::to_string(most) + ".zip");
    const std::string long_text(100, 'b'), short_text = "text";
    ZipWriter zip(path, most);
    zip.add("long", long_text);
    zip.add("short", short_text);
    zip.add("empty", "");
    zip.finish();
    const std::string bytes = read_text(path, {});
    const bool is_zip64 = most < ZipWriter::most_without_zip64;
    EXPECT_EQ(bytes.find("PK\6\6") != bytes.npos, is_zip64);
    const ZipArchive archive(open_bytes(path), "small.zip");
    EXPECT_EQ(archive.entries().at("long").bytes, 100);
    EXPECT_EQ(read_bytes(*archive.open("long"), 100, 0), long_text);
    EXPECT_EQ(read_bytes(*archive.open("short"), 4, 0), short_text);
    EXPECT_EQ(archive.verify(), 104);
    const std::string read =
        "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; "
        "assert [z.read(n) for n in ('long', 'short', 'empty')] == [b'b' * 100, b'text', b'']";
    EXPECT_EQ(std::system(("python3 -c \"" + read + "\" " + path.string()).c_str()), 0);
  }
}

// Offsets and sizes beyond 32 bits; the contents are holes of the file where it can have some.
TEST_F(TorchWriterTest, LargeFilesAreZip64) {
  if (std::getenv("TERATRON_LONG_TESTS") == nullptr) GTEST_SKIP() << "writes 5 GB; needs TERATRON_LONG_TESTS";
  const std::vector<char> block(size_t{1} << 26);
  ZipWriter zip(folder_ / "large.zip");
  const int64_t bytes = int64_t{72} << 26;
  zip.begin("large", bytes);
  for (int64_t i = 0; i < 72; ++i) zip.append(block.data(), static_cast<int64_t>(block.size()));
  zip.end();
  zip.add("after", "text");
  zip.finish();
  const ZipArchive archive(open_bytes(folder_ / "large.zip"), "large.zip");
  EXPECT_EQ(archive.open("large")->size(), bytes);
  EXPECT_EQ(read_bytes(*archive.open("after"), 4, 0), "text");
}

TEST_F(TorchWriterTest, AnUnfinishedFileIsNone) {
  {
    ZipWriter zip(folder_ / "x.pt");
    zip.add("x/data.pkl", "N.");
  }
  EXPECT_THROW(TorchFile(folder_ / "x.pt"), UserError);
}

}  // namespace
}  // namespace teratron
