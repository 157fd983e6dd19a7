// Internal to the socket wire.
#pragma once

#include <string>

#include "teratron/comm/host/socket_transport.h"

namespace teratron {

/// A connection to a numeric address; an empty descriptor if nobody answers.
Descriptor connect_to(const std::string& address, int port);

}  // namespace teratron
