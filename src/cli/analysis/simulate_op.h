// SPDX-License-Identifier: Apache-2.0
// hocket simulate --op: one collective alone, at several sizes, by the cost model of all
// simulations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hocket::cli {

struct OpOptions {
  std::string op;     ///< of the registry or cost::rooted_ops(), or as nccl-tests names it
  std::string bytes;  ///< "1MiB,4MiB", "1KiB..1GiB": powers of two times the first
  std::optional<int64_t> ranks, per_node;
  std::string cluster, profile;  ///< empty: this machine, without one
  std::vector<std::string> set;  ///< keys of the cluster file
  std::string codec;             ///< of all_reduce: through it, where that is faster; empty: none
  bool all_ways = false;
  bool json = false;
};

/// Prints the times, as a table or as JSON: [{"bytes": ..., "time_us": ...}, ...].
int simulate_op(const OpOptions& options);

}  // namespace hocket::cli
