// SPDX-License-Identifier: Apache-2.0
// Implements: price_chakra (chakra_nodes.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "collectives/comm_op.h"
#include "cost/cost_model.h"
#include "cost/rooted.h"
#include "whatif/chakra_nodes.h"

namespace hocket::whatif {
namespace {

/// CollectiveCommType of the schema mapped to Hocket's op. The factor times members turns comm_size
/// into the larger of a rank's input and output; ASTRA-sim takes comm_size as a rank's input. Of
/// an op with a root, the comm_size of others than the root may be less than the buffer.
struct CollectiveType {
  int64_t number;
  const char* op;
  bool grows = false, rooted = false;
};
constexpr CollectiveType kCollectiveTypes[] = {
    {.number = 0, .op = "all_reduce"},
    {.number = 1, .op = "reduce", .rooted = true},
    {.number = 2, .op = "all_gather", .grows = true},
    {.number = 3, .op = "gather", .grows = true, .rooted = true},
    {.number = 4, .op = "scatter", .rooted = true},
    {.number = 5, .op = "broadcast", .rooted = true},
    {.number = 6, .op = "all_to_all"},
    {.number = 7, .op = "reduce_scatter"},
    {.number = 8, .op = "reduce_scatter"}};

class Pricer {
 public:
  Pricer(const cost::Cluster& cluster, std::vector<ChakraNodes>* ranks)
      : costs_(cluster, std::nullopt, 1), ranks_(*ranks) {}

  std::string price() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (auto& [id, node] : ranks_[rank]) {
        if (!node.timed) {
          alone(rank, &node);
        }
      }
    }
    for (const ChakraCollectives& kind : chakra_collectives(ranks_)) {
      for (size_t k = 0; collective(kind, k); ++k) {
      }
    }
    return fmt::format("no event, but {} without a duration got one by {}{}",
                       counted(priced_, "node"), costs_.cluster().name,
                       unpriced_ == 0 ? ""
                                      : fmt::format("; {} did not: no operations, bytes or known "
                                                    "collective of more than one rank",
                                                    counted(unpriced_, "node")));
  }

 private:
  void set(double seconds, ChakraNode* node) {
    node->timed = true;
    node->duration = seconds;
    ++priced_;
  }

  double seconds_of(const comm::Op& op, double bytes, const std::vector<int32_t>& group) const {
    return costs_.algorithm_times(op, bytes, false, costs_.cluster().shape(group))
        .front()
        .seconds();
  }

  /// Returns the time of a node on the rank's device.
  double own_work_s(size_t rank, const ChakraNode& node) const {
    const size_t type = costs_.cluster().device_type_of(static_cast<int32_t>(rank));
    const cost::CostModel& costs = costs_.of_device_type(type);
    const cost::Device& device = costs.cluster().device;
    const graph::DType dtype = device.peak.bf16.value > 0 ? graph::DType::bf16 : graph::DType::f32;
    const auto bytes = static_cast<int64_t>(std::min(node.tensor_bytes, 9e18));
    return device.launch.value + costs.roofline_s("linear", dtype, node.num_ops, bytes);
  }

  /// Prices a rank's own work and its messages.
  void alone(size_t rank, ChakraNode* node) {
    switch (node->type) {
      case ChakraType::compute:
      case ChakraType::mem_load:
      case ChakraType::mem_store:
        if (node->num_ops <= 0 && node->tensor_bytes <= 0) break;
        return set(own_work_s(rank, *node), node);
      case ChakraType::send:
      case ChakraType::receive: {
        const bool sends = node->type == ChakraType::send;
        const int64_t other = sends ? node->target : node->source;
        const int64_t own = rank;
        if (node->comm_bytes <= 0 || other < 0 || other >= std::ssize(ranks_) || other == own) {
          break;
        }
        const int32_t from = sends ? own : other, to = sends ? other : own;
        return set(seconds_of(comm::message(comm::Role::send), node->comm_bytes, {from, to}), node);
      }
      case ChakraType::collective:
        return;  // with its members
      default:
        return;  // takes no time
    }
    ++unpriced_;
  }

  /// Prices the k-th of a kind, among the ranks that have it. Returns false if none has.
  bool collective(const ChakraCollectives& kind, size_t k) {
    std::vector<int32_t> group;
    double largest = 0;
    for (const auto& [rank, ids] : kind.of_rank) {
      if (k < ids.size()) {
        group.push_back(rank);
        largest = std::max(largest, ranks_[rank].at(ids[k]).comm_bytes);
      }
    }
    for (const int32_t rank : group) {
      ChakraNode& node = ranks_[rank].at(kind.of_rank.at(rank)[k]);
      if (node.timed) continue;
      const auto* const type =
          std::find_if(std::begin(kCollectiveTypes), std::end(kCollectiveTypes),
                       [&](const CollectiveType& row) { return row.number == node.comm_type; });
      const bool known = type != std::end(kCollectiveTypes);
      const double bytes = known && type->rooted ? largest : node.comm_bytes;
      if (!known || group.size() < 2 || bytes <= 0) {
        ++unpriced_;
        continue;
      }
      set(seconds_of(*cost::find_costed(type->op), bytes * (type->grows ? group.size() : 1), group),
          &node);
    }
    return !group.empty();
  }

  cost::CostModel costs_;
  std::vector<ChakraNodes>& ranks_;
  int64_t priced_ = 0, unpriced_ = 0;
};

}  // namespace

std::string price_chakra(const cost::Cluster& cluster, std::vector<ChakraNodes>* ranks) {
  if (std::ssize(*ranks) > cluster.capacity()) {
    fail("hocket whatif --cluster", "{} has {}; expected one for each of {}", cluster.name,
         counted(cluster.capacity(), "device"), counted(std::ssize(*ranks), "file"));
  }
  return Pricer(cluster, ranks).price();
}

}  // namespace hocket::whatif
