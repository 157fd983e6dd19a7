#include "teratron/device/stream_marker.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

void StreamMarker::record(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  event_.emplace(device.type());
  event_->record(guard.getStream(device));
}

}  // namespace teratron
