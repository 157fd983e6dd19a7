#include "teratron/pickle/globals.h"

#include <algorithm>
#include <array>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr std::array<std::pair<std::string_view, Dtype>, 9> storages = {{
    {"torch.HalfStorage", Dtype::f16},
    {"torch.BFloat16Storage", Dtype::bf16},
    {"torch.FloatStorage", Dtype::f32},
    {"torch.DoubleStorage", Dtype::f64},
    {"torch.LongStorage", Dtype::i64},
    {"torch.IntStorage", Dtype::i32},
    {"torch.ShortStorage", Dtype::i16},
    {"torch.ByteStorage", Dtype::u8},
    {"torch.BoolStorage", Dtype::boolean},
}};

constexpr std::array<std::pair<std::string_view, PickleGlobal>, 37> globals = {{
    {"collections.OrderedDict", PickleGlobal::dict},
    {"argparse.Namespace", PickleGlobal::dict},
    {"types.SimpleNamespace", PickleGlobal::dict},
    {"torch.Size", PickleGlobal::tuple},
    {"builtins.set", PickleGlobal::set},
    {"__builtin__.set", PickleGlobal::set},
    {"_codecs.encode", PickleGlobal::bytes},
    {"builtins.getattr", PickleGlobal::member},
    {"__builtin__.getattr", PickleGlobal::member},
    {"torch._utils._rebuild_tensor", PickleGlobal::tensor},
    {"torch._utils._rebuild_tensor_v2", PickleGlobal::tensor},
    {"torch._utils._rebuild_parameter", PickleGlobal::parameter},
    {"numpy.core.multiarray._reconstruct", PickleGlobal::opaque},
    {"numpy._core.multiarray._reconstruct", PickleGlobal::opaque},
    {"numpy.core.multiarray.scalar", PickleGlobal::opaque},
    {"numpy._core.multiarray.scalar", PickleGlobal::opaque},
    {"numpy.ndarray", PickleGlobal::opaque},
    {"numpy.dtype", PickleGlobal::opaque},
    {"pathlib.PosixPath", PickleGlobal::opaque},
    {"pathlib._local.PosixPath", PickleGlobal::opaque},
    {"signal.Signals", PickleGlobal::opaque},
    {"torch.device", PickleGlobal::opaque},
    {"torch.serialization._get_layout", PickleGlobal::opaque},
    {"torch.float32", PickleGlobal::opaque},
    {"torch.float16", PickleGlobal::opaque},
    {"torch.half", PickleGlobal::opaque},
    {"torch.float", PickleGlobal::opaque},
    {"torch.bfloat16", PickleGlobal::opaque},
    {"torch.float64", PickleGlobal::opaque},
    {"torch.double", PickleGlobal::opaque},
    {"torch.int64", PickleGlobal::opaque},
    {"torch.int32", PickleGlobal::opaque},
    {"torch.uint8", PickleGlobal::opaque},
    {"torch.int8", PickleGlobal::opaque},
    {"torch.int16", PickleGlobal::opaque},
    {"torch.bool", PickleGlobal::opaque},
    {"torch.strided", PickleGlobal::opaque},
}};

}  // namespace

PickleGlobal pickle_global(std::string_view name) {
  if (storage_dtype(name)) return PickleGlobal::storage;
  for (const auto& [known, meaning] : globals) {
    if (name == known) return meaning;
  }
  // Enums and classes of the program that wrote the file; nothing of it is here to be called.
  for (const std::string_view module : {"megatron.", "torch.distributed.checkpoint.metadata.",
                                        "torch.distributed.checkpoint.filesystem._StorageInfo"}) {
    if (name.starts_with(module)) return PickleGlobal::opaque;
  }
  return PickleGlobal::refused;
}

std::optional<Dtype> storage_dtype(std::string_view name) {
  for (const auto& [known, dtype] : storages) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

std::string_view torch_dtype(Dtype dtype) {
  if (dtype == Dtype::f16) return "float16";
  if (dtype == Dtype::bf16) return "bfloat16";
  if (dtype == Dtype::f32) return "float32";
  throw checkpoint_error({.what = fmt::format("there are no weights of {}", name_of(dtype))});
}

std::string storage_class(Dtype dtype) {
  for (const auto& [name, known] : storages) {
    if (dtype == known) return "torch\n" + std::string(name.substr(name.find('.') + 1));
  }
  throw checkpoint_error({.what = fmt::format("torch.save has no storage of {}", name_of(dtype))});
}

}  // namespace teratron
