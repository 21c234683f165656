// SPDX-License-Identifier: Apache-2.0
// Nodes of Chakra execution traces (MLCommons, schema/protobuf/et_def.proto): protobuf messages one
// after another, as its tools write them (.et), or JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cost/cluster.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

/// NodeType of the schema.
enum class ChakraType : uint8_t {
  invalid,
  metadata,
  mem_load,
  mem_store,
  compute,
  send,
  receive,
  collective,
  storage,
  batch,
  checkpoint,
};

struct ChakraNode {
  int64_t id = kNone;
  std::string name, group;
  ChakraType type = ChakraType::invalid;
  std::string unknown_type;        ///< one that the schema does not have; else empty
  std::vector<int64_t> waits;      ///< for data
  std::vector<int64_t> controls;   ///< of control; in PyTorch's traces the op that called it
  double start = 0, duration = 0;  ///< seconds
  bool timed = false, started = false;
  bool negative = false;   ///< its duration was, and is taken as 0
  bool on_device = false;  ///< said to be no op of a CPU
  int64_t source = kNone, target = kNone, tag = 0;
  double num_ops = 0, tensor_bytes = 0, comm_bytes = 0;
  int64_t comm_type = kNone;  ///< CollectiveCommType of the schema
  bool some_dims = false;     ///< a collective along some dims of a network only
};

using ChakraNodes = std::map<int64_t, ChakraNode>;  ///< by id

/// Parts of a file that gave no node of the result, as sentences for people.
struct ChakraDamage {
  std::vector<std::string> notes;
  int64_t events = 0;
  int64_t negative = 0;  ///< durations, which count as 0
};

/// Reads the nodes before any damage. Throws Error if the file is unreadable or has none.
ChakraNodes read_chakra_nodes(const std::string& path, ChakraDamage* damage);

/// Returns whether a file that begins so is of protobuf messages of the schema.
bool is_chakra_binary(std::string_view beginning);

/// Collectives of a group and name: ids by rank, in their order.
struct ChakraCollectives {
  std::string group;
  std::map<size_t, std::vector<int64_t>> of_rank;
};
std::vector<ChakraCollectives> chakra_collectives(const std::vector<ChakraNodes>& ranks);

/// Gives durations to nodes without one, from `cluster`: rooflines of operations and bytes, and
/// Hocket's models of collectives and messages. Rank i is the cluster's i-th device. Returns a
/// sentence for people with the nodes it priced and could not price. Throws Error if there are more
/// ranks than devices.
std::string price_chakra(const cost::Cluster& cluster, std::vector<ChakraNodes>* ranks);

}  // namespace hocket::whatif
