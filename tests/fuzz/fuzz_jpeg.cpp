// Any JPEG: it is refused, or it is decoded. Only what begins as one is tried.
#include "tests/fuzz/image.h"

#include "teratron/images/image_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (teratron::is_jpeg({data, size})) teratron::fuzz::decode({data, size});
  return 0;
}
