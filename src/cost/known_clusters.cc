// SPDX-License-Identifier: Apache-2.0
// Texts of configs/clusters, embedded at build time.
#include "cost/known_clusters.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace hocket::cost {
namespace {

struct Known {
  /// Word in names of the devices that it stands for; empty: for none, it is known by name alone.
  std::string_view device;
  std::string_view name, text;
};

constexpr Known kKnown[] = {
    {
        "a100",
        "azure-nd-a100-v4",
#include "cost/azure-nd-a100-v4.yaml.inc"
    },
    {
        "h100",
        "dgx-h100-superpod",
#include "cost/dgx-h100-superpod.yaml.inc"
    },
    {
        "",
        "h100-64x8",
#include "cost/h100-64x8.yaml.inc"
    },
    {
        "v100",
        "aws-p3dn-v100",
#include "cost/aws-p3dn-v100.yaml.inc"
    },
};

}  // namespace

std::string known_cluster_of(std::string_view words) {
  std::string lower(words);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Known& known : kKnown) {
    if (!known.device.empty() && lower.find(known.device) != std::string::npos) {
      return std::string(known.name);
    }
  }
  return "";
}

Cluster known_cluster(const std::string& name) {
  for (const Known& known : kKnown) {
    if (known.name == name) return parse_cluster(known.text, name + ".yaml");
  }
  HOCKET_CHECK(false, "no cluster {} is built in", name);
}

}  // namespace hocket::cost
