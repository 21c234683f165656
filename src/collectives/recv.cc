// SPDX-License-Identifier: Apache-2.0
// recv() -> y: receives from the rank at distance `peer` along the mesh axis `peer_axis`, by tag.
#include "collectives/parts.h"

namespace hocket::comm {

Op describe_recv() {
  Op op;
  op.doc =
      "recv() -> y: receives from the rank at distance `peer` along an axis of the mesh, by tag";
  op.role = Role::receive;
  op.payload = [](const Attrs&, std::span<const TensorType>, std::span<const TensorType> out) {
    return total_bytes(out);
  };
  return op;
}

}  // namespace hocket::comm
