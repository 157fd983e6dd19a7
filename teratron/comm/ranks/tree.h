// Collectives of bytes along a binomial tree: log2(n) messages one after the other, about two connections
// a rank, log2(n) for rank 0. On a host of 2^k ranks with successive numbers all but the first have their
// parent on it: only one rank of a host talks to other hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// The parent of a rank other than 0: the rank without its lowest bit.
int64_t tree_parent(int64_t rank);
/// The children of a rank, ascending. Child c heads the ranks [c, next child): those below it.
std::vector<int64_t> tree_children(int64_t rank, int64_t size);
/// Parent and children.
std::vector<int64_t> tree_neighbours(int64_t rank, int64_t size);

/// The bytes of this rank and of all below it, in rank order, each after its length; sent to the parent too.
std::string gather_up_tree(BytePeers& peers, const std::string& bytes);
/// The parts of what gather_up_tree() returned on rank 0. Throws Fault if there are not `size` of them.
std::vector<std::string> unpack_gathered(const std::string& packed, int64_t size);
std::string pack_bytes(const std::vector<std::string>& parts);

/// Merges the bytes of some ranks (`lower`) with those of the next ones.
using MergeBytes = std::function<std::string(const std::string& lower, const std::string& higher)>;
/// The bytes of this rank and of all below it, merged in rank order; sent to the parent too. What ranks hold
/// does not grow with their number if what is merged does not.
std::string merge_up_tree(BytePeers& peers, const std::string& bytes, const MergeBytes& merge);

/// Rank 0's bytes.
std::string broadcast_down_tree(BytePeers& peers, const std::string& bytes);
/// Returns after all ranks have called it.
void tree_barrier(BytePeers& peers);

/// gather_bytes() and all_gather_bytes() for a group whose collectives consist of its messages.
std::vector<std::string> tree_gather(BytePeers& peers, const std::string& bytes);
std::vector<std::string> tree_all_gather(BytePeers& peers, const std::string& bytes);

}  // namespace teratron
