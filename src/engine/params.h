// SPDX-License-Identifier: Apache-2.0
// Parameters and optimizer state across ranks: initial values that do not depend on the plan, and
// the way between full logical tensors and the shards that ranks hold.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/share.h"
#include "engine/placement.h"
#include "graph/graph.h"
#include "program/program.h"
#include "runtime/local_ranks.h"

namespace hocket::engine {

/// Makes the persistent entries of a program in the store of a rank and fills those that are new:
/// normal values by (seed, tensor name, global element index), or constants; zeros where a bucket
/// holds no tensor.
void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                runtime::PersistentStore& store);
/// Initialises the local ranks.
void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                const runtime::Store& store);

/// Calls the function for contiguous elements [begin, begin + count) of a persistent tensor on some
/// local rank, for scatter().
void for_each_element_run(const graph::Tensor& tensor, const program::Program& program,
                          const runtime::LocalRanks& ranks,
                          const std::function<void(int64_t begin, int64_t count)>& use);

/// Fills a persistent tensor in the store of every rank that is here and holds it: `read(begin,
/// count, dst)` delivers elements of the full tensor in its own type.
void scatter(const graph::Tensor& tensor, const program::Program& program,
             const runtime::Store& store,
             const std::function<void(int64_t begin, int64_t count, void* dst)>& read);

/// Owners of the elements of persistent tensors, so that replicas are stored once: an element
/// belongs to the first of the ranks `among` that holds it.
class Owners {
 public:
  /// `among`: in ascending order. The program outlives it.
  Owners(const program::Program& program, runtime::Store store, std::vector<int32_t> among);
  /// Returns the elements of the tensor owned by local ranks, ascending.
  std::vector<checkpoint::Share> shares(const graph::Tensor& tensor) const;

 private:
  const Placement placement_;
  const runtime::Store store_;
  const std::vector<int32_t> among_;
};

/// Full tensor, collected from the first buffers that hold its parts. With ranks as processes all
/// of them call it, and each gets it. Throws Error if some of it is on no rank.
std::vector<std::byte> gather(const graph::Tensor& tensor, const program::Program& program,
                              const runtime::Store& store);

/// Copies every parameter of a graph from its place in one program and store to its place in
/// another, on the same ranks or others. A rank takes its elements from itself if possible, then
/// from its node. Between processes each byte crosses once per receiver, with at most
/// `max_in_flight` bytes in flight per process and direction. With ranks as processes all call it.
inline constexpr int64_t kMaxInFlightBytes = int64_t{4} << 20;
void copy_parameters(const graph::Graph& graph, const program::Program& from,
                     const runtime::Store& from_store, const program::Program& to,
                     const runtime::Store& to_store, int64_t max_in_flight = kMaxInFlightBytes);

}  // namespace hocket::engine
