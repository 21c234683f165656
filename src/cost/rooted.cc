// SPDX-License-Identifier: Apache-2.0
#include "cost/rooted.h"

namespace hocket::cost {
namespace {

/// Pipelines the payload through every rank, in pieces: around NCCL's ring from the root to the
/// rank before it, or the other way (src/graph/tuning.cc has no tree for these).
std::vector<comm::Algorithm> chain(double members, double payload) {
  return {{.name = "chain", .rounds = members - 1, .bytes = payload}};
}

/// Sends between the root and all others at once.
std::vector<comm::Algorithm> rooted(double members, double payload) {
  return {
      {.name = kRooted, .rounds = 1, .bytes = (members - 1) / members * payload, .direct = true}};
}

comm::Op op(const char* name, const char* doc,
            std::vector<comm::Algorithm> (*algorithms)(double, double)) {
  comm::Op op;
  op.name = name;
  op.doc = doc;
  op.algorithms = algorithms;
  return op;
}

}  // namespace

const std::vector<comm::Op>& rooted_ops() {
  static const std::vector<comm::Op> ops = {
      op("broadcast", "the root's buffer, to all members", chain),
      op("reduce", "the sum over the group, at the root", chain),
      op("gather", "the parts of all members, concatenated at the root", rooted),
      op("scatter", "a part of the root's buffer to each member", rooted)};
  return ops;
}

const comm::Op* find_costed(std::string_view name) {
  if (const comm::Id id = comm::find(name); id != comm::Id::none) {
    return comm::op(id).algorithms ? &comm::op(id) : nullptr;
  }
  for (const comm::Op& op : rooted_ops()) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace hocket::cost
