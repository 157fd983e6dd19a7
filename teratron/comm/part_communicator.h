// Communicator of a part of a model, such as a layer of experts: flight recorders and errors name it.
#pragma once

#include <memory>
#include <string>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {

/// Records the group's calls under the name of a part of the model: "all_gather of decoder.layers.3.mlp". A
/// time-out then names the part on all ranks, on GPUs too. A Fault that does not name it (a peer died,
/// another rank failed) is thrown with the operation, part and group in which it met this rank. Tests break
/// a call at the fault point "comm." + part (base/fault_point.h).
Group named_group(const Group& group, const std::string& part);

/// A communicator that can record its calls under the name of a part.
class PartRecorder {
 public:
  virtual ~PartRecorder() = default;
  /// Names the calls that follow; "": none.
  virtual void set_part(const std::string& part) { part_ = part; }

 protected:
  CollectiveFingerprint with_part(CollectiveFingerprint fingerprint) const {
    if (!part_.empty()) fingerprint.operation += " of " + part_;
    return fingerprint;
  }

 private:
  std::string part_;
};

}  // namespace teratron
