#include "teratron/kernels/common/cuda_libraries.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include "teratron/base/error.h"

namespace {

[[noreturn]] void call_without_driver() {
  // lint: allow(output): a bug, whose caller may hold the log
  std::fputs(
      "teratron: internal error: a function of CUDA was called on a machine without an NVIDIA driver\n",
      stderr);
  std::abort();
}

void* register_without_driver() {
  return nullptr;
}

}  // namespace

// Each import is a function of that name, which jumps to the address in its slot. Arguments, result and
// exceptions pass through. Hidden, so that the libraries do not find it in place of the function itself.
#if defined(__x86_64__)
#define TERATRON_JUMP(slot) "jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define TERATRON_JUMP(slot) "adrp x16, " slot "\nldr x16, [x16, #:lo12:" slot "]\nbr x16\n"
#else
#error "cuda_libraries.cpp: write the jump of this architecture"
#endif

#define TERATRON_CUDA_SLOT(name, without_driver)                                                        \
  extern "C" [[gnu::visibility("hidden")]] void* teratron_import_##name;                                \
  void* teratron_import_##name = reinterpret_cast<void*>(&without_driver);                              \
  asm(".pushsection .text\n.balign 16\n.globl " #name "\n.hidden " #name "\n.type " #name               \
      ", %function\n" #name ":\n" TERATRON_JUMP("teratron_import_" #name) ".size " #name ", . - " #name \
                                                                          "\n.popsection\n");
#define TERATRON_CUDA_IMPORT(name) TERATRON_CUDA_SLOT(name, call_without_driver)
#define TERATRON_CUDA_REGISTRATION(name) TERATRON_CUDA_SLOT(name, register_without_driver)
#include "teratron/kernels/common/cuda_imports.def"
#undef TERATRON_CUDA_REGISTRATION
#undef TERATRON_CUDA_IMPORT

// c10::cuda::CUDACachingAllocator::allocator, the one variable of the libraries that inline functions of
// their headers read: a copy, which never changes.
#define TERATRON_ALLOCATOR "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
asm(".pushsection .bss\n.balign 8\n.globl " TERATRON_ALLOCATOR "\n.hidden " TERATRON_ALLOCATOR
    "\n.type " TERATRON_ALLOCATOR ", %object\n" TERATRON_ALLOCATOR ": .zero 8\n.size " TERATRON_ALLOCATOR
    ", 8\n.popsection\n");

namespace teratron {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

struct Import {
  const char* name;
  void** slot;
};

constexpr Import imports[] = {
#define TERATRON_CUDA_IMPORT(name) {#name, &teratron_import_##name},
#define TERATRON_CUDA_REGISTRATION TERATRON_CUDA_IMPORT
#include "teratron/kernels/common/cuda_imports.def"
#undef TERATRON_CUDA_REGISTRATION
#undef TERATRON_CUDA_IMPORT
};

constexpr const char* libraries[] = {"libcudart.so.13",   "libc10_cuda.so", "libtorch_cuda.so",
                                     "libcublasLt.so.13", "libnccl.so.2",   "libcudnn.so.9"};

void check(const void* found) {
  if (found) return;
  // lint: allow(output): before main there is no log
  std::fprintf(stderr,
               "teratron: this machine has an NVIDIA driver, but a library of torch 2.11 cannot be used: %s\n"
               "Install torch 2.11 for CUDA 13 again.\n",
               dlerror());
  std::_Exit(static_cast<int>(ExitCode::config));
}

bool load() {
  if (!torch_has_cuda() || !dlopen("libcuda.so.1", RTLD_NOW)) return false;
  for (const char* library : libraries) check(dlopen(library, RTLD_NOW | RTLD_GLOBAL));
  for (const Import& import : imports) check(*import.slot = dlsym(RTLD_DEFAULT, import.name));
  const void* original = dlsym(RTLD_DEFAULT, TERATRON_ALLOCATOR);
  check(original);
  caching::allocator.store(static_cast<const std::atomic<caching::CUDAAllocator*>*>(original)->load());
  return true;
}

// Before main, as the dynamic linker would: PyTorch looks for its CUDA part once. And before the object files
// with kernels register them.
struct Loading {
  bool done = load();
};
[[gnu::init_priority(101)]] const Loading loading;

}  // namespace

bool has_cuda_libraries() {
  return loading.done;
}

bool torch_has_cuda() {
  Dl_info libc10{};
  if (dladdr(reinterpret_cast<const void*>(&c10::GetCPUAllocator), &libc10) == 0) return false;
  return exists(std::filesystem::path(libc10.dli_fname).parent_path() / "libtorch_cuda.so");
}

}  // namespace teratron
