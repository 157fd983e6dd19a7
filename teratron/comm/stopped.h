// Ending long work early.
#pragma once

#include <exception>
#include <stop_token>

namespace teratron {

/// Thrown by work that ends because its stop token asks for it.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "stopped"; }
};

inline void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Stopped();
}

}  // namespace teratron
