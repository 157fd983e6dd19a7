#include "teratron/nn/offload/transfer_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void TransferMark::let_current_wait() const {
  if (event_) event_->block(current_stream(event_->device()));
}

TransferStream::TransferStream(at::Device device) : device_(device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
}

void TransferStream::follow_current() {
  if (!stream_) return;
  c10::Event now(device_.type());
  now.record(current_stream(device_));
  now.block(*stream_);
}

void TransferStream::copy(const at::Tensor& to, const at::Tensor& from) {
  const c10::OptionalStreamGuard guard(stream_);
  to.copy_(from, /*non_blocking=*/true);
}

std::shared_ptr<const TransferMark> TransferStream::mark() {
  if (!stream_) return std::make_shared<const TransferMark>();
  c10::Event end(device_.type());
  end.record(*stream_);
  return std::make_shared<const TransferMark>(std::move(end));
}

}  // namespace teratron
