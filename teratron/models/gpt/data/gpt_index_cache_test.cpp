// The cache of indices: where it is, several processes that need the same one, builders that die, full disks.
#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/comm/stopped.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"
#include "teratron/testing/child_process.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using testing::fixture;
using testing::run_child;

constexpr SequenceRange kRange{0, 39};
constexpr int kFiles = 4;  // of an index

class NearDataCache : public ::testing::Test {
 protected:
  NearDataCache() {
    fs::create_directory(data_.path() / "d");
    for (const char* ending : {".bin", ".idx"})
      fs::copy_file(fixture("corpora/forty").string() + ending, prefix() + ending);
  }

  std::string prefix() const { return data_ / "d/forty"; }
  fs::path cache() const { return prefix() + "/cache"; }
  IndexCache near_data(const std::string& folder = "") const {
    return {IndexCache::Place::near_data, folder};
  }

  GPTIndex cached(const IndexCache& cache) const {
    return cached_gpt_index(IndexedDataset(prefix()), kRange, options_, cache);
  }

  bool is_right(const GPTIndex& index) const {
    const IndexedDataset data(prefix());
    const GPTIndex expected = build_gpt_index(kRange, data.lengths(kRange.first, kRange.size()), options_);
    return equal(index.document_index, expected.document_index) &&
           equal(index.sample_index, expected.sample_index) &&
           equal(index.shuffle_index, expected.shuffle_index) && index.epochs == expected.epochs;
  }

  static bool equal(const IndexArray& a, const IndexArray& b) {
    if (a.descr() != b.descr() || a.rows() != b.rows() || a.columns() != b.columns()) return false;
    for (int64_t row = 0; row < a.rows(); ++row) {
      for (int64_t column = 0; column < std::max<int64_t>(a.columns(), 1); ++column) {
        if (a.at(row, column) != b.at(row, column)) return false;
      }
    }
    return true;
  }

  static int files_in(const fs::path& folder) {
    return static_cast<int>(list_directory(folder, ExitCode::data).size());
  }

  testing::TemporaryFolder data_, other_;
  GPTIndexOptions options_{.sequence_length = 16, .seed = 1234, .samples = 60};
};

TEST_F(NearDataCache, is_beside_the_data_and_read_from_files) {
  EXPECT_TRUE(is_right(cached(near_data())));
  EXPECT_EQ(files_in(cache()), kFiles) << "no lock is left";
  for (const auto& entry : fs::directory_iterator(cache())) {
    const std::string name = entry.path().filename().string();
    for (const std::string kind : {"document", "sample", "shuffle"}) {
      if (!name.ends_with(kind + "_index.npy")) continue;
      const auto megatron =
          fixture("gpt/cache/0aebe0304941ba3f6ca21f0c9c2c14d9-GPTDataset-train-" + kind + "_index.npy");
      EXPECT_EQ(testing::read_bytes(entry.path()), testing::read_bytes(megatron));
    }
  }
  // Even the builder keeps nothing in memory: what it has is what is in the files.
  const GPTIndex index = cached(near_data());
  EXPECT_DEATH(index.sample_index.save(other_ / "a"), "already a file");
}

TEST_F(NearDataCache, is_reused_from_a_folder_that_cannot_be_written) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users";
  fs::permissions(data_.path(), fs::perms::all);
  cached(near_data());
  for (const auto& entry : fs::recursive_directory_iterator(data_.path()))
    fs::permissions(entry.path(), entry.is_directory() ? fs::perms(0755) : fs::perms(0644));
  fs::permissions(other_.path(), fs::perms::all);
  EXPECT_EQ(run_child([&] {
              if (::seteuid(65534) != 0) return 98;
              return is_right(cached(near_data(other_ / "run"))) && !fs::exists(other_ / "run") ? 0 : 1;
            }),
            0);
}

TEST_F(NearDataCache, is_with_the_run_where_the_data_cannot_be_written) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users";
  for (const auto& entry : fs::recursive_directory_iterator(data_.path()))
    fs::permissions(entry.path(), entry.is_directory() ? fs::perms(0755) : fs::perms(0644));
  fs::permissions(data_.path(), fs::perms(0755));
  fs::permissions(other_.path(), fs::perms::all);
  EXPECT_EQ(run_child([&] {
              if (::seteuid(65534) != 0) return 98;
              if (!is_right(cached(near_data(other_ / "run/index_cache")))) return 1;
              return files_in(other_ / "run/index_cache") == kFiles ? 0 : 2;
            }),
            0);
  EXPECT_FALSE(fs::exists(prefix()));
  // Without a run folder: in the host's temporary files, where a folder of another user is not trusted.
  const fs::path temporary = other_ / "tmp";
  fs::create_directory(temporary);
  fs::permissions(temporary, fs::perms::all);
  const fs::path own = temporary / "teratron-index-cache-65534";
  const auto without_run = [&] {
    return run_child([&] {
      ::setenv("TMPDIR", temporary.c_str(), 1);
      if (::seteuid(65534) != 0) return 98;
      return is_right(cached(near_data())) ? 0 : 1;
    });
  };
  EXPECT_EQ(without_run(), 0);
  EXPECT_EQ(files_in(own), kFiles);
  fs::remove_all(own);
  fs::create_directory(own);  // root's
  fs::permissions(own, fs::perms::all);
  EXPECT_EQ(without_run(), 0);
  EXPECT_EQ(files_in(own), 0);
}

// Ranks of a host, or two jobs: one builds, the others wait for it and read its files.
TEST_F(NearDataCache, is_built_once_by_processes_that_need_it_at_once) {
  const std::string builds = other_ / "builds";
  const IndexCacheKey key{.kind = "test", .description = {{"a", 1}}, .arrays = {"numbers"}};
  const auto one = [&] {
    const CachedIndex index =
        cached_index(index_source(IndexedDataset(prefix())), key, near_data(), [&](IndexProgress& progress) {
          progress.set("numbers", 0, 1);
          std::ofstream(builds, std::ios::app) << "x";
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          return CachedIndex{.numbers = {{"n", 3}}, .arrays = {IndexArray(std::vector<int32_t>{4, 5, 6})}};
        });
    return index.numbers.at("n") == 3 && index.arrays.at(0).at(2) == 6 ? 0 : 1;
  };
  std::vector<std::thread> starters;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 6; ++i) starters.emplace_back([&] { failed += run_child(one) == 0 ? 0 : 1; });
  for (std::thread& starter : starters) starter.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(testing::read_bytes(builds), "x");
  EXPECT_EQ(files_in(cache()), 2);
}

TEST_F(NearDataCache, is_built_by_the_next_if_the_builder_dies) {
  for (const char* fault : {"file.write@hit=2:kill", "file.rename@hit=1:kill", "file.rename@hit=3:kill",
                            "file.rename@hit=4:kill"}) {
    EXPECT_EQ(run_child([&] {
                arm_faults(fault);
                cached(near_data());
                return 0;
              }),
              128 + SIGKILL)
        << fault;
    EXPECT_TRUE(is_right(cached(near_data()))) << fault;
    EXPECT_EQ(files_in(cache()), kFiles) << fault << ": temporary files of the dead are removed";
    fs::remove_all(cache());
  }
}

TEST_F(NearDataCache, is_in_memory_or_elsewhere_if_the_disk_is_full) {
  {
    const ScopedFaults faults("file.write:errno=ENOSPC");
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(is_right(cached(near_data())));
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("is kept in the memory of each process that reads it"), std::string::npos) << said;
    EXPECT_THROW(cached({IndexCache::Place::folder, other_ / "chosen"}), IoFault);
  }
  const ScopedFaults faults("file.write@times=1:errno=ENOSPC");
  EXPECT_TRUE(is_right(cached(near_data(other_ / "run"))));
  EXPECT_EQ(files_in(other_ / "run"), kFiles);
}

// The first folder is full, and the second one slow: a process that waits for the lock of the first finds
// the index in the second.
TEST_F(NearDataCache, is_built_once_where_the_first_folder_is_full) {
  const std::string builds = other_ / "builds", started = other_ / "started";
  const IndexCacheKey key{.kind = "test", .description = {{"a", 1}}, .arrays = {"numbers"}};
  const auto one = [&](const char* faults) {
    arm_faults(faults);
    const IndexedDataset data(prefix());
    const CachedIndex index =
        cached_index(index_source(data), key, near_data(other_ / "run"), [&](IndexProgress&) {
          std::ofstream(builds, std::ios::app) << "x";
          std::ofstream(started) << "x";
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          return CachedIndex{.arrays = {IndexArray(std::vector<int32_t>{4, 5, 6})}};
        });
    return index.arrays.at(0).at(2) == 6 ? 0 : 1;
  };
  const testing::ChildProcess builder(
      [&] { return one("file.write@times=1:errno=ENOSPC;file.rename@times=1:delay=500"); });
  while (!fs::exists(started) && builder.is_running())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(run_child([&] { return one(""); }), 0);
  EXPECT_EQ(builder.exit_code(), 0);
  EXPECT_EQ(testing::read_bytes(builds), "x");
  EXPECT_EQ(files_in(cache()), 0);
  EXPECT_EQ(files_in(other_ / "run"), 2) << "no lock is left";
}

TEST_F(NearDataCache, building_and_waiting_end_early_when_asked_to) {
  std::stop_source builder, waiter;
  std::promise<void> building;
  const auto endless = [&](IndexProgress& progress) -> CachedIndex {
    building.set_value();
    while (true) {
      progress.set("numbers", 0, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  const IndexCacheKey key{.kind = "test", .description = {{"a", 1}}, .arrays = {"numbers"}};
  const auto run = [&](const std::stop_source& stop) {
    return std::async(std::launch::async, [&, token = stop.get_token()] {
      const IndexedDataset data(prefix());
      const IndexCache cache{IndexCache::Place::near_data, "", token};
      EXPECT_THROW(cached_index(index_source(data), key, cache, endless), Stopped);
    });
  };
  const std::future<void> built = run(builder);
  building.get_future().wait();
  const std::future<void> waited = run(waiter);
  EXPECT_EQ(waited.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  waiter.request_stop();
  waited.wait();  // the builder goes on
  EXPECT_EQ(built.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  builder.request_stop();
  built.wait();
  const GPTIndexOptions options{.sequence_length = 16, .samples = 60};
  builder.request_stop();
  IndexProgress stopped(builder.get_token());
  const IndexedDataset data(prefix());
  EXPECT_THROW(build_gpt_index(kRange, data.lengths(0, 39), options, &stopped), Stopped);
}

TEST_F(NearDataCache, is_rebuilt_where_it_is_damaged) {
  cached(near_data());
  for (const auto& entry : fs::directory_iterator(cache())) {
    const std::string content = testing::read_bytes(entry.path());
    testing::write_bytes(entry.path(), content.substr(0, content.size() / 2));
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(is_right(cached(near_data()))) << entry.path();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("ebuilding the index"), std::string::npos) << said;
    EXPECT_EQ(testing::read_bytes(entry.path()), content);
  }
}

TEST_F(NearDataCache, a_folder_that_the_user_chose_must_be_usable) {
  testing::write_bytes(other_ / "file", "x");
  EXPECT_NE(testing::message_of([&] { cached({IndexCache::Place::folder, other_ / "file"}); }), "");
  EXPECT_FALSE(fs::exists(cache()));
}

TEST(IndexProgressTest, SaysHowFarABuildIsEveryInterval) {
  IndexProgress progress;
  EXPECT_EQ(progress.text(), "");
  progress.set("sample index", 3, 8);
  EXPECT_EQ(progress.text(), "sample index, 37 %");
  progress.set("sample index", 0, 0);
  EXPECT_EQ(progress.text(), "sample index, 100 %");
  std::atomic<int> reports = 0;
  {
    const PeriodicReport report(std::chrono::milliseconds(20), [&](int64_t seconds) {
      EXPECT_EQ(seconds, 0);
      ++reports;
      throw std::runtime_error("a report that fails");
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_GE(reports, 3);
  const int end = reports;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(reports, end);
}

}  // namespace
}  // namespace teratron
