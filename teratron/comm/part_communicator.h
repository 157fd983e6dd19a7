// Communicator of a part of a model, such as a layer of experts: flight recorders and errors name it.
#pragma once

#include <memory>
#include <string>

#include "teratron/comm/ranks/flight_recorder.h"
#include "teratron/comm/mesh/mesh.h"

namespace teratron {

/// The same group, whose calls are recorded as those of a part of the model: "all_gather of
/// decoder.layers.3.mlp". A time-out then names the part on all ranks, on GPUs too. A Fault that does not
/// name it (a peer died, another rank failed) is thrown with the operation, part and group in which it met
/// this rank. Tests break a call at the fault point "comm." + part (base/fault_point.h).
Group of_part(const Group& group, const std::string& part);

/// A communicator whose recorded calls can be those of a part.
class PartRecorder {
 public:
  virtual ~PartRecorder() = default;
  /// Of the calls that follow; "": of none.
  virtual void set_part(const std::string& part) { part_ = part; }

 protected:
  CollectiveFingerprint of_part(CollectiveFingerprint fingerprint) const {
    if (!part_.empty()) fingerprint.operation += " of " + part_;
    return fingerprint;
  }

 private:
  std::string part_;
};

}  // namespace teratron
