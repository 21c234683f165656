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
/// Of all ranks that are here.
void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                const runtime::Store& store);

/// Elements [begin, begin + count) of a persistent tensor that lie side by side on some rank that
/// is here: what scatter() asks for.
void for_each_element_run(const graph::Tensor& tensor, const program::Program& program,
                          const runtime::LocalRanks& ranks,
                          const std::function<void(int64_t begin, int64_t count)>& use);

/// Fills a persistent tensor in the store of every rank that is here and holds it: `read(begin,
/// count, dst)` delivers elements of the full tensor in its own type.
void scatter(const graph::Tensor& tensor, const program::Program& program,
             const runtime::Store& store,
             const std::function<void(int64_t begin, int64_t count, void* dst)>& read);

/// Who stores what of the persistent tensors, so that what several ranks hold is stored once: an
/// element belongs to the first of the ranks `among` that holds it.
class Owners {
 public:
  /// `among`: in ascending order. The program outlives it.
  Owners(const program::Program& program, runtime::Store store, std::vector<int32_t> among);
  /// What of the tensor belongs to the ranks that are here, in ascending order of elements.
  std::vector<checkpoint::Share> shares(const graph::Tensor& tensor) const;

 private:
  const Placement placement_;
  const runtime::Store store_;
  const std::vector<int32_t> among_;
};

/// The full tensor, collected from the first buffers that hold its parts; of ranks as processes all
/// call it, and each gets it. Error: some of it is on no rank.
std::vector<std::byte> gather(const graph::Tensor& tensor, const program::Program& program,
                              const runtime::Store& store);

/// Every parameter of a graph from where one program has it in a store to where another one does in
/// a store of its own, on the same ranks or others: every rank gets what it is to hold, of itself
/// as far as it can, then of its node, and nobody holds more. Between processes each byte crosses
/// once for each that lacks it, and no more than `together` bytes leave a process, or come to it,
/// at a time. Of ranks as processes all call it.
inline constexpr int64_t kTogetherBytes = int64_t{4} << 20;
void copy_parameters(const graph::Graph& graph, const program::Program& from,
                     const runtime::Store& from_store, const program::Program& to,
                     const runtime::Store& to_store, int64_t together = kTogetherBytes);

}  // namespace hocket::engine
