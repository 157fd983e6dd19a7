// torch.Tensor <-> at::Tensor without a copy: the same object where Python has one. None is undefined.
#pragma once

#include <ATen/ATen.h>
#include <nanobind/nanobind.h>
#include <torch/csrc/autograd/python_variable.h>

namespace nanobind::detail {

template <>
struct type_caster<at::Tensor> {
  NB_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (source.is_none()) return true;
    if (!THPVariable_Check(source.ptr())) return false;
    value = THPVariable_Unpack(source.ptr());
    return true;
  }
  static handle from_cpp(const at::Tensor& tensor, rv_policy, cleanup_list*) noexcept {
    return tensor.defined() ? handle(THPVariable_Wrap(tensor)) : none().release();
  }
};

}  // namespace nanobind::detail
