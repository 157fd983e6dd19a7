// Small agreements between the ranks of a group. Every function is collective and returns the same on all
// ranks.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "teratron/comm/ranks/tree.h"

namespace teratron {

/// Rank 0's bytes.
std::string broadcast_bytes(HostGroup& group, const std::string& bytes);
/// Whether `value` is true on all ranks.
bool all_true(HostGroup& group, bool value);
double all_reduce_min(HostGroup& group, double value);
/// The text of the first rank whose text is not empty.
std::string first_nonempty(HostGroup& group, const std::string& text);

/// The bytes of all ranks, merged in rank order on the way to rank 0 (merge_up_tree).
std::string merge_bytes(HostGroup& group, const std::string& bytes, const MergeBytes& merge);
/// The words of all ranks.
std::set<std::string> union_of(HostGroup& group, const std::set<std::string>& words);

/// Names and values, e.g. settings.
using NamedValues = std::vector<std::pair<std::string, std::string>>;
/// Compares the values of all ranks. One text per name whose values differ, in order of first appearance:
/// "hidden_size: rank 0 has 64, ranks 1, 3 have 128". Ranks without any values abstain; a missing name is
/// "nothing".
std::vector<std::string> find_differences(HostGroup& group, const NamedValues& values);

}  // namespace teratron
