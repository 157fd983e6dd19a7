#include "teratron/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : directory_(fs::temp_directory_path() / ("teratron-file-" + random_hex(12))) {
    fs::create_directory(directory_);
  }
  ~FileTest() override { fs::remove_all(directory_); }
  fs::path directory_;
};

TEST_F(FileTest, WritesReadsAndReportsTruncation) {
  const fs::path path = directory_ / "f";
  write_text(path, "hello world", ExitCode::data);
  EXPECT_EQ(read_text(path, {}), "hello world");
  const File file = File::open(path, ExitCode::checkpoint);
  char buffer[8];
  EXPECT_EQ(file.read_some(buffer, 8, 6), 5);
  try {
    file.read(buffer, 8, 6);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    const std::string text = error.what();
    EXPECT_NE(text.find(path.string()), std::string::npos);
    EXPECT_NE(text.find("expected 8 bytes at offset 6, found 5"), std::string::npos) << text;
  }
}

TEST_F(FileTest, ModesFollowTheUmask) {
  const auto mode_of = [](const fs::path& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777U : 0U;
  };
  const mode_t before = ::umask(0);
  for (const mode_t mask : {0002U, 0022U, 0027U, 0077U}) {
    ::umask(mask);
    const fs::path folder = directory_ / std::to_string(mask), file = folder / "f";
    make_directories(folder, ExitCode::config);
    write_text(file, "x", ExitCode::data);
    EXPECT_EQ(mode_of(folder), 0777U & ~mask);
    EXPECT_EQ(mode_of(file), 0666U & ~mask);
  }
  ::umask(before);
}

TEST_F(FileTest, MissingFilesAreUserErrors) {
  try {
    File::open(directory_ / "none", ExitCode::config);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
  EXPECT_THROW(File::open(directory_, ExitCode::data), UserError) << "a directory is not a file";
  write_text(directory_ / "f", "x", ExitCode::data);
  EXPECT_THROW(File::create(directory_ / "f", ExitCode::data), UserError) << "exists";
  EXPECT_THROW(make_directories(directory_ / "f" / "g", ExitCode::config), UserError);
  EXPECT_THROW(make_directories(directory_ / "f", ExitCode::config), UserError);
}

// Opening a pipe that nobody writes to would wait forever.
TEST_F(FileTest, PipesAndDevicesAreRejectedAtOnce) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto error_of = [](const auto& open) -> std::string {
    try {
      open();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of([&] { File::open(pipe, ExitCode::data); }).find("is a pipe, not a regular file. Write"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_text("/dev/zero", {}); }).find("is a device or socket"), std::string::npos);
  EXPECT_NE(error_of([&] { File::append(pipe, ExitCode::config); }), "");
}

TEST_F(FileTest, RejectsLargeFilesBeforeReading) {
  write_text(directory_ / "f", "0123456789", ExitCode::data);
  EXPECT_THROW(read_text(directory_ / "f", {.max_bytes = 9}), UserError);
}

TEST_F(FileTest, AtomicFileIsDiscardedWithoutCommit) {
  write_text(directory_ / "f", "old", ExitCode::data);
  {
    AtomicFile file(directory_ / "f", ExitCode::data);
    file.write("new");
    EXPECT_EQ(read_text(directory_ / "f", {}), "old");
  }
  EXPECT_EQ(list_directory(directory_, ExitCode::data), std::vector<std::string>{"f"});
  write_text(directory_ / "f", "new", ExitCode::data);
  EXPECT_EQ(read_text(directory_ / "f", {}), "new");
  EXPECT_EQ(list_directory(directory_, ExitCode::data), std::vector<std::string>{"f"});
}

TEST_F(FileTest, AppendContinuesAtTheEnd) {
  for (const char* text : {"one ", "two"}) {
    File file = File::append(directory_ / "f", ExitCode::data);
    file.write(text);
    file.close();
  }
  EXPECT_EQ(read_text(directory_ / "f", {}), "one two");
}

TEST_F(FileTest, fault_10_transient_errors_are_retried_and_counted) {
  write_text(directory_ / "f", "content", ExitCode::data);
  const int64_t before = io_retries();
  {
    const ScopedFaults faults("file.read@times=2:errno=EIO;file.open@times=1:errno=ESTALE");
    EXPECT_EQ(read_text(directory_ / "f", {}), "content");
  }
  EXPECT_EQ(io_retries() - before, 3);
  {
    const ScopedFaults faults("file.write@times=3:errno=EIO");
    write_text(directory_ / "g", "written once", ExitCode::data);
  }
  EXPECT_EQ(read_text(directory_ / "g", {}), "written once");
  const ScopedFaults faults("file.read:errno=EIO");
  try {
    read_text(directory_ / "f", {});
    ADD_FAILURE();
  } catch (const IoFault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::retryable);
    EXPECT_EQ(fault.error_number(), EIO);
    EXPECT_FALSE(fault.is_full());
    EXPECT_NE(std::string(fault.what()).find((directory_ / "f").string()), std::string::npos);
  }
}

TEST_F(FileTest, FullDisksAreNotRetried) {
  const int64_t before = io_retries();
  const ScopedFaults faults("file.write:errno=ENOSPC");
  try {
    write_text(directory_ / "f", "x", ExitCode::data);
    ADD_FAILURE();
  } catch (const IoFault& fault) {
    EXPECT_TRUE(fault.is_full());
    EXPECT_EQ(fault.exit_code(), ExitCode::checkpoint);
  }
  EXPECT_EQ(io_retries(), before);
  EXPECT_TRUE(list_directory(directory_, ExitCode::data).empty());
}

TEST_F(FileTest, FailedSyncIsNotRetried) {
  const ScopedFaults faults("file.sync@times=1:errno=EIO");
  EXPECT_THROW(write_text(directory_ / "f", "x", ExitCode::data), IoFault);
  EXPECT_FALSE(fs::exists(directory_ / "f"));
}

TEST_F(FileTest, MakesDirectories) {
  make_directories(directory_ / "a" / "b" / "c" / "", ExitCode::config);
  make_directories(directory_ / "a" / "b", ExitCode::config);
  EXPECT_TRUE(fs::is_directory(directory_ / "a" / "b" / "c"));
  EXPECT_TRUE(list_directory(directory_ / "none", ExitCode::config).empty());
}

TEST(RandomHex, IsRandomAndHasTheLength) {
  EXPECT_EQ(random_hex(7).size(), 7U);
  EXPECT_NE(random_hex(16), random_hex(16));
}

}  // namespace
}  // namespace teratron
