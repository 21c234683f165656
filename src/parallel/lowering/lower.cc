// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/lower.h"

#include "parallel/lowering/stamp.h"
#include "parallel/lowering/template.h"

namespace hocket::parallel {

program::Program lower(const graph::Graph& graph, const Plan& plan) {
  return stamp(make_templates(graph, plan));
}

}  // namespace hocket::parallel
