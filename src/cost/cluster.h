// SPDX-License-Identifier: Apache-2.0
// A cluster file: identical devices on identical nodes, and two classes of links. Every hardware
// constant is written `{value: 3.35TB/s, source: "where it comes from"}`; bandwidth is per
// direction per device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "graph/tensor_type.h"

namespace hocket::cost {

/// A hardware constant in the base unit, and where it comes from. 0: not given.
template <Unit kUnit>
struct Constant {
  double value = 0;
  std::string source;
  void fields(Fields& visit) {
    visit("value", value, "the constant").unit(kUnit).min(0);
    visit("source", source, "where the value comes from; mandatory in shipped files");
  }
};

using Rate = Constant<Unit::flops_s>;
using Bandwidth = Constant<Unit::bytes_s>;
using Bytes = Constant<Unit::bytes>;
using Seconds = Constant<Unit::seconds>;
using Fraction = Constant<Unit::none>;

/// Peak dense arithmetic per element type.
struct Peak {
  Rate f4, f8, bf16, f32, f64;
  void fields(Fields& visit) {
    visit("f4", f4, "4-bit floating point with f32 accumulation, without structured sparsity");
    visit("f8", f8, "the same of both 8-bit floating-point types");
    visit("bf16", bf16, "the same of bfloat16 and half precision");
    visit("f32", f32, "32-bit floating point");
    visit("f64", f64, "64-bit floating point");
  }
};

/// Reached share of the peak, by kind of kernel.
struct Efficiency {
  // What is not given is 1: the constant itself is what is reached.
  Fraction matmul{1, ""}, attention{1, ""}, memory{1, ""};
  void fields(Fields& visit) {
    visit("matmul", matmul, "share of the arithmetic peak that matrix products reach");
    visit("attention", attention, "share of the arithmetic peak that attention reaches");
    visit("memory", memory, "share of the memory bandwidth that all other kernels reach");
  }
};

struct Device {
  std::string name;
  Bytes memory;
  Bandwidth memory_bandwidth;
  Seconds launch;
  Peak peak;
  Efficiency efficiency;
  void fields(Fields& visit) {
    visit("name", name, "what it is called").required();
    visit("memory", memory, "memory that a rank can use");
    visit("memory_bandwidth", memory_bandwidth, "of the device memory");
    visit("launch", launch, "time added to every kernel");
    visit("peak", peak, "arithmetic peak per element type");
    visit("efficiency", efficiency, "reached shares of the peaks");
  }
};

/// One class of links: a message of n bytes takes latency + n / (bandwidth x efficiency).
struct Link {
  Seconds latency;
  Bandwidth bandwidth;
  Fraction efficiency{1, ""};
  void fields(Fields& visit) {
    visit("latency", latency, "time of an empty message, per step of an algorithm");
    visit("bandwidth", bandwidth, "per direction per device");
    visit("efficiency", efficiency, "share of the bandwidth that large messages reach");
  }
  double bytes_per_s() const { return bandwidth.value * efficiency.value; }
};

struct Links {
  Link intra, inter;
  void fields(Fields& visit) {
    visit("intra", intra, "between devices of one node");
    visit("inter", inter, "between nodes");
  }
};

/// How the ranks of a group lie on nodes: all that matters to a collective's time.
struct GroupShape {
  int32_t members = 1;
  int32_t nodes = 1;     ///< distinct nodes
  int32_t per_node = 1;  ///< fewest members on any of its nodes
  auto operator<=>(const GroupShape&) const = default;
};

struct Cluster {
  std::string name;
  std::string about;
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  /// > 0: ranks are threads of one machine. The device of this file is then one core, a rank of t
  /// threads is t of them, and ranks that compute at the same time share these cores.
  int64_t cores_per_node = 0;
  /// The machine that reads the file: cores, memory and number of ranks are its own
  /// (engine::cluster_of fills them in), the constants stand for it until a profile replaces them.
  bool this_machine = false;
  Device device;
  Links links;

  void fields(Fields& visit) {
    visit("name", name, "name of the cluster").required();
    visit("about", about, "one line for people");
    visit("nodes", nodes, "number of nodes").min(1).required();
    visit("devices_per_node", devices_per_node, "ranks per node").min(1).required();
    visit("cores_per_node", cores_per_node,
          "above 0: ranks are threads that share this many cores, and `device` describes one core")
        .min(0);
    visit(
        "this_machine", this_machine,
        "true: the machine that reads the file, whose cores the ranks share and whose memory they "
        "divide; without cores_per_node and device.memory");
    visit("device", device, "what one rank computes on");
    visit("links", links, "how ranks are connected");
  }

  int64_t capacity() const { return nodes * devices_per_node; }
  int32_t node_of(int32_t rank) const { return rank / static_cast<int32_t>(devices_per_node); }
  GroupShape shape(std::span<const int32_t> ranks) const;
  /// FLOP/s of one device (one core, if cores are shared); Error naming the key if not given.
  double peak_flops(graph::DType dtype) const;
  /// Throws Error (exit code 2) naming the first key that is missing or out of range.
  void validate(const std::string& where) const;
  /// Constants without a source, as paths: a prediction names them, shipped files have none.
  std::vector<std::string> unsourced() const;
};

/// Reads and validates a cluster file.
Cluster read_cluster(const std::string& path, const std::vector<std::string>& overrides = {});
Cluster parse_cluster(std::string_view text, const std::string& name);

}  // namespace hocket::cost
