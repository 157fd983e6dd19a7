// The network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace teratron {

/// The numeric address of an interface, IPv4 if it has one; "" if there is none of this name.
std::string address_of_interface(const std::string& name);

/// "eth0 (10.0.0.1)"
std::vector<std::string> interfaces_with_addresses();

}  // namespace teratron
