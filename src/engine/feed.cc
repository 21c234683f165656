// SPDX-License-Identifier: Apache-2.0
#include "engine/feed.h"

#include "base/error.h"
#include "program/buffer_contents.h"

namespace hocket::engine {

namespace {

/// Returns the values of a buffer's micro-batch. Throws Error for another type or number of values
/// than the input's.
const std::byte* values_for(const program::Buffer& buffer, const graph::TensorType& type,
                            const Feed& feed, int32_t micro_batches) {
  if (feed.dtype != type.dtype) {
    fail_run("feed", "{} is given as {}; the program reads {}; try values of that type",
             buffer.name, to_string(feed.dtype), to_string(type.dtype));
  }
  const bool of_step = buffer.micro_batch == program::kNone;
  const int64_t stride = feed.stride == Feed::kOneAfterTheOther ? type.numel() : feed.stride;
  const int64_t last = of_step ? 0 : (micro_batches - 1) * stride;
  const int64_t expected = type.bytes_of(last + type.numel());
  if (std::ssize(feed.values) != expected) {
    fail_run("feed", "{} is given {} bytes; expected {}: {} for {}", buffer.name,
             feed.values.size(), expected, to_string(type),
             of_step ? "the step" : fmt::format("each of {} micro-batches", micro_batches));
  }
  return values_of(feed, type, buffer.micro_batch).data();
}

}  // namespace

std::span<const std::byte> values_of(const Feed& feed, const graph::TensorType& type,
                                     int32_t micro_batch) {
  const int64_t stride = feed.stride == Feed::kOneAfterTheOther ? type.numel() : feed.stride;
  const int64_t first = micro_batch == program::kNone ? 0 : micro_batch * stride;
  return feed.values.subspan(static_cast<size_t>(type.bytes_of(first)),
                             static_cast<size_t>(type.bytes()));
}

const Feed* FeedMap::find(const std::string& name) const {
  const auto found = feeds_.find(name);
  return found == feeds_.end() ? nullptr : &found->second;
}

void feed(const FeedMap& feeds, const Compiled& compiled, int32_t rank,
          runtime::Executor& executor) {
  const graph::Graph& graph = compiled.reference;
  for (const program::Buffer& buffer : executor.buffers()) {
    if (buffer.kind != program::BufferKind::input) continue;
    const std::string& name = buffer.name;
    const Feed* const given = feeds.find(name);
    const graph::TensorId id = graph.find(name);
    if (given == nullptr || id == graph::kNone) {
      fail_run("feed", "the program reads {} on rank {}; it is {}", name, rank,
               given == nullptr ? "not among the inputs given; try to give it, too"
                                : "not in the graph that the program is of");
    }
    const graph::TensorType type = graph.tensor(id).type.at(executor.symbol_values());
    const std::byte* const from =
        values_for(buffer, type, *given, compiled.program.num_micro_batches);
    auto* const to = static_cast<std::byte*>(executor.input(name, buffer.micro_batch));
    program::for_each_run(buffer, name, type, compiled.program, rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            executor.device().copy(to + type.bytes_of(local),
                                                   from + type.bytes_of(begin),
                                                   type.bytes_of(count));
                          });
  }
}

}  // namespace hocket::engine
