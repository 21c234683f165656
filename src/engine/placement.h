// SPDX-License-Identifier: Apache-2.0
// Index of the ranks that hold each element of a tensor, for all traffic between the host and
// ranks' memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "program/program.h"
#include "runtime/local_ranks.h"

namespace hocket::engine {

/// Elements of a tensor that lie side by side in a buffer of a rank.
struct Held {
  int32_t rank = 0;
  const program::Buffer* buffer = nullptr;
  int64_t begin = 0, count = 0;  ///< in the tensor
  int64_t local = 0;             ///< the first one, in the buffer
};
using OnHeld = std::function<void(const Held& held)>;

/// A buffer of a rank that holds some of a tensor.
struct Holder {
  int32_t rank = 0;
  const program::Buffer* buffer = nullptr;
};

/// Everything that these holders have of a tensor, holder after holder.
void for_each_held(const graph::Tensor& tensor, const program::Program& program,
                   const std::vector<Holder>& holders, const OnHeld& use);
/// Every element once, of the first holder that has it. Returns how many none of them has.
int64_t for_each_once(const graph::Tensor& tensor, const program::Program& program,
                      const std::vector<Holder>& holders, const OnHeld& use);

/// The index: by tensor and class of ranks, the buffers of one kind that hold some of it. It
/// depends on the program alone: all processes compute the same index without communication.
class Placement {
 public:
  /// `micro_batch`: of inputs and outputs, which one. `only`: the one tensor that is looked for;
  /// "": any. The program outlives the index.
  Placement(const program::Program& program, program::BufferKind kind,
            int32_t micro_batch = program::kNone, const std::string& only = "");

  const program::Program& program() const { return program_; }
  /// Holders of a tensor on these ranks, in this order.
  std::vector<Holder> holders(const std::string& tensor, const std::vector<int32_t>& ranks) const;
  /// Holders of a tensor on all ranks of the program.
  std::vector<Holder> holders(const std::string& tensor) const;

 private:
  const program::Program& program_;
  const std::vector<program::ClassId> classes_;  ///< by rank
  std::vector<int32_t> all_;                     ///< ranks that are of a class
  std::map<std::pair<std::string, program::ClassId>, std::vector<const program::Buffer*>> buffers_;
};

/// Copies elements of a rank that is here to the host. `element` counts from the buffer's first.
using Fetch = std::function<void(const Holder& holder, int64_t element, int64_t count, void* to)>;

/// Returns the full tensor, every element from the first rank that holds it. With ranks as
/// processes all call it, and all get it. Throws Error if an element is on no rank, or, in a run of
/// one process, on no local one.
std::vector<std::byte> gather_tensor(const graph::Tensor& tensor, const Placement& placement,
                                     const runtime::LocalRanks& ranks, const Fetch& fetch);

}  // namespace hocket::engine
