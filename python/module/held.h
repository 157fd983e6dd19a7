// A Python object that C++ keeps. It is released under the GIL, on whatever thread that happens.
#pragma once

#include <memory>
#include <utility>

#include <nanobind/nanobind.h>

namespace teratron::python {

class Held {
 public:
  Held() = default;
  /// With the GIL. None is nothing.
  explicit Held(const nanobind::object& object) {
    if (!object.is_valid() || object.is_none()) return;
    object_ = std::shared_ptr<nanobind::object>(new nanobind::object(object), [](nanobind::object* last) {
      const nanobind::gil_scoped_acquire gil;
      delete last;
    });
  }

  explicit operator bool() const { return object_ != nullptr; }
  /// With the GIL.
  nanobind::object& operator*() const { return *object_; }
  nanobind::object* operator->() const { return object_.get(); }

 private:
  std::shared_ptr<nanobind::object> object_;
};

}  // namespace teratron::python
