#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/comm/mesh/rank_grid.h"

namespace teratron {
namespace {

constexpr int64_t kMaxCells = 8;  // per side of the grid
constexpr size_t kColumns = 110;  // of a line
constexpr size_t kNameColumns = 11;
constexpr size_t kEndColumns = 30;  // of " ... 1024 groups of 4096"

// As many ranks as fit into the columns.
std::string draw_group(const std::vector<int64_t>& group, size_t columns) {
  std::string text = fmt::format("[{}]", fmt::join(group, " "));
  if (text.size() <= columns) return text;
  const std::string end = fmt::format(" ... {} ranks]", group.size());
  return text.substr(0, text.rfind(' ', columns - end.size())) + end;
}

std::string draw_groups(const RankGroups& groups) {
  constexpr size_t columns = kColumns - kNameColumns;
  std::string text;
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool is_last = i + 1 == groups.size();
    const size_t left = columns - text.size() - (is_last ? 0 : kEndColumns);
    const std::string group = draw_group(groups[i], text.empty() ? left : std::string::npos);
    if (!text.empty() && group.size() + 1 > left)
      return text + fmt::format(" ... {} groups of {}", groups.size(), groups[i].size());
    text += (text.empty() ? "" : " ") + group;
  }
  return text;
}

/// coordinate[rank] along one axis.
std::vector<int64_t> coordinates(const RankGrid& grid, Axis axis) {
  std::vector<int64_t> result(grid.world_size);
  for (const auto& group : grid.groups({axis})) {
    for (size_t i = 0; i < group.size(); ++i) result[group[i]] = static_cast<int64_t>(i);
  }
  return result;
}

std::string draw_grid(const RankGrid& grid) {
  const int64_t replicas = std::min(grid.size(Axis::dp), kMaxCells);
  const int64_t stages = std::min(grid.size(Axis::pp), kMaxCells);
  const auto stage = coordinates(grid, Axis::pp);
  const auto replica = coordinates(grid, Axis::dp);
  const size_t digits = std::to_string(grid.world_size - 1).size();
  std::vector<std::vector<std::string>> cells(stages, std::vector<std::string>(replicas));
  for (const auto& group : grid.groups({Axis::tp})) {
    const int64_t p = stage[group[0]], d = replica[group[0]];
    if (p >= stages || d >= replicas) continue;
    const size_t shown = std::min(group.size(), size_t{kMaxCells});
    std::vector<std::string> ranks;
    for (size_t i = 0; i < shown; ++i) ranks.push_back(fmt::format("{:>{}}", group[i], digits));
    if (shown < group.size()) ranks.emplace_back("...");
    cells[p][d] += fmt::format("{}{}", cells[p][d].empty() ? "" : " | ", fmt::join(ranks, " "));
  }
  constexpr size_t widest = kColumns - kNameColumns;
  for (std::vector<std::string>& row : cells) {
    for (std::string& cell : row) {
      if (cell.size() > widest) cell = cell.substr(0, cell.rfind(' ', widest - 4)) + " ...";
    }
  }
  const size_t width = std::max<size_t>(cells[0][0].size(), 5) + 3;
  const std::string last_head = fmt::format("... dp {}", grid.size(Axis::dp) - 1);
  const auto room = static_cast<int64_t>((widest + 3) / width);
  const bool all = replicas == grid.size(Axis::dp) && replicas <= room;
  const int64_t drawn =
      all ? replicas
          : std::clamp<int64_t>(
                static_cast<int64_t>((widest + 3 - std::min(widest, last_head.size())) / width), 1, replicas);
  const auto row = [&](const std::string& name, const std::vector<std::string>& texts) {
    std::string line = fmt::format("{:<{}}", name, kNameColumns);
    for (const std::string& text : texts) line += fmt::format("{:<{}}", text, width);
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  std::vector<std::string> heads;
  for (std::vector<std::string>& row : cells) row.resize(static_cast<size_t>(drawn));
  for (int64_t d = 0; d < drawn; ++d) heads.push_back(fmt::format("dp {}", d));
  if (drawn < grid.size(Axis::dp) &&
      kNameColumns + static_cast<size_t>(drawn) * width + last_head.size() <= kColumns)
    heads.push_back(last_head);
  std::string text = row("", heads);
  for (int64_t p = 0; p < stages; ++p) text += row(fmt::format("pp {}", p), cells[p]);
  if (stages < grid.size(Axis::pp)) text += fmt::format("... pp {}\n", grid.size(Axis::pp) - 1);
  return text;
}

std::string sizes_of(const GridView& view) {
  std::vector<std::string> sizes;
  for (size_t i = 0; i < view.axes.size(); ++i) {
    sizes.push_back(fmt::format("{} {}", name_of(view.axes[i]), view.sizes[i]));
  }
  return fmt::format("{}", fmt::join(sizes, " x "));
}

}  // namespace

std::string to_string(const RankGrid& grid) {
  std::string text = fmt::format("{} rank{} = {} (fastest first)\n{}", grid.world_size,
                                 grid.world_size == 1 ? "" : "s", sizes_of(grid.dense), draw_grid(grid));
  const auto line = [&](const std::string& name, const RankGroups& groups) {
    if (groups[0].size() > 1) text += fmt::format("{:<{}}{}\n", name, kNameColumns, draw_groups(groups));
  };
  for (Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) line(name_of(axis), grid.groups({axis}));
  if (grid.size(Axis::tp) > 1 && grid.size(Axis::pp) > 1) line("tp+pp", grid.groups({Axis::tp, Axis::pp}));
  if (grid.size(Axis::cp) > 1) line("dp+cp", grid.groups({Axis::dp, Axis::cp}));
  line("embedding", grid.embedding_groups());
  if (grid.size(Axis::ep) > 1) {
    text += fmt::format("experts: {}\n", sizes_of(grid.expert));
    for (Axis axis : {Axis::etp, Axis::ep, Axis::edp}) line(name_of(axis), grid.groups({axis}));
  }
  return text;
}

}  // namespace teratron
