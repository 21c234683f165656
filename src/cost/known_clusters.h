// SPDX-License-Identifier: Apache-2.0
// Cluster files embedded in the program, onto which logs of a device are read.
#pragma once

#include <string>
#include <string_view>

#include "cost/cluster.h"

namespace hocket::cost {

/// Returns the shipped cluster whose device a log's words name ("A100-SXM4-40GB",
/// "data/vidur_a100"): a name in configs/clusters, empty if there is none.
std::string known_cluster_of(std::string_view words);

/// Returns the embedded cluster of this name.
Cluster known_cluster(const std::string& name);

}  // namespace hocket::cost
