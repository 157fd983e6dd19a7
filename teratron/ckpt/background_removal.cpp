#include "teratron/ckpt/background_removal.h"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"

namespace teratron {

namespace fs = std::filesystem;

BackgroundRemoval::~BackgroundRemoval() {
  Lock lock(mutex_);
  stops_ = !changed_.wait_for(lock, patience_, [this] { return !works_; });
  lock.unlock();
  if (thread_.valid()) thread_.wait();
  if (folders_.empty()) return;
  warn("{} folders of old checkpoints are left for the next save to remove, such as {}", folders_.size(),
       printable(folders_.front().string()));
}

void BackgroundRemoval::add(const Folders& folders) {
  const Lock lock(mutex_);
  folders_.insert(folders_.end(), folders.begin(), folders.end());
  wake(lock);
}

void BackgroundRemoval::add_and_wait(const Folders& folders) {
  Lock lock(mutex_);
  const size_t known = folders_.size();
  for (const fs::path& folder : folders) {
    if (std::ranges::find(folders_, folder) == folders_.end()) folders_.push_back(folder);
  }
  const bool has_new = folders_.size() > known;
  wake(lock);
  if (has_new) changed_.wait_for(lock, patience_, [this] { return !works_; });
}

void BackgroundRemoval::start(std::function<Folders()> choose) {
  const Lock lock(mutex_);
  choices_.push_back(std::move(choose));
  wake(lock);
}

void BackgroundRemoval::wait_until_chosen() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return choices_.empty(); });
}

void BackgroundRemoval::wake(const Lock&) {
  if (works_ || (choices_.empty() && folders_.empty())) return;
  try {
    fault_point("ckpt.start_removal");
    thread_ = std::async(std::launch::async, [this] { work(); });
    works_ = true;
  } catch (const std::exception& error) {
    choices_.clear();
    warn("old checkpoints are not removed: {}", error.what());
  }
}

void BackgroundRemoval::work() {
  Lock lock(mutex_);
  do make_choices(lock);
  while (!folders_.empty() && remove_first(lock));
  works_ = false;
  changed_.notify_all();
}

void BackgroundRemoval::make_choices(Lock& lock) {
  while (!choices_.empty()) {
    const std::function<Folders()> choose = choices_.front();
    lock.unlock();
    const Folders chosen = choose();
    lock.lock();
    folders_.insert(folders_.end(), chosen.begin(), chosen.end());
    choices_.pop_front();
    changed_.notify_all();
  }
}

bool BackgroundRemoval::remove_first(Lock& lock) {
  const fs::path folder = folders_.front();
  lock.unlock();
  bool ended = true;
  try {
    ended = remove_entries(folder);
  } catch (const std::exception& error) {
    warn("cannot remove '{}': {}", printable(folder.string()), error.what());
  }
  lock.lock();
  if (ended) folders_.pop_front();
  return ended;
}

bool BackgroundRemoval::remove_entries(const fs::path& folder) {
  std::error_code error;
  const auto check = [&error] {
    if (error) throw Fault(error.message());
  };
  for (const std::string& name : list_directory(folder, ExitCode::checkpoint)) {
    Lock lock(mutex_);
    make_choices(lock);
    if (stops_) return false;
    lock.unlock();
    fault_point("ckpt.removing");
    fs::remove_all(folder / name, error);
    check();
  }
  fs::remove(folder, error);
  check();
  fault_point("ckpt.removed");
  return true;
}

}  // namespace teratron
