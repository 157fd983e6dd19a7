// A number of places; who finds none waits. (libstdc++ 12's std::counting_semaphore can miss a release.)
#pragma once

#include <condition_variable>
#include <mutex>

namespace teratron {

class Places {
 public:
  explicit Places(int count) : free_(count) {}

  class Taken {
   public:
    explicit Taken(Places& places) : places_(places) {
      std::unique_lock lock(places_.mutex_);
      places_.freed_.wait(lock, [&] { return places_.free_ > 0; });
      places_.free_ -= 1;
    }
    ~Taken() {
      {
        const std::lock_guard lock(places_.mutex_);
        places_.free_ += 1;
      }
      places_.freed_.notify_one();
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    Places& places_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int free_;
};

}  // namespace teratron
