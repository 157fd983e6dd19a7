#include "teratron/megatron/export/part_writer.h"

#include <algorithm>

#include "teratron/hf/float_convert.h"
#include "teratron/megatron/rows/centered_norm.h"

namespace teratron {

namespace {

constexpr int64_t block_bytes = int64_t{16} << 20;

int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

}  // namespace

WrittenPart weight_part(const ExportPlan& plan, const std::string& name, int64_t rank) {
  WrittenPart part{.weight = name, .state = {}, .shard = shard_of(plan, name, rank)};
  part.dtype = weight_dtype(plan, name);
  part.end = elements_of(part.shard.local_shape());
  return part;
}

WrittenPart state_part(const ExportPlan& plan, const std::string& name, const std::string& state,
                       int64_t rank) {
  WrittenPart part = weight_part(plan, name, rank);
  part.state = state;
  part.dtype = Dtype::f32;
  return part;
}

// A training in fp32 has its weights in fp32 as such, all others have them in the optimizer.
std::string PartWriter::source_of(const WrittenPart& part) const {
  const bool master = part.state == "param" || (part.state.empty() && plan_.optimizer &&
                                                !plan_.has_masters() && !is_buffer(part.weight));
  if (!master && part.state.empty()) return part.weight;
  const std::string state = fmt::format("optimizer.{}.{}", master ? "param" : part.state, part.weight);
  return !master || plan_.info().tensors.contains(state) ? state : part.weight;
}

void PartWriter::write(const WrittenPart& part, const AppendBytes& append) {
  if (part.number) {
    append(&*part.number, sizeof(float));
    return progress_.add(sizeof(float));
  }
  const std::vector<int64_t> local = part.shard.local_shape();
  const int64_t columns = elements_of(local) / std::max<int64_t>(local[0], 1);
  const int64_t rows =
      is_vocabulary(part.weight)
          ? std::clamp<int64_t>(part.shard.global_shape[0] - part.shard.index * local[0], 0, local[0])
          : local[0];
  const int64_t padding = rows * columns;
  if (part.begin < padding) write_range(part, part.shard, {part.begin, std::min(part.end, padding)}, append);
  if (part.end > padding) write_padding(part, {std::max(part.begin, padding), part.end}, append);
}

void PartWriter::write_padding(const WrittenPart& part, std::pair<int64_t, int64_t> range,
                               const AppendBytes& append) {
  const std::vector<int64_t>& shape = part.shard.global_shape;
  const int64_t columns = shape.size() > 1 ? shape[1] : 1, last = (shape[0] - 1) * columns;
  const bool repeats = part.state.empty() || part.state == "param";
  const Shard whole = Shard::replicated(shape);
  for (auto [at, end] = range; at < end;) {
    const int64_t column = at % columns, count = std::min(columns - column, end - at);
    if (repeats) {
      write_range(part, whole, {last + column, last + column + count}, append);
    } else {
      const std::vector<char> zeros(static_cast<size_t>(count * size_of(part.dtype)));
      append(zeros.data(), std::ssize(zeros));
      progress_.add(std::ssize(zeros));
    }
    at += count;
  }
}

void PartWriter::write_range(const WrittenPart& part, const Shard& shard, std::pair<int64_t, int64_t> range,
                             const AppendBytes& append) {
  const std::string name = source_of(part);
  const Dtype saved = plan_.info().tensors.at(name).dtype;
  const int64_t widest = std::max(size_of(saved), size_of(part.dtype));
  const int64_t most = plan_.source.reads_in_parts(name) ? block_bytes / widest : range.second - range.first;
  for (int64_t at = range.first; at < range.second; at += most) {
    const int64_t until = std::min(range.second, at + most), bytes = (until - at) * size_of(part.dtype);
    block_.resize(std::max(block_.size(), static_cast<size_t>((until - at) * widest)));
    plan_.source.read({name, saved, shard, at, until, block_.data()});
    if ((part.state.empty() || part.state == "param") && is_centered_there(part.weight, plan_.args.settings))
      add_to_floats(block_.data(), until - at, saved, -1.0F);
    convert_floats(block_.data(), until - at, saved, part.dtype);
    append(block_.data(), bytes);
    progress_.add(bytes);
  }
}

}  // namespace teratron
