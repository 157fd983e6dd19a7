// Deletes old checkpoints in the background: one has a file per rank, and a shared file system deletes a few
// hundred a second. Failures are warnings. Fault points: ckpt.start_removal, ckpt.removing (each entry of a
// folder), ckpt.removed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <vector>

namespace teratron {

class BackgroundRemoval {
 public:
  using Folders = std::vector<std::filesystem::path>;

  /// `patience`: the most time that add_and_wait() and the destructor wait.
  explicit BackgroundRemoval(std::chrono::milliseconds patience = std::chrono::seconds(10))
      : patience_(patience) {}
  /// Waits; leaves the rest to the next save, with a warning.
  ~BackgroundRemoval();
  BackgroundRemoval(const BackgroundRemoval&) = delete;
  BackgroundRemoval& operator=(const BackgroundRemoval&) = delete;

  /// Removes folders whose names no save uses again.
  void add(const Folders& folders);
  /// Also waits, unless all were added before: the caller may need their space.
  void add_and_wait(const Folders& folders);
  /// Removes what `choose` returns. It is called on the thread, before further entries are removed, and must
  /// not throw.
  void start(std::function<Folders()> choose);
  /// Until every `choose` has returned.
  void wait_until_chosen();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wake(const Lock& held);
  void work();
  void make_choices(Lock& lock);
  bool remove_first(Lock& lock);  // false: it is to stop
  bool remove_entries(const std::filesystem::path& folder);

  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Folders()>> choices_;  // the first one is being made
  std::deque<std::filesystem::path> folders_;     // the first one is being removed
  bool works_ = false;
  bool stops_ = false;
  std::future<void> thread_;
};

}  // namespace teratron
