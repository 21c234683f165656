// SPDX-License-Identifier: Apache-2.0
// Cluster files that are part of the program: what logs of a device are read onto.
#pragma once

#include <string>
#include <string_view>

#include "cost/cluster.h"

namespace hocket::cost {

/// The shipped cluster whose devices a log's words name ("A100-SXM4-40GB", "data/vidur_a100"): a
/// name of configs/clusters, empty if there is none.
std::string known_cluster_of(std::string_view words);

/// A cluster by that name.
Cluster known_cluster(const std::string& name);

}  // namespace hocket::cost
