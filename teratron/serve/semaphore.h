// Counting semaphore (libstdc++ 12's can lose a release).
#pragma once

#include <condition_variable>
#include <mutex>

namespace teratron {

class Semaphore {
 public:
  explicit Semaphore(int permits) : free_(permits) {}

  /// Waits for a permit; returns it when it is destroyed.
  class Permit {
   public:
    explicit Permit(Semaphore& semaphore) : semaphore_(semaphore) {
      std::unique_lock lock(semaphore_.mutex_);
      semaphore_.freed_.wait(lock, [&] { return semaphore_.free_ > 0; });
      semaphore_.free_ -= 1;
    }
    ~Permit() {
      {
        const std::lock_guard lock(semaphore_.mutex_);
        semaphore_.free_ += 1;
      }
      semaphore_.freed_.notify_one();
    }
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

   private:
    Semaphore& semaphore_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int free_;
};

}  // namespace teratron
