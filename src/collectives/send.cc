// SPDX-License-Identifier: Apache-2.0
// send(x): sends to the rank at distance `peer` along the mesh axis `peer_axis`.
#include "collectives/parts.h"

namespace hocket::comm {

Op describe_send() {
  Op op;
  op.doc = "send(x): sends to the rank at distance `peer` along an axis of the mesh, cyclically";
  op.role = Role::send;
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType>) {
    return total_bytes(in);
  };
  op.algorithms = [](double, double payload) {
    return std::vector<Algorithm>{{.name = "message", .rounds = 1, .bytes = payload}};
  };
  return op;
}

}  // namespace hocket::comm
