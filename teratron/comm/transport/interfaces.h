// The network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace teratron {

/// Whether a choice in NCCL's form accepts the interface: eth,ib accepts those whose names begin so,
/// =eth0,eth1 these, ^docker and ^=lo all others.
bool accepts_interface(const std::string& choice, const std::string& name);
/// The numeric address of an interface that the choice accepts: `preferred` if that is of one, else of the
/// first, IPv4 if it has one. "" if there is none.
std::string address_of_interface(const std::string& choice, const std::string& preferred = "");

/// "eth0 (10.0.0.1)"
std::vector<std::string> interfaces_with_addresses();

}  // namespace teratron
